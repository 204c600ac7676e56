"""Files that go with a prompt, and files that an agent leaves."""

import hashlib

from dragoman.conformance.check import Skip, check, expect
from dragoman.conformance.kit import Kit, expect_reason, refusal
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_WORD = b"word-of-the-attachment-4711"
_LEFT = "left-by-the-agent.txt"


@check("attachments.laid-out")
async def laid_out(kit: Kit) -> None:
    """Have the agent look for the words of a file."""
    request = kit.request(f"received={_WORD.hex()}")
    request.attachments.add(name="words.txt", media_type="text/plain", content=b"The word is " + _WORD)
    stream = await kit.run(request)
    expect("received: yes" in stream.text, "the agent does not find the file where its prompt says")


@check("attachments.names")
async def names(kit: Kit) -> None:
    """Give a file a name that leads out of any directory."""
    request = kit.request()
    request.attachments.add(name="../words.txt", content=_WORD)
    expect_reason(await kit.rejected(request), Reason.INVALID_REQUEST, field_path="attachments[0].name")


@check("attachments.images")
async def images(kit: Kit) -> None:
    """Give an image to an agent that takes none."""
    if kit.has(pb.FEATURE_IMAGES):
        raise Skip("FEATURE_IMAGES is declared")
    request = kit.request()
    request.attachments.add(name="image.png", media_type="image/png", content=b"\x89PNG\r\n\x1a\n")
    expect_reason(await kit.rejected(request), Reason.NOT_SUPPORTED, field_path="attachments[0].media_type")


@check("artifacts.read")
async def read(kit: Kit) -> None:
    """Have a file left, and read it, whole and in part."""
    request = kit.request(f"leave={_LEFT}")
    stream = await kit.run(request)
    reported = {artifact.name: artifact for artifact in stream.of("artifact")}
    expect(_LEFT in reported, f"no artifact event has the name {_LEFT}; found {sorted(reported)}")
    digest = hashlib.sha256(_LEFT.encode()).hexdigest()
    expect(reported[_LEFT].size == len(_LEFT), f"size is {reported[_LEFT].size} where {len(_LEFT)} is due")
    expect(reported[_LEFT].sha256 == digest, "sha256 is not that of the file")
    first, whole = await _read(kit, api.ReadArtifactRequest(run_id=request.run_id, name=_LEFT))
    expect(whole == _LEFT.encode(), f"ReadArtifact sends {whole[:80]!r}")
    expect((first.size, first.sha256) == (len(_LEFT), digest), "the first message has not the size and the digest")
    _, part = await _read(kit, api.ReadArtifactRequest(run_id=request.run_id, name=_LEFT, offset=5, length=2))
    expect(part == _LEFT.encode()[5:7], f"with offset 5 and length 2, ReadArtifact sends {part[:80]!r}")


@check("artifacts.links")
async def links(kit: Kit) -> None:
    """Have a link left."""
    request = kit.request("leave-link=link")
    stream = await kit.run(request)
    expect(not stream.of("artifact"), "what a link leads to is reported as an artifact")


@check("artifacts.unknown")
async def unknown(kit: Kit) -> None:
    """Read a file that no event reported."""
    request = kit.request("say=one")
    await kit.run(request)
    asked = api.ReadArtifactRequest(run_id=request.run_id, name="never-left")
    expect_reason(await refusal(_read(kit, asked)), Reason.ARTIFACT_NOT_FOUND)


async def _read(kit: Kit, request: api.ReadArtifactRequest) -> tuple[api.ReadArtifactResponse, bytes]:
    """Return the first message, and the data of all."""
    request.adapter = kit.adapter

    async def collected() -> list[api.ReadArtifactResponse]:
        return [message async for message in kit.stub.ReadArtifact(request)]

    messages = await kit.answer("ReadArtifact", collected())
    expect(messages, "ReadArtifact sends no message")
    return messages[0], b"".join(message.data for message in messages)
