"""``dragoman send``: an input for a run in mid-run, with files."""

from pathlib import Path
from typing import Any

from dragoman.protocol.errors import DragomanError, Reason, not_supported
from dragoman.testkit.fakes.adapter import FakeAdapter
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.cli.program import dragoman, routed

PNG = b"\x89PNG\r\n\x1a\nrest"


class Blind(FakeAdapter):
    """Refuses images."""

    async def handle(self, name: str, request: Any, context: Any) -> Any:
        images = name == "Send" and any(one.media_type == "image/png" for one in request.attachments)
        refusal = not_supported("attachments[1].media_type", "it takes no images")
        self._answers["Send"] = refusal if images else api.SendResponse(sequence=9)
        return await super().handle(name, request, context)


async def test_files_go_with_an_input(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mulberry")
    (tmp_path / "a.png").write_bytes(PNG)
    arguments = ("send", "run-1", "Look.", "--steer", "--attach", "notes.txt", "--attach", "a.png")
    fake = FakeAdapter(answers={"Send": api.SendResponse(sequence=9)})
    async with routed(fake) as env:
        done = await dragoman(*arguments, env=env, cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, "accepted; recorded as event 9\n", "")
    (request,) = fake.requests("Send")
    assert (request.run_id, request.text, request.mode) == ("run-1", "Look.", pb.INPUT_MODE_STEER)
    assert request.sender == "dragoman command line"
    assert [(one.name, one.media_type, one.content) for one in request.attachments] == [
        ("notes.txt", "text/plain", b"mulberry"),
        ("a.png", "image/png", PNG),
    ]


async def test_an_input_is_read_from_standard_input() -> None:
    fake = FakeAdapter(answers={"Send": api.SendResponse(sequence=9)})
    async with routed(fake) as env:
        done = await dragoman("send", "run-1", "-", env=env, stdin=b"Look\nhere.\n")
    assert done.code == 0
    assert fake.requests("Send")[0].text == "Look\nhere.\n"


async def test_an_image_is_just_a_file_for_an_agent_that_takes_none(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mulberry")
    (tmp_path / "a.png").write_bytes(PNG)
    fake = Blind()
    async with routed(fake) as env:
        done = await dragoman(
            "send", "run-1", "Look.", "--attach", "notes.txt", "--attach", "a.png", env=env, cwd=tmp_path
        )
    assert (done.code, done.out) == (0, "accepted; recorded as event 9\n")
    first, second = fake.requests("Send")
    assert first.input_id == second.input_id
    assert [one.media_type for one in second.attachments] == ["text/plain", ""]


async def test_other_refusals_are_shown(tmp_path: Path) -> None:
    fake = FakeAdapter(answers={"Send": not_supported("mode", "it takes none")})
    async with routed(fake) as env:
        done = await dragoman("send", "run-1", "Look.", env=env, cwd=tmp_path)
        missing = await dragoman("send", "run-1", "Look.", "--attach", "nowhere", env=env, cwd=tmp_path)
    assert done.code != 0
    assert "mode: it takes none" in done.err
    assert (missing.code, len(fake.requests("Send"))) == (2, 1)
    bare = FakeAdapter(answers={"Send": DragomanError(Reason.NOT_SUPPORTED, "not this")})
    async with routed(bare) as env:
        assert (await dragoman("send", "run-1", "Look.", env=env, cwd=tmp_path)).code != 0
    assert len(bare.requests("Send")) == 1
