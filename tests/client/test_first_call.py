"""What becomes of a run whose very first call breaks: before an answer, and after one."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from dragoman.client import Client, DragomanError, Reason, execute_request
from dragoman.testkit.fakes.adapter import Action, EventFactory, Fail, FakeAdapter, Silence, Until, serving
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, Proxy

UNKNOWN_RUN = DragomanError(Reason.RUN_NOT_FOUND, "no such run")
BROKEN = Fail.bare(grpc.StatusCode.UNAVAILABLE)


@contextlib.asynccontextmanager
async def behind_a_proxy(fake: FakeAdapter, folder: Path) -> AsyncIterator[tuple[Proxy, str]]:
    """Serve ``fake`` behind a connection that can be cut; yields it and the address."""
    async with serving(fake, f"unix:{folder}/fake.sock"):
        proxy = Proxy(folder / "p.sock", folder / "fake.sock")
        await proxy.restore()
        yield proxy, f"unix:{folder}/p.sock"
        await proxy.cut()


@pytest.mark.parametrize(
    ("before", "then", "names"),
    [
        pytest.param([Silence()], 0, ["Execute", "Execute"], id="before the headers"),
        pytest.param([], 0, ["Execute", "GetRun", "Attach"], id="after the headers"),
        pytest.param([EventFactory().started()], 1, ["Execute", "Attach"], id="after the first event"),
    ],
)
async def test_a_cut_of_the_first_connection_is_got_over(
    before: list[Action], then: int, names: list[str], tmp_path: Path
) -> None:
    emit = EventFactory()
    whole = [emit.started(), emit.text("a"), emit.succeeded()]
    fake = FakeAdapter([*before, Until("never")], whole[then:])
    async with behind_a_proxy(fake, tmp_path) as (proxy, address), Client(address) as client:
        run = client.execute(execute_request("fake", "hi"))
        reading = asyncio.ensure_future(_all(run))
        await fake.gate("called Execute").wait()
        if not any(isinstance(action, Silence) for action in before):
            await _until(lambda: run.is_accepted and run.last_sequence == then)
        await proxy.cut()
        await proxy.restore()
        events = await asyncio.wait_for(reading, PATIENCE_S)
    assert [event.WhichOneof("body") for event in events] == ["started", "text", "result"]
    assert fake.names == names
    assert len({request.SerializeToString(deterministic=True) for request in fake.requests("Execute")}) == 1
    assert all(request.after_sequence == then for request in fake.requests("Attach"))


async def _all(run: AsyncIterator[pb.AgentEvent]) -> list[pb.AgentEvent]:
    return [event async for event in run]


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - it changes in tasks of this loop, which has no event for it
            await asyncio.sleep(0)


async def test_a_run_that_the_second_call_joins_reports_no_replay() -> None:
    emit = EventFactory()
    joined = [emit.started(), emit.ephemeral(replay_done=pb.ReplayDone()), emit.succeeded()]
    fake = FakeAdapter([Silence(), BROKEN], joined)
    async with serving(fake) as address, Client(address) as client:
        events = await _all(client.execute(execute_request("fake")))
    assert [event.WhichOneof("body") for event in events] == ["started", "result"]


@pytest.mark.parametrize(
    "reason",
    [Reason.INVALID_REQUEST, Reason.ADAPTER_NOT_FOUND, Reason.TOO_MANY_RUNS, Reason.ADAPTER_UNAVAILABLE],
)
async def test_a_refusal_of_the_second_call_is_not_repeated(reason: Reason) -> None:
    fake = FakeAdapter([Silence(), BROKEN], [Silence(), Fail(DragomanError(reason, "no"))])
    async with serving(fake) as address, Client(address) as client:
        with pytest.raises(DragomanError) as caught:
            await client.execute(execute_request("fake")).wait()
    assert caught.value.reason is reason
    assert fake.names == ["Execute", "Execute"]


@pytest.mark.parametrize("reason", [Reason.DRAINING, Reason.RUN_LOG_UNAVAILABLE])
async def test_a_server_that_does_not_know_yet_whether_it_has_the_run_is_waited_for(reason: Reason) -> None:
    undecided = Fail(DragomanError(reason, "later", retry_after_s=0.01))
    fake = FakeAdapter([Silence(), BROKEN], [Silence(), undecided], [EventFactory().succeeded()])
    async with serving(fake) as address, Client(address) as client:
        await client.execute(execute_request("fake")).wait()
    assert fake.names == ["Execute"] * 3


async def test_gives_up_after_the_limit_and_says_what_is_unknown(tmp_path: Path) -> None:
    fake = FakeAdapter([Silence(), Until("never")])
    reported: list[DragomanError] = []

    async def note(error: DragomanError) -> None:
        reported.append(error)

    async with behind_a_proxy(fake, tmp_path) as (proxy, address), Client(address, reattach_s=0.3) as client:
        run = client.execute(api.ExecuteRequest(adapter="fake", run_id="run-7"))
        run.notify_broken(note)
        reading = asyncio.ensure_future(run.wait())
        await fake.gate("called Execute").wait()
        await proxy.cut()
        with pytest.raises(DragomanError) as caught:
            await asyncio.wait_for(reading, PATIENCE_S)
        await proxy.restore()
    assert str(caught.value).startswith(
        "the call for run-7 broke before it was answered, and reconnecting failed for 0.3 s; "
        "the run may or may not have started: "
    )
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert caught.value.metadata["run_id"] == "run-7"
    assert len(reported) == 1, "a caller that waits gets one report that it takes longer"


async def test_attach_too_gets_over_a_cut_of_the_first_connection(tmp_path: Path) -> None:
    emit = EventFactory()
    fake = FakeAdapter([Silence(), Until("never")], [emit.started(), emit.succeeded()])
    async with behind_a_proxy(fake, tmp_path) as (proxy, address), Client(address) as client:
        reading = asyncio.ensure_future(client.attach("run-1").wait())
        await fake.gate("called Attach").wait()
        await proxy.cut()
        await proxy.restore()
        await asyncio.wait_for(reading, PATIENCE_S)
    assert fake.names == ["Attach", "Attach"]


async def test_closing_the_client_while_it_looks_for_the_server_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute.sock"))
        mute.listen()  # takes connections and says nothing, so that they never come about
        async with Client(f"unix:{tmp_path}/mute.sock") as client:
            reading = asyncio.ensure_future(client.execute(execute_request("fake")).wait())
            await asyncio.wait([reading], timeout=0.1)
            await client.close()
            with pytest.raises(DragomanError, match="the client was closed"):
                await asyncio.wait_for(reading, PATIENCE_S)


# Accepted, and then the router is another one, before anything came.


async def test_an_accepted_run_of_which_nothing_came_is_asked_for_again_at_a_router() -> None:
    emit = EventFactory()
    waiting = emit.ephemeral(state=pb.State(phase=pb.RUN_PHASE_QUEUED))
    joined = [emit.started(), emit.ephemeral(replay_done=pb.ReplayDone()), emit.succeeded()]
    fake = FakeAdapter([waiting, BROKEN], joined, answers={"GetRun": router_pb2.GetRunResponse()})
    async with serving(fake) as address, Client(address) as client:
        events = await _all(client.execute(execute_request("fake")))
    assert [event.WhichOneof("body") for event in events] == ["state", "started", "result"]
    assert fake.names == ["Execute", "GetRun", "Execute"]


@pytest.mark.parametrize("answers", [{}, {"GetRun": UNKNOWN_RUN}], ids=["adapter", "router"])
async def test_a_run_that_is_forgotten_is_not_begun_twice(answers: dict[str, DragomanError]) -> None:
    fake = FakeAdapter([Until("accepted"), BROKEN], [Silence(), Fail(UNKNOWN_RUN)], answers=answers)
    async with serving(fake) as address, Client(address) as client, client.execute(execute_request("fake")) as run:
        fake.open("accepted")
        with pytest.raises(DragomanError) as caught:
            await run.wait()
    assert caught.value.reason is Reason.RUN_NOT_FOUND
    assert fake.names.count("Execute") == 1


async def test_a_run_of_which_something_came_is_never_begun_again() -> None:
    known = {"GetRun": router_pb2.GetRunResponse()}
    fake = FakeAdapter([EventFactory().started(), BROKEN], [Silence(), Fail(UNKNOWN_RUN)], answers=known)
    async with serving(fake) as address, Client(address) as client:
        with pytest.raises(DragomanError) as caught:
            await client.execute(execute_request("fake")).wait()
    assert caught.value.reason is Reason.RUN_NOT_FOUND
    assert fake.names == ["Execute", "Attach"]


async def test_a_run_that_another_client_started_is_never_begun() -> None:
    known = {"GetRun": router_pb2.GetRunResponse()}
    fake = FakeAdapter([BROKEN], [Silence(), Fail(UNKNOWN_RUN)], answers=known)
    async with serving(fake) as address, Client(address) as client:
        with pytest.raises(DragomanError) as caught:
            await client.attach("run-1").wait()
    assert caught.value.reason is Reason.RUN_NOT_FOUND
    assert fake.names == ["Attach", "Attach"]


async def test_why_a_run_was_refused_after_it_was_accepted_is_reported() -> None:
    no_adapter = Fail(DragomanError(Reason.ADAPTER_UNAVAILABLE, "its program is missing"))
    # gRPC may lose the metadata of a call that fails in the same moment.
    fake = FakeAdapter([Until("accepted"), no_adapter], answers={"GetRun": UNKNOWN_RUN})
    async with serving(fake) as address, Client(address) as client, client.execute(execute_request("fake")) as run:
        fake.open("accepted")
        with pytest.raises(DragomanError, match="its program is missing"):
            await run.wait()
    assert fake.names == ["Execute", "GetRun"]


async def test_a_router_that_breaks_while_it_is_asked_is_asked_again() -> None:
    broken = DragomanError(None, "cut", status=grpc.StatusCode.UNAVAILABLE)
    fake = FakeAdapter([Until("accepted"), BROKEN], answers={"GetRun": broken})
    async with (
        serving(fake) as address,
        Client(address, reattach_s=0.2) as client,
        client.execute(execute_request("fake")) as run,
    ):
        fake.open("accepted")
        with pytest.raises(DragomanError, match=r"reconnecting failed for 0\.2 s: cut"):
            await run.wait()
    assert fake.names[:3] == ["Execute", "GetRun", "GetRun"]
