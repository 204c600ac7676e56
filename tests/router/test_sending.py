"""Inputs in mid-run at a router: forwarded, found again in its log, and dropped with the adapter that had them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.server import Context
from dragoman.router.policy.answers import repeat_input
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, Caller, config, failure, routing
from tests.router.sidecar import Sidecar, serving

QUEUE, STEER = pb.INPUT_MODE_QUEUE, pb.INPUT_MODE_STEER


def queueing(*features: pb.Feature.ValueType) -> Sidecar:
    return Sidecar(features=(pb.FEATURE_PROMPT, pb.FEATURE_QUEUE, *features))


@contextlib.asynccontextmanager
async def beside(folder: Path, sidecar: Sidecar, **fields: Any) -> AsyncIterator[Caller]:
    """A router that has one adapter at a configured address."""
    address = f"unix:{folder}/a.sock"
    async with serving(sidecar, address), routing(config(folder, addresses=(address,), **fields)) as (_, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        yield caller


def send(caller: Caller, text: str = "more", input_id: str = "i", mode: pb.InputMode.ValueType = QUEUE) -> Any:
    request = api.SendRequest(run_id="r", input_id=input_id, text=text, mode=mode)
    return caller.adapter.Send(request, timeout=PATIENCE_S)


def recorded(text: str, *files: str, cut: int = 0, redacted: bool = False) -> pb.AgentEvent:
    accepted = pb.InputAccepted(input_id="i", text=text, mode=QUEUE, truncated_bytes=cut, attachments=files)
    return pb.AgentEvent(sequence=7, redacted=redacted, input_accepted=accepted)


@pytest.mark.parametrize(
    ("event", "text", "mode", "is_same"),
    [
        (recorded("go"), "go", QUEUE, True),
        (recorded("go"), "go", pb.INPUT_MODE_UNSPECIFIED, True),
        (recorded("go"), "go", STEER, False),
        (recorded("go"), "stop", QUEUE, False),
        (recorded("the key is [redacted]!", redacted=True), "the key is s3cret!", QUEUE, True),
        (recorded("the key is [redacted]!", redacted=True), "no key is s3cret!", QUEUE, False),
        (recorded("go", cut=3), "go on", QUEUE, True),
        (recorded("go", cut=3), "do on", QUEUE, False),
    ],
)
def test_a_repeated_input_is_compared_with_the_recorded_one(
    event: pb.AgentEvent, text: str, mode: pb.InputMode.ValueType, is_same: bool
) -> None:
    request = api.SendRequest(run_id="r", input_id="i", text=text, mode=mode)
    if is_same:
        assert repeat_input(request, event).sequence == 7
        return
    with pytest.raises(DragomanError) as caught:
        repeat_input(request, event)
    assert caught.value.reason is Reason.INPUT_ID_REUSED


@pytest.mark.parametrize(
    ("event", "names", "is_same"),
    [
        (recorded("go", "a.txt", "b.txt"), ["a.txt", "b.txt"], True),
        (recorded("go", "a.txt", "b.txt"), ["a.txt"], False),
        (recorded("go", "a.txt"), [], False),
        (recorded("go"), ["a.txt"], False),
        (recorded("go", "a.txt"), ["b.txt"], False),
        (recorded("go", "[redacted].txt", redacted=True), ["s3cret.txt"], True),
        (recorded("go", "[redacted].txt", redacted=True), ["s3cret.md"], False),
    ],
)
def test_the_names_of_the_files_of_a_repeated_input_are_compared(
    event: pb.AgentEvent, names: list[str], is_same: bool
) -> None:
    request = api.SendRequest(run_id="r", input_id="i", text="go")
    for name in names:
        request.attachments.add(name=name)
    if is_same:
        assert repeat_input(request, event).sequence == 7
        return
    with pytest.raises(DragomanError) as caught:
        repeat_input(request, event)
    assert caught.value.reason is Reason.INPUT_ID_REUSED


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "not declared"])
async def test_files_are_forwarded_where_the_adapter_takes_any_and_the_policy_allows_them(
    folder: Path, declared: bool
) -> None:
    (folder / "policy.toml").write_text(f"[directories]\nallow = ['{folder}']\n")
    sidecar = queueing(*([pb.FEATURE_ATTACHMENTS] if declared else []))
    async with beside(folder, sidecar, policy=folder / "policy.toml") as caller:
        stream = caller.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("text")
        request = api.SendRequest(run_id="r", input_id="i", text="more")
        request.attachments.add(name="a", path="/etc/passwd")
        error = await failure(caller.adapter.Send(request, timeout=PATIENCE_S))
        assert error.reason is Reason.POLICY_DENIED
        assert [violation.path for violation in error.violations] == ["attachments[0].path"]
        request.attachments[0].path = f"{folder}/a"
        request.attachments.add(name="b", content=b"mulberry")
        sending = caller.adapter.Send(request, timeout=PATIENCE_S)
        if declared:
            await sending
            (forwarded,) = sidecar.requests("Send")
            assert list(forwarded.attachments) == list(request.attachments)
        else:
            error = await failure(sending)
            assert error.reason is Reason.NOT_SUPPORTED
            assert [violation.path for violation in error.violations] == ["attachments"]
            assert sidecar.requests("Send") == []
        sidecar.open("g")
        await stream.rest()


async def test_an_input_is_forwarded_and_known_from_the_log_afterwards(folder: Path) -> None:
    sidecar = queueing()
    async with beside(folder, sidecar) as caller:
        stream = caller.execute("fake", "a", {"gate": "g"}, {"took input": "i"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("text")
        answer = await send(caller)
        (forwarded,) = sidecar.requests("Send")
        assert forwarded.sender.startswith("uid ")
        assert list((await caller.run("r")).run.waiting_input_ids) == ["i"]
        sidecar.open("g")
        events = await stream.rest()
        assert [event.sequence for event in events if event.HasField("input_accepted")] == [answer.sequence]
        assert not (await caller.run("r")).run.waiting_input_ids
        assert (await send(caller)).sequence == answer.sequence
        assert (await failure(send(caller, "other"))).reason is Reason.INPUT_ID_REUSED
        assert (await failure(send(caller, input_id="new"))).reason is Reason.RUN_FINISHED
    async with beside(folder, queueing()) as caller:
        assert (await send(caller)).sequence == answer.sequence
        assert (await failure(send(caller, input_id="new"))).reason is Reason.RUN_FINISHED


async def test_a_mode_that_the_adapter_does_not_declare_is_refused(folder: Path) -> None:
    sidecar = queueing()
    async with beside(folder, sidecar) as caller:
        stream = caller.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("text")
        error = await failure(send(caller, mode=STEER))
        assert error.reason is Reason.NOT_SUPPORTED
        assert [violation.path for violation in error.violations] == ["mode"]
        assert sidecar.requests("Send") == []
        sidecar.open("g")
        await stream.rest()


async def test_an_unknown_run_takes_no_input(folder: Path) -> None:
    async with beside(folder, queueing()) as caller:
        assert (await failure(send(caller))).reason is Reason.RUN_NOT_FOUND


async def test_the_inputs_of_a_lost_run_are_dropped_before_its_result(folder: Path) -> None:
    sidecar, address = queueing(), f"unix:{folder}/a.sock"
    configured = config(folder, addresses=(address,))
    async with routing(configured) as (_, caller):
        async with serving(sidecar, address):
            await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
            stream = caller.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
            await stream.until("text")
            await send(caller)
            await stream.until("input_accepted")
            sidecar.runs.clear()
        other = queueing()
        async with serving(other, address):
            events = await asyncio.wait_for(stream.rest(), PATIENCE_S)
    (dropped,) = [event for event in events if event.HasField("input_dropped")]
    assert (dropped.input_dropped.input_id, dropped.input_dropped.reason) == ("i", "agent_lost")
    assert events[-1].result.outcome == pb.OUTCOME_LOST
    assert events[-1].sequence == dropped.sequence + 1


class Hasty(Sidecar):
    """It answers before it has sent the event that it names, and then it loses the run."""

    async def Send(self, request: api.SendRequest, context: Context) -> api.SendResponse:  # noqa: N802 - the contract's name
        run = self.runs.pop(request.run_id)
        run.cut(Reason.DRAINING)
        return api.SendResponse(sequence=run.sequence + 1)


async def test_no_answer_names_an_event_that_the_run_never_had(folder: Path) -> None:
    sidecar = Hasty(features=(pb.FEATURE_PROMPT, pb.FEATURE_QUEUE))
    async with beside(folder, sidecar) as caller:
        stream = caller.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("text")
        assert (await failure(send(caller))).reason is Reason.RUN_FINISHED
        events = await stream.rest()
    assert [event.WhichOneof("body") for event in events if event.sequence] == ["result"]
    assert events[-1].result.outcome == pb.OUTCOME_LOST
