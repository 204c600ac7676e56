"""Runs: the pump, broken links, readers, holders, ids; against adapters served in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.protocol.limits import MIB
from dragoman.protocol.order import OrderChecker
from dragoman.router.app import RouterConfig
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2

from tests.router.harness import PATIENCE_S, Caller, Proxy, config, failure, kinds, routing, sequences
from tests.router.sidecar import Sidecar, serving


def event(sequence: int, kind: str, run_id: str = "r", **envelope: Any) -> bytes:
    """Return an event with nothing in it."""
    event = event_pb2.AgentEvent(**{"sequence": sequence, "run_id": run_id, "attempt": 1, **envelope})
    getattr(event, kind).SetInParent()
    return event.SerializeToString()


ROUTER = event_pb2.EVENT_ORIGIN_ROUTER


GATED = ("a", {"gate": "g"}, "b", {"end": "SUCCEEDED"})


async def happens(event: asyncio.Event) -> bool:
    """Return whether this happens within 0.3 s; there is no event to wait for that says it did not."""
    waiting = asyncio.ensure_future(event.wait())
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    waiting.cancel()
    return bool(done)


@contextlib.asynccontextmanager
async def beside(
    folder: Path, sidecar: Sidecar | None = None, **fields: Any
) -> AsyncIterator[tuple[Caller, Sidecar]]:
    """A router that has one adapter at a configured address."""
    sidecar = sidecar or Sidecar()
    address = f"unix:{folder}/a.sock"
    async with serving(sidecar, address), routing(config(folder, addresses=(address,), **fields)) as (_, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        yield caller, sidecar


async def test_bytes_pass_unchanged_whatever_they_mean(folder: Path) -> None:
    # A later revision's envelope field (200) first, then the sequence, its body (field 99), and the attempt.
    later = bytes.fromhex("c20c0378797a" + "090200000000000000" + "9a0603616263" + "b00601")
    async with beside(folder) as (caller, _sidecar):
        await caller.execute("fake", {"raw": later.hex()}, {"end": "SUCCEEDED"}, run_id="r").until("result")
        method: Any = caller.channel.unary_stream("/dragoman.v1.AdapterService/Attach")
        raw = [data async for data in method(pb.AttachRequest(run_id="r").SerializeToString())]
        assert raw[1] == later
        assert len(raw) == 3


async def test_a_broken_link_is_followed_without_a_hole_or_a_repetition(folder: Path) -> None:
    sidecar = Sidecar()
    proxy = Proxy(folder / "p.sock", folder / "a.sock")
    await proxy.restore()
    address = f"unix:{folder}/p.sock"
    async with (
        serving(sidecar, f"unix:{folder}/a.sock"),
        routing(config(folder, addresses=(address,))) as (_router, caller),
    ):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        stream = caller.execute("fake", *GATED, run_id="r")
        first = await stream.until("text")

        await proxy.cut()
        noticed = await stream.until("notice")
        assert noticed[-1].notice.code == "adapter_stream_broken"
        sidecar.open("g")
        await proxy.restore()
        rest = await stream.rest()

        assert sequences([*first, *noticed, *rest]) == [1, 2, 3, 4]
        assert kinds(rest) == ["text:b", "result"]
        (attached,) = sidecar.requests("Attach")
        assert attached.after_sequence == 2
        assert attached.hold
        assert len(sidecar.requests("Execute")) == 1
        assert "stream" in (await caller.run("r")).run.remarks[0]
    await proxy.cut()


async def test_a_new_process_at_the_address_means_lost(folder: Path) -> None:
    address = f"unix:{folder}/a.sock"
    async with contextlib.AsyncExitStack() as first, routing(config(folder, addresses=(address,))) as (_, caller):
        await first.enter_async_context(serving(Sidecar(instance_id="one"), address))
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        stream = caller.execute("fake", *GATED)
        await stream.until("text")
        await first.aclose()
        successor = Sidecar(instance_id="two")
        async with serving(successor, address):
            events = await stream.rest()

            assert events[-1].result.outcome == event_pb2.OUTCOME_LOST
            assert events[-1].sequence == 3
            # The successor does not get the run of another instance; it gets the next one.
            assert successor.requests("Execute") == []
            assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]


async def test_an_adapter_that_stays_away_means_lost_and_a_cancel_once_it_is_back(folder: Path) -> None:
    sidecar = Sidecar()
    proxy = Proxy(folder / "p.sock", folder / "a.sock")
    await proxy.restore()
    configured = config(folder, addresses=(f"unix:{folder}/p.sock",), reattach_s=0.3)
    async with serving(sidecar, f"unix:{folder}/a.sock"), routing(configured) as (_router, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("text")
        await proxy.cut()
        events = await stream.rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_LOST
        assert "0.3 s" in events[-1].result.failure.message

        await proxy.restore()
        async with asyncio.timeout(PATIENCE_S):
            await sidecar.gate("called Cancel").wait()
        # LOST is final: what the adapter says now changes nothing.
        assert (await caller.run("r")).run.result.outcome == event_pb2.OUTCOME_LOST
    await proxy.cut()


async def test_an_adapter_that_forgot_the_run_means_lost(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        stream = caller.execute("fake", "a", {"gate": "g"}, {"fail": "UNAVAILABLE"}, run_id="r")
        await stream.until("text")
        del sidecar.runs["r"]
        sidecar.open("g")
        events = await stream.rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_LOST
        assert "no longer knows the run" in events[-1].result.failure.message


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["a", {"raw": event(6, "text").hex()}, {"gate": "never"}], "sequence 6 followed 2"),
        (["a", {"raw": event(1, "text").hex()}, {"gate": "never"}], "sequence 1 followed 2 in one stream"),
        ([{"raw": event(0, "text").hex()}, {"gate": "never"}], "text has no sequence (after sequence 1)"),
        ([{"raw": event(0, "result").hex()}, {"gate": "never"}], "result has no sequence"),
        ([{"raw": event(2, "started").hex()}, {"gate": "never"}], "out of order"),
        ([{"raw": event(2, "result").hex()}, {"gate": "never"}], "result (sequence 2) has no outcome"),
        ([{"raw": event(2, "result", run_id="other").hex()}, {"gate": "never"}], "names another run"),
        ([{"raw": event(2, "text", run_id="other").hex()}, {"gate": "never"}], "text (sequence 2) names another run"),
        ([{"raw": event(0, "heartbeat", run_id="other").hex()}, {"gate": "never"}], "heartbeat names another run"),
        ([{"raw": event(2, "notice", origin=ROUTER).hex()}, {"gate": "never"}], "has origin ROUTER"),
        ([{"raw": event(2, "text", attempt=7).hex()}, {"gate": "never"}], "has attempt 7, expected 1"),
        ([{"raw": "0aff"}, {"gate": "never"}], "not a valid AgentEvent"),
        ([{"flood": [1, 1_200_000]}, {"gate": "never"}], "bytes"),
        (["a", {"stop": True}], "without a result"),
    ],
)
async def test_a_stream_against_the_contract_ends_the_run_and_calls_the_adapter_off(
    folder: Path, steps: list[Any], message: str
) -> None:
    async with beside(folder) as (caller, sidecar):
        events = await caller.execute("fake", *steps, run_id="r").rest()
        last = events[-1]
        assert last.result.outcome == event_pb2.OUTCOME_LOST
        assert last.result.failure.kind == event_pb2.FAILURE_KIND_INTERNAL
        assert last.result.failure.code == "adapter_protocol_violation"
        assert not last.result.failure.retryable
        assert message in last.result.failure.message
        async with asyncio.timeout(PATIENCE_S):
            await sidecar.gate("called Cancel").wait()
        checker = OrderChecker()
        checker.observe_all(events)
        checker.finish()
        # And the next run is none the worse for it.
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]


async def test_a_status_before_the_first_event_is_passed_on_and_the_id_is_free_again(folder: Path) -> None:
    async with beside(folder) as (caller, _sidecar):
        error = await caller.execute("fake", {"refuse": "SESSION_BUSY"}, run_id="r").error()
        assert error.reason is Reason.SESSION_BUSY
        assert error.metadata == {"who": "sidecar"}
        assert error.message == "refused by the sidecar"
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="r").rest()) == ["started", "result"]


async def test_a_router_that_falls_behind_says_so_once_and_counts(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        stream = caller.execute("fake", "a", {"gate": "never"}, run_id="r")
        seen = await stream.until("text")
        run = sidecar.runs["r"]
        for number in range(3):
            sidecar.gate("called Attach").clear()
            run.cut(Reason.SLOW_CONSUMER)
            async with asyncio.timeout(PATIENCE_S):
                await sidecar.gate("called Attach").wait()
            run.emit(text=event_pb2.Text(item_id="i", delta=str(number)))
            seen += await stream.until("text")
        run.end(event_pb2.OUTCOME_SUCCEEDED)
        seen += await stream.rest()

        notices = [one.notice for one in seen if one.HasField("notice")]
        assert [notice.code for notice in notices] == ["adapter_stream_behind"]
        assert "fell behind" in notices[0].message
        (remark,) = (await caller.run("r")).run.remarks
        assert remark == f"{notices[0].message} (3 times)"


async def test_the_same_request_joins_and_another_is_refused(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        first = caller.execute("fake", *GATED, run_id="r", auth_token="one")
        await first.until("text")
        # What does not change the run may differ.
        second = caller.execute("fake", *GATED, run_id="r", auth_token="two", labels={"a": "b"})
        assert kinds(await second.until("text")) == ["started", "text:a"]
        other = await caller.execute("fake", "x", run_id="r").error()
        assert other.reason is Reason.RUN_ID_REUSED

        sidecar.open("g")
        assert kinds(await first.rest()) == ["text:b", "result"]
        assert [kind for kind in kinds(await second.rest()) if kind != "replay_done"] == ["text:b", "result"]
        again = await caller.execute("fake", *GATED, run_id="r").rest()
        assert sequences(again) == [1, 2, 3, 4]
        assert len(sidecar.requests("Execute")) == 1


async def test_the_adapter_gets_the_routers_orphan_time_and_no_deadline(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        request = pb.ExecuteRequest(adapter="fake", run_id="r", prompt='[{"end": "SUCCEEDED"}]')
        request.orphan_after.FromSeconds(5)
        call = caller.adapter.Execute(request, timeout=30)
        async for _event in call:
            pass
        (seen,) = sidecar.requests("Execute")
        assert seen.orphan_after.seconds == 60
        assert seen.run_id == "r"


async def test_a_run_whose_callers_are_gone_is_cancelled_after_its_time(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        request: dict[str, Any] = {"orphan_after": {"nanos": 200_000_000}}
        stream = caller.execute("fake", *GATED, run_id="r", **request)
        await stream.until("text")
        follower = caller.attach("r")
        await follower.until("replay_done")
        stream.cancel()
        # One that does not hold does not keep it.
        rest = await follower.rest()
        assert rest[-1].result.outcome == event_pb2.OUTCOME_CANCELLED
        assert sidecar.requests("Cancel")[0].reason == "no client is attached"


async def test_a_held_stream_keeps_the_run_and_without_hold_it_ends_at_once(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("text")
        holder = caller.attach("r", hold=True)
        await holder.until("replay_done")
        stream.cancel()
        assert not await happens(sidecar.gate("called Cancel"))
        sidecar.open("g")
        assert (await holder.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED

        sidecar.gate("g").clear()
        alone = caller.execute("fake", *GATED, run_id="s")
        await alone.until("text")
        follower = caller.attach("s")
        await follower.until("replay_done")
        alone.cancel()
        assert (await follower.rest())[-1].result.outcome == event_pb2.OUTCOME_CANCELLED


async def test_a_slow_reader_gets_everything_from_the_log_and_delays_no_other(folder: Path) -> None:
    # In portions that the next one waits for: only the reader that does not read may be slow here.
    portions = [({"gate": f"g{number}"}, {"flood": [4, 500_000]}) for number in range(15)]
    steps = ("a", *(step for portion in portions for step in portion), {"end": "SUCCEEDED"})
    async with beside(folder) as (caller, sidecar):
        stream = caller.execute("fake", *steps, run_id="r")
        await stream.until("text")
        slow = caller.attach("r", after=2, hold=True)
        await slow.until("replay_done")
        seen: list[event_pb2.AgentEvent] = []
        for number in range(15):
            sidecar.open(f"g{number}")
            seen += [await stream.next() for _ in range(4)]

        # The reader that reads sees everything, though the other one does not; and then that one does, too.
        everything = [*seen, *await stream.rest()]
        assert sequences(everything) == list(range(3, 64))
        assert await slow.rest() == everything


async def test_attach_replays_and_sends_pending_requests_again(folder: Path) -> None:
    async with beside(folder) as (caller, _sidecar):
        stream = caller.execute("fake", {"ask": "q"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("input_request")
        known = await caller.run("r")
        assert [request.id for request in known.pending_requests] == ["q"]

        late = caller.attach("r", after=2)
        copies = await late.until("replay_done")
        assert kinds(copies) == ["input_request", "replay_done"]
        assert copies[0].sequence == 0
        assert copies[0].input_request.id == "q"

        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="q"), timeout=PATIENCE_S)
        assert kinds(await late.rest()) == ["input_resolved", "result"]
        assert not (await caller.run("r")).pending_requests


async def test_attach_past_the_end_and_to_nothing(folder: Path) -> None:
    async with beside(folder) as (caller, _sidecar):
        await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="r").rest()
        ahead = await caller.attach("r", after=9).error()
        assert ahead.reason is Reason.SEQUENCE_AHEAD
        assert ahead.metadata["last_sequence"] == "2"
        replayed = await caller.attach("r").rest()
        assert kinds(replayed) == ["started", "result"]
        assert await caller.attach("r", after=2).rest() == replayed[1:], (
            "a reader that joins at the end gets the result"
        )
        assert (await caller.attach("x").error()).reason is Reason.RUN_NOT_FOUND
        assert (await caller.attach("x", adapter="fake").error()).reason is Reason.RUN_NOT_FOUND
        assert (await caller.attach("x", adapter="unknown").error()).reason is Reason.ADAPTER_NOT_FOUND


async def test_a_run_that_was_started_without_the_router_is_unknown_to_it(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        direct = Caller(f"unix:{folder}/a.sock")
        begun = direct.execute("fake", *GATED, run_id="r")
        await begun.until("text")
        assert (await caller.attach("r", adapter="fake").error()).reason is Reason.RUN_NOT_FOUND
        cancel = pb.CancelRequest(run_id="r", adapter="fake")
        assert (await failure(caller.adapter.Cancel(cancel, timeout=PATIENCE_S))).reason is Reason.RUN_NOT_FOUND
        respond = pb.RespondRequest(run_id="r", request_id="g", adapter="fake")
        assert (await failure(caller.adapter.Respond(respond, timeout=PATIENCE_S))).reason is Reason.RUN_NOT_FOUND
        assert not any(sidecar.requests(name) for name in ("Attach", "Cancel", "Respond"))
        await direct.close()


async def test_cancel_answers_with_how_the_run_ended(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("text")
        response = await caller.adapter.Cancel(pb.CancelRequest(run_id="r", reason="enough"), timeout=PATIENCE_S)
        assert response.outcome == event_pb2.OUTCOME_CANCELLED
        assert response.result_sequence == 3
        assert response.tree_confirmed_dead
        assert sidecar.requests("Cancel")[0].reason == "enough"
        assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_CANCELLED

        await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="s").rest()
        late = await caller.adapter.Cancel(pb.CancelRequest(run_id="s"), timeout=PATIENCE_S)
        assert late.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert len(sidecar.requests("Cancel")) == 1
        unknown = await failure(caller.adapter.Cancel(pb.CancelRequest(run_id="unknown")))
        assert unknown.reason is Reason.RUN_NOT_FOUND
        over = await failure(caller.adapter.Respond(pb.RespondRequest(run_id="s", request_id="q")))
        assert over.reason is Reason.REQUEST_NOT_FOUND


async def test_a_run_that_is_accepted_and_silent_is_cancelled_without_delay(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        stream = caller.execute("fake", "(silent)", run_id="r")
        await stream.run_id()
        async with asyncio.timeout(PATIENCE_S):
            await sidecar.gate("called Execute").wait()
        loop = asyncio.get_running_loop()
        began = loop.time()
        response = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert response.outcome == event_pb2.OUTCOME_CANCELLED
        # Without word from the adapter a Cancel is held back for ten seconds, so as not to come before the run.
        assert loop.time() - began < 5
        assert kinds(await stream.rest()) == ["started", "result"]


async def test_an_adapter_that_does_not_end_a_cancelled_run_loses_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.router.runs.cancellation._PROOF_S", 0.2)
    sidecar = Sidecar()

    async def deaf(_request: pb.CancelRequest, _context: Any) -> pb.CancelResponse:
        await asyncio.Event().wait()
        raise AssertionError

    sidecar.Cancel = deaf  # type: ignore[assignment,method-assign] # the test wants no answer
    async with beside(folder, sidecar) as (caller, _):
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("text")
        patient = asyncio.ensure_future(caller.adapter.Cancel(pb.CancelRequest(run_id="r")))
        request = pb.CancelRequest(run_id="r", grace=duration_pb2.Duration())
        response = await caller.adapter.Cancel(request, timeout=PATIENCE_S)
        assert response.outcome == event_pb2.OUTCOME_LOST
        assert (await patient).outcome == event_pb2.OUTCOME_LOST
        assert "did not end the run" in (await stream.rest())[-1].result.failure.message


async def test_who_asked_to_cancel_may_go_away(folder: Path) -> None:
    sidecar = Sidecar()
    answer = asyncio.Event()
    original = sidecar.Cancel

    async def slow(request: pb.CancelRequest, context: Any) -> pb.CancelResponse:
        sidecar.open("cancelling")
        try:
            await answer.wait()
        except asyncio.CancelledError:
            sidecar.open("given up")
            raise
        return await original(request, context)

    sidecar.Cancel = slow  # type: ignore[assignment,method-assign] # the test decides when it ends
    async with beside(folder, sidecar) as (caller, _):
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("text")
        call = caller.adapter.Cancel(pb.CancelRequest(run_id="r"))
        asking = asyncio.ensure_future(failure(call))
        await sidecar.gate("cancelling").wait()
        call.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not await happens(sidecar.gate("given up"))
        answer.set()
        assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_CANCELLED


@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        ({"relay": pb.Relay(first_sequence=5)}, "relay", Reason.INVALID_REQUEST),
        ({"run_id": "-bad"}, "run_id", Reason.INVALID_REQUEST),
        ({"orphan_after": {"seconds": -1}}, "orphan_after", Reason.INVALID_REQUEST),
        ({"task_key": "k" * 513}, "task_key", Reason.INVALID_REQUEST),
        ({"agent": pb.Agent(company_id="ä" * 257)}, "agent.company_id", Reason.INVALID_REQUEST),
        ({"session": pb.SessionSelector(key=pb.SessionKey())}, "session.key", Reason.INVALID_REQUEST),
        ({"session": pb.SessionSelector(resume_run_id="/")}, "session.resume_run_id", Reason.INVALID_REQUEST),
    ],
)
async def test_fields_that_are_not_taken_are_refused_with_their_path(
    folder: Path, fields: dict[str, Any], path: str, reason: Reason
) -> None:
    async with beside(folder) as (caller, sidecar):
        error = await caller.execute("fake", "a", **fields).error()
        assert error.reason is reason
        assert [violation.path for violation in error.violations] == [path]
        assert sidecar.requests("Execute") == []


async def test_a_grace_that_is_negative_is_refused_and_the_run_goes_on(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("text")
        cancel = pb.CancelRequest(run_id="r", grace=duration_pb2.Duration(seconds=-20))
        error = await failure(caller.adapter.Cancel(cancel, timeout=PATIENCE_S))
        assert (error.reason, [violation.path for violation in error.violations]) == (
            Reason.INVALID_REQUEST,
            ["grace"],
        )
        assert sidecar.requests("Cancel") == []
        assert not (await caller.run("r")).run.HasField("result")


async def test_a_page_of_runs_with_long_results_ends_early(folder: Path) -> None:
    async with beside(folder) as (caller, _sidecar):
        for number in range(20):
            await caller.execute("fake", {"says": "x" * 900_000}, {"end": "SUCCEEDED"}, run_id=f"r{number}").rest()
        found: list[str] = []
        token = ""
        while not found or token:
            request = router_pb2.ListRunsRequest(page_token=token)
            page = await caller.router.ListRuns(request, timeout=PATIENCE_S)
            assert page.ByteSize() < 4 * MIB, "the default limit of a gRPC client"
            found += [run.run_id for run in page.runs]
            token = page.next_page_token
        assert found == [f"r{number}" for number in reversed(range(20))]


async def test_runs_are_listed_newest_first_in_pages(folder: Path) -> None:
    async with beside(folder) as (caller, sidecar):
        for number in range(5):
            agent = pb.Agent(id="even" if number % 2 == 0 else "odd")
            await caller.execute(
                "fake", {"end": "SUCCEEDED"}, run_id=f"r{number}", agent=agent, labels={"n": str(number)}
            ).rest()
        live = caller.execute("fake", *GATED, run_id="live")
        await live.until("text")

        async def ids(**fields: Any) -> list[str]:
            listed = await caller.router.ListRuns(router_pb2.ListRunsRequest(**fields), timeout=PATIENCE_S)
            return [run.run_id for run in listed.runs]

        assert await ids() == ["live", "r4", "r3", "r2", "r1", "r0"]
        assert await ids(agent_id="odd") == ["r3", "r1"]
        assert await ids(live_only=True) == ["live"]
        assert await ids(outcome=event_pb2.OUTCOME_SUCCEEDED, labels={"n": "2"}) == ["r2"]
        assert await ids(adapter="other") == []
        first = await caller.router.ListRuns(router_pb2.ListRunsRequest(page_size=4))
        second = await caller.router.ListRuns(
            router_pb2.ListRunsRequest(page_size=4, page_token=first.next_page_token)
        )
        assert [run.run_id for run in [*first.runs, *second.runs]] == await ids()
        assert second.next_page_token == ""
        bad = await failure(caller.router.ListRuns(router_pb2.ListRunsRequest(page_token="x")))
        assert bad.reason is Reason.INVALID_PAGE_TOKEN
        summary = (await caller.run("r3")).run
        assert summary.agent_id == "odd"
        assert summary.result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert summary.instance_id == sidecar.instance_id
        assert summary.HasField("finished_at")
        live.cancel()


async def test_finished_runs_evicted_from_memory_are_read_from_the_log(folder: Path) -> None:
    async with beside(folder, max_retained_runs=2) as (caller, _sidecar):
        streams = [
            await caller.execute("fake", "a", {"end": "SUCCEEDED"}, run_id=f"r{number}").rest() for number in range(4)
        ]
        for number in range(4):
            assert (await caller.run(f"r{number}")).run.run_id == f"r{number}"
            assert await caller.attach(f"r{number}", 1).rest() == streams[number][1:]
            assert await caller.attach(f"r{number}", 3).rest() == streams[number][2:], "its result again"
            ahead = await caller.attach(f"r{number}", 4).error()
            assert (ahead.reason, ahead.metadata["last_sequence"]) == (Reason.SEQUENCE_AHEAD, "3")


async def test_finished_runs_are_forgotten_in_the_end(folder: Path) -> None:
    async with beside(folder, max_retained_runs=0, log_retain_s=0.0, log_lease_s=0.3) as (caller, _sidecar):
        await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="r").rest()
        async with asyncio.timeout(PATIENCE_S):
            while (await caller.router.ListRuns(router_pb2.ListRunsRequest())).runs:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.05)
        assert (await failure(caller.run("r"))).reason is Reason.RUN_NOT_FOUND


def test_the_configuration_is_complete_without_a_word() -> None:
    assert RouterConfig().listen == ()


@pytest.mark.parametrize(
    "fields", [{"env": {"API_KEY": "my-Secret-77"}}, {"config": {"env": {"API_KEY": "my-Secret-77"}}}]
)
async def test_a_label_that_repeats_a_variable_is_masked_where_it_is_kept(
    folder: Path, fields: dict[str, Any]
) -> None:
    async with beside(folder) as (caller, _sidecar):
        await caller.execute(
            "fake", {"end": "SUCCEEDED"}, run_id="r", labels={"note": "my-Secret-77"}, **fields
        ).rest()
        assert dict((await caller.run("r")).run.labels) == {"note": "[redacted]"}
    assert b"my-Secret-77" not in b"".join(path.read_bytes() for path in (folder / "s").glob("runs.db*"))
