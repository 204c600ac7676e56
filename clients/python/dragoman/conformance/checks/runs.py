"""Execute: acceptance, identity, the opening event, failures as data, idempotence."""

import asyncio
import time
import uuid
from pathlib import Path

from dragoman.conformance.check import Skip, Violation, check, expect
from dragoman.conformance.kit import Kit, Late, expect_outcome, expect_reason, gate, until_ready, within
from dragoman.conformance.streams import is_kind, last
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.wire import unroll
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_SLOW = "MOCK_SLOW"
"""A scripted model that speaks for some seconds."""
_PATIENCE_S = 8.0
_SOON_S = 5.0
_OBSERVED_S = 0.5
_DEADLINE_S = 2.0
_HEARTBEAT_S = 22.0
_ORPHAN_S = 2
_FLOOD = 5000
"""Messages of 100 characters: with what belongs to each, more than a run's buffer need hold."""


@check("run.succeeds")
async def succeeds(kit: Kit) -> None:
    """Run an agent that says something and succeeds."""
    stream = await kit.run(kit.request("say=all is well", model="MOCK_TEXT"))
    expect_outcome(stream.result, pb.OUTCOME_SUCCEEDED, stream.result.failure.message)
    due = "all is well" if kit.setup.agent == "script" else "scripted model"
    expect(due in stream.text, f"the agent's words {due!r} are in no event")


@check("run.id-header")
async def id_header(kit: Kit) -> None:
    """Read the initial metadata."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    stream = kit.execute(request)
    found = await stream.header()
    await stream.rest()
    expect(found == request.run_id, f"dragoman-run-id is {found!r}, not {request.run_id!r}")


@check("run.id-assigned")
async def id_assigned(kit: Kit) -> None:
    """Leave the ID to the server."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.run_id = ""
    stream = await kit.run(request)
    expect(stream.events and stream.events[0].run_id, "no run ID was assigned")


@check("run.early-header")
async def early_header(kit: Kit) -> None:
    """Expect the header while the agent is still silent."""
    with gate(kit) as path:
        stream = kit.execute(kit.request(f"wait={path}"))
        async with within(kit, _SOON_S, "no initial metadata while the agent is silent"):
            await stream.header()
    await stream.rest()


@check("run.rejected-has-no-id")
async def rejected_has_no_id(kit: Kit) -> None:
    """Have a request rejected, and look for the header."""
    request = kit.request()
    request.run_id = "also not an id"
    stream = kit.execute(request)
    found = await stream.header()
    try:
        await stream.read()
    except DragomanError:
        expect(not found, f"a rejected call has dragoman-run-id {found!r}")
        return
    raise Skip("the request was accepted")


@check("run.failure-is-data")
async def failure_is_data(kit: Kit) -> None:
    """Run an agent that fails; the caller learns the agent's own words, or at least what kind of failure it is."""
    words = "conformance failure"
    stream = kit.execute(kit.request(f"fail={words}", model="MOCK_400"))
    if (error := await stream.ending()) is not None:
        raise Violation(f"an agent that fails ends the call with {error.code.name}")
    expect_outcome(stream.result, pb.OUTCOME_FAILED)
    failure = stream.result.failure
    if kit.setup.agent == "script":
        is_known = words in failure.message or failure.kind != pb.FAILURE_KIND_INTERNAL
        expect(is_known, f"the agent fails with {words!r}, and the failure is INTERNAL: {failure.message!r}")


