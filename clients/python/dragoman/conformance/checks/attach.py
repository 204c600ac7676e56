"""Attach: from everywhere, several at once, beyond the end."""

import asyncio

from dragoman.conformance.check import Skip, Violation, check, expect
from dragoman.conformance.kit import Kit, expect_reason, gate, refusal
from dragoman.conformance.streams import Stream, last
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api

_MODEL = "MOCK_TEXT"
_LATER_RUNS = 8


async def _finished(kit: Kit) -> tuple[api.ExecuteRequest, Stream]:
    request = kit.request("say=one", "say=two", "say=three", model=_MODEL)
    return request, await kit.run(request)


@check("attach.replay")
async def replay(kit: Kit) -> None:
    """Attach after each sequence of a finished run."""
    request, whole = await _finished(kit)
    if not whole.durable:
        raise Skip("no event has a sequence: there is nothing to replay")
    for after in range(len(whole.durable)):
        stream = await kit.attach(request.run_id, after).rest()
        due = [event for event in whole.durable if event.sequence > after]
        expect(
            stream.durable == due, f"after {after}: {len(stream.durable)} events where {len(due)} are due, or others"
        )


@check("attach.retention")
async def retention(kit: Kit) -> None:
    """End further runs, and attach to the first one."""
    request, whole = await _finished(kit)
    for _ in range(_LATER_RUNS):
        await kit.run(kit.request("say=later", model=_MODEL))
    try:
        stream = await kit.attach(request.run_id).rest()
    except Violation as violation:
        raise Violation(f"after the end of {_LATER_RUNS} further runs: {violation}") from violation
    expect(stream.durable == whole.durable, f"after the end of {_LATER_RUNS} further runs, other events are replayed")


@check("attach.at-end")
async def at_end(kit: Kit) -> None:
    """Attach with the sequence of the result."""
    request, whole = await _finished(kit)
    result = last(whole)
    stream = await kit.attach(request.run_id, result.sequence).rest()
    expect(stream.durable == [result], "with the sequence of the result, the result is not sent again")


@check("attach.ahead")
async def ahead(kit: Kit) -> None:
    """Attach after a sequence that does not exist."""
    request, whole = await _finished(kit)
    end = last(whole).sequence
    error = await refusal(kit.attach(request.run_id, end + 1).read())
    expect_reason(error, Reason.SEQUENCE_AHEAD)
    found = error.metadata.get("last_sequence")
    expect(found == str(end), f"last_sequence in metadata is {found!r}, not {end}")


@check("attach.unknown")
async def unknown(kit: Kit) -> None:
    """Attach to a run that never was."""
    expect_reason(await refusal(kit.attach("conformance-no-such-run").read()), Reason.RUN_NOT_FOUND)


@check("attach.live")
async def live(kit: Kit) -> None:
    """Attach to a run while it lives, three times at once, from different sequences."""
    with gate(kit) as path:
        request = kit.request("say=one", "say=two", f"wait={path}", "say=three")
        whole = kit.execute(request)
        await whole.until_text("two")
        starts = [0, 1, last(whole).sequence]
        readers = [kit.attach(request.run_id, after) for after in starts]
        reading = [asyncio.create_task(reader.rest()) for reader in readers]
        await asyncio.sleep(0)
    await whole.rest()
    await asyncio.gather(*reading)
    for after, reader in zip(starts, readers, strict=True):
        due = [event for event in whole.durable if event.sequence > after]
        expect(reader.durable == due, f"a reader after {after} gets other events than Execute")