@check("run.started")
async def started(kit: Kit) -> None:
    """Compare `started` with request and description."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.labels["conformance"] = "label"
    stream = await kit.run(request)
    opening = stream.of("started")
    expect(opening, "the run has no started")
    event = opening[0]
    expect(event.adapter == kit.described.adapter, f"started.adapter is {event.adapter!r}")
    expect(kit.is_router or event.instance_id == kit.described.instance_id, "started.instance_id is not Describe's")
    expect(event.cwd == request.workspace.cwd, f"started.cwd is {event.cwd!r}, not {request.workspace.cwd!r}")
    expect(dict(event.labels) in ({}, dict(request.labels)), f"started.labels is {dict(event.labels)}")


@check("run.started-no-prompt")
async def started_no_prompt(kit: Kit) -> None:
    """Look for the prompt in the command line of `started`."""
    word = f"prompt-{uuid.uuid4().hex}"
    request = kit.request("say=hello", model="MOCK_TEXT", prompt=word)
    if word not in request.prompt:
        request.prompt += f" {word}"
    stream = await kit.run(request)
    shown = [item for event in stream.of("started") for item in event.argv]
    expect(not any(word in item for item in shown), "started.argv contains the prompt")


@check("run.progressive")
async def progressive(kit: Kit) -> None:
    """Have an agent say something and then wait for a file."""
    with gate(kit) as path:
        stream = kit.execute(kit.request("say=before the gate", f"wait={path}", "say=after the gate"))
        async with within(kit, _SOON_S, "what the agent says does not arrive while it runs"):
            await stream.until_text("before the gate")
    await stream.rest()


@check("run.same-request-joins")
async def joins(kit: Kit) -> None:
    """Send the same request twice, the second time while the run lives."""
    count = kit.path("count")
    with gate(kit) as path:
        request = kit.request(f"touch={count}", "say=once", f"wait={path}")
        first = kit.execute(request)
        await first.until_text("once")
        count.unlink()
        second = kit.execute(request)
        await second.until_text("once")
    await first.rest()
    await second.rest()
    expect(not count.exists(), "the agent was started twice")
    expect(second.durable == first.durable, "the second call of the same request shows other events")


@check("run.same-request-after-end")
async def joins_finished(kit: Kit) -> None:
    """Send the same request again after the end of its run."""
    request = kit.request("say=once", model="MOCK_TEXT")
    first = await kit.run(request)
    second = await kit.run(request)
    expect(second.durable == first.durable, "the same request after the end shows other events")


@check("run.id-reused")
async def id_reused(kit: Kit) -> None:
    """Send another request with a known ID."""
    request = kit.request("say=once", model="MOCK_TEXT")
    await kit.run(request)
    request.prompt += "Another prompt."
    expect_reason(await kit.rejected(request), Reason.RUN_ID_REUSED)


@check("batching.declared")
async def batching(kit: Kit) -> None:
    """Request batches, and compare with what Describe says."""
    request = kit.request("piece=a", "piece=b", "piece=c", model="MOCK_LONG")
    single = await kit.run(request)
    declared = kit.is_router or kit.described.batching
    request.run_id += "-batched"
    request.batching.SetInParent()
    if not declared:
        expect_reason(await kit.rejected(request), Reason.NOT_SUPPORTED, field_path="batching")
        return
    batched = await kit.run(request)
    expect(bool(batched.text) == bool(single.text), "with batching the agent's words are missing")


@check("batching.off")
async def batching_off(kit: Kit) -> None:
    """Look for batches that were not requested."""
    stream = await kit.run(kit.request("flood=20", model="MOCK_LONG"))
    expect(not any(message.HasField("batch") for message in stream.messages), "a batch that was not requested")


@check("batching.attach")
async def batching_attach(kit: Kit) -> None:
    """Read one run in single events and in batches."""
    request = kit.request("flood=20", model="MOCK_LONG")
    single = await kit.run(request)
    if not kit.is_router and not kit.described.batching:
        raise Skip("batching is not declared")
    batched = await kit.attach(request.run_id, batching={}).rest()
    events = [event for message in batched.messages for event in unroll(message) if event.sequence]
    expect(events == single.durable, "batches hold other events than the single ones")


async def _orphaned(kit: Kit, request: api.ExecuteRequest, limit_s: float, fault: str) -> float:
    """Go away from a run, attach without holding it, and require that it is cancelled; return after which time."""
    stream = kit.execute(request)
    await until_ready(kit, stream, request)
    began = time.monotonic()
    stream.cancel()
    later = kit.attach(request.run_id)
    try:
        async with within(kit, limit_s, fault):
            await later.rest()
    except Late:
        await kit.cancel(request.run_id, grace_s=0)
        raise
    expect_outcome(later.result, pb.OUTCOME_CANCELLED)
    return time.monotonic() - began


@check("run.orphan")
async def orphan(kit: Kit) -> None:
    """Go away from a run without orphan_after, and attach without holding it."""
    lock = kit.path("lock")
    request = kit.request(f"hold={lock}", "say=ready", "hang", model="MOCK_STALL_MID")
    request.ClearField("orphan_after")
    await _orphaned(kit, request, _PATIENCE_S, "a run that no client holds lives on")


@check("run.orphan-after")
async def orphan_after(kit: Kit) -> None:
    """Go away from a run for longer than orphan_after, as a router does that is missing."""
    request = kit.request("say=ready", "hang", model="MOCK_STALL_MID")
    request.orphan_after.FromSeconds(_ORPHAN_S)
    fault = f"a run with an orphan_after of {_ORPHAN_S} s lives on"
    passed_s = await _orphaned(kit, request, _ORPHAN_S + _PATIENCE_S, fault)
    expect(passed_s >= _ORPHAN_S, f"a run with an orphan_after of {_ORPHAN_S} s ended after {passed_s:.1f} s")


@check("run.unheld-output")
async def unheld_output(kit: Kit) -> None:
    """Have an agent say 2 MB while no client holds its run, and come back."""
    with gate(kit) as path:
        request = kit.request("say=ready", f"wait={path}", f"flood={_FLOOD}", "say=the end")
        stream = kit.execute(request)
        await stream.until_text("ready")
        stream.cancel()
    await asyncio.sleep(_OBSERVED_S)
    later = await kit.attach(request.run_id, last(stream).sequence, hold=True).rest()
    output = later.text
    expect(len(output) >= 100 * _FLOOD, f"{len(output)} of {100 * _FLOOD} characters of that time arrive")
    expect("the end" in output, "what the agent said last is missing")


async def _lives_on(kit: Kit, request: api.ExecuteRequest, path: Path) -> None:
    """Require that a run without its first stream does not end until it may."""
    watching = kit.attach(request.run_id)
    try:
        async with asyncio.timeout(_OBSERVED_S * kit.setup.slowness):
            await watching.rest()
    except TimeoutError:
        watching.cancel()
    later = kit.attach(request.run_id, hold=True)
    path.touch()
    await later.rest()
    expect_outcome(later.result, pb.OUTCOME_SUCCEEDED)


@check("run.survives-client")
async def survives(kit: Kit) -> None:
    """Go away from a run with orphan_after, and come back."""
    path = kit.path("gate")
    request = kit.request("say=ready", f"wait={path}", "say=afterwards", model=_SLOW)
    stream = kit.execute(request)
    await until_ready(kit, stream, request)
    stream.cancel()
    await _lives_on(kit, request, path)


@check("run.survives-deadline")
async def deadline(kit: Kit) -> None:
    """Set a deadline for the RPC that is over before the run."""
    path = kit.path("gate")
    request = kit.request("say=ready", f"wait={path}", "say=afterwards")
    stream = kit.execute(request, timeout=_DEADLINE_S * kit.setup.slowness)
    if (error := await stream.ending()) is not None:
        # gRPC for Go resets the stream at the deadline: a client whose clock is a moment behind reads CANCELLED.
        ended = error.code.name in ("DEADLINE_EXCEEDED", "CANCELLED")
        expect(ended, f"the deadline ends the call with {error.code.name}")
    await _lives_on(kit, request, path)


@check("run.survives-connection")
async def connection(kit: Kit) -> None:
    """Lose the connection of a run, and come back on another one, as a router does that was restarted."""
    with gate(kit) as path:  # the agent goes on afterwards
        request = kit.request("say=ready", f"wait={path}", "say=afterwards", model=_SLOW)
        async with kit.beside() as lost:
            stream = lost.execute(request)
            await stream.until(is_kind("started"))
            await until_ready(kit, stream, request)
    await asyncio.sleep(_OBSERVED_S)
    async with kit.beside() as other:
        later = other.attach(request.run_id, last(stream).sequence, hold=True)
        await later.rest()
    expect_outcome(later.result, pb.OUTCOME_SUCCEEDED)
    words = "word0399" if kit.setup.agent == "model" else "afterwards"
    expect(words in later.text, "what came meanwhile is missing on a new connection")


@check("events.heartbeat")
async def heartbeat(kit: Kit) -> None:
    """Let an agent be silent for longer than heartbeats are apart."""
    request = kit.request("say=ready", "hang", model="MOCK_STALL")
    stream = kit.execute(request)
    try:
        async with within(kit, _HEARTBEAT_S, "no heartbeat in that time of silence"):
            await stream.until(is_kind("heartbeat"))
    finally:
        await kit.cancel(request.run_id, grace_s=0)
    await stream.rest()


@check("run.concurrent")
async def concurrent(kit: Kit) -> None:
    """Keep two runs alive at the same time."""
    most = kit.described.capabilities.max_concurrent_runs
    if most == 1:
        raise Skip("max_concurrent_runs is 1")
    with gate(kit) as path:
        streams = [kit.execute(kit.request(f"say=run {number}", f"wait={path}")) for number in range(2)]
        for number, stream in enumerate(streams):
            await stream.until(is_kind("started"))
            await stream.until_text(f"run {number}")
    for number, stream in enumerate(streams):
        await stream.rest()
        expect(f"run {1 - number}" not in stream.text, "the events of two runs are mixed")
