"""What becomes of a run that an adapter of its chain rejects, or that no other may follow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2

from tests.router.harness import PATIENCE_S, Stream, config, failure, kinds, manifest, routing
from tests.router.store.databases import run_log
from tests.router.test_fallback import AUTH, FAILS, WORKS, among, durable, notices, request, run_to_end

__all__ = ["run_log"]

SPAWN, LIMITED = event_pb2.FAILURE_KIND_SPAWN_FAILED, event_pb2.FAILURE_KIND_RATE_LIMITED


@pytest.mark.parametrize("on", [(SPAWN,), (LIMITED, AUTH)])
async def test_a_first_adapter_that_cannot_be_started_is_passed_over_where_the_request_names_that(
    folder: Path, on: Sequence[Any]
) -> None:
    named = [manifest(folder, "one", command=[str(folder / "nothing")]), manifest(folder, "two")]
    async with routing(config(folder, manifests=tuple(named))) as (_router, caller):
        asked = request({"one": [WORKS], "two": [WORKS]}, "absent", "two", on=on)
        if SPAWN not in on:
            assert (await Stream(caller.adapter.Execute(asked)).error()).reason is Reason.ADAPTER_UNAVAILABLE
            return
        events = await run_to_end(caller, asked)
        assert durable(events) == ["started", "text:b", "result"]
        assert notices(events) == ["fallback_unknown", "fallback_refused", "adapter_skipped"]
        asked = request({"one": [WORKS]}, "absent", on=on, run_id="s")
        assert (await Stream(caller.adapter.Execute(asked)).error()).reason is Reason.ADAPTER_UNAVAILABLE


@pytest.mark.parametrize("on", [(LIMITED,), (SPAWN, AUTH)])
@pytest.mark.parametrize("wait_ns", [0, 50_000_000])
async def test_a_first_adapter_without_a_place_is_passed_over_where_the_request_names_that(
    folder: Path, on: Sequence[Any], wait_ns: int
) -> None:
    async with among(folder, ("one", "two"), max_runs={"one": 1}) as (caller, sidecars):
        busy = Stream(caller.adapter.Execute(request({"one": [[{"gate": "g"}]]}, run_id="busy")))
        await busy.until("started")
        asked = request({"one": [WORKS], "two": [WORKS]}, "two", on=on)
        asked.admission.longest_wait.CopyFrom(duration_pb2.Duration(nanos=wait_ns))
        if LIMITED in on:
            events = await run_to_end(caller, asked)
            assert durable(events) == ["started", "text:b", "result"]
            assert notices(events) == ["adapter_skipped"]
            assert [event.state.phase for event in events if event.HasField("state")] == [1] * bool(wait_ns)
        elif wait_ns:
            assert (await run_to_end(caller, asked))[-1].result.failure.code == "no_place"
        else:
            assert (await Stream(caller.adapter.Execute(asked)).error()).reason is Reason.TOO_MANY_RUNS
        assert len(sidecars["one"].requests("Execute")) == 1


async def test_a_run_that_waited_and_got_no_slot_is_found_afterwards(folder: Path, run_log: str) -> None:
    async with among(folder, max_runs={"one": 1}, run_log=run_log) as (caller, sidecars):
        sidecars["two"].find_agent("/bin/sh")
        await caller.adapter.Detect(pb.DetectRequest(), timeout=PATIENCE_S)
        busy = Stream(caller.adapter.Execute(request({"one": [[{"gate": "g"}]]}, run_id="busy")))
        await busy.until("started")
        asked = request({"one": [WORKS]})
        asked.orphan_after.FromSeconds(60)
        refused = await Stream(caller.adapter.Execute(asked)).error()
        assert refused.reason is Reason.TOO_MANY_RUNS
        forgotten = caller.router.GetRun(router_pb2.GetRunRequest(run_id="r"))
        assert (await failure(forgotten)).reason is Reason.RUN_NOT_FOUND, "a refusal at once leaves nothing"
        asked.admission.longest_wait.CopyFrom(duration_pb2.Duration(nanos=300_000_000))
        stream = Stream(caller.adapter.Execute(asked))
        await stream.until("state")
        stream.cancel()
        events = await caller.attach("r").rest()
        check_stream(events)
        assert durable(events) == ["result"]
        result = events[-1].result
        assert (result.outcome, result.subtype) == (event_pb2.OUTCOME_FAILED, "not_started")
        assert (result.failure.kind, result.failure.code) == (LIMITED, "no_place")
        assert result.failure.retryable
        assert result.failure.HasField("work_begun")
        assert not result.failure.work_begun
        assert list(result.fallback_candidates) == ["two"]
        assert (await caller.run("r")).run.result == result
        listed = await caller.router.ListRuns(router_pb2.ListRunsRequest(adapter="one"))
        assert [run.run_id for run in listed.runs] == ["r", "busy"]
        sidecars["one"].open("g")
        assert (await run_to_end(caller, asked))[-1].result == result, "its id is its own"


async def test_a_run_that_waited_and_whose_call_is_wrong_is_refused_for_that(folder: Path) -> None:
    async with among(folder, ("one",), max_runs={"one": 1}) as (caller, sidecars):
        first = [{"gate": "g"}, {"end": "SUCCEEDED"}]
        busy = Stream(caller.adapter.Execute(request({"one": [first]}, run_id="busy")))
        await busy.until("started")
        asked = request({"one": [[{"refuse": "INVALID_REQUEST"}]]})
        asked.admission.longest_wait.FromSeconds(60)
        stream = Stream(caller.adapter.Execute(asked))
        await stream.until("state")
        sidecars["one"].open("g")
        assert (await stream.error()).reason is Reason.INVALID_REQUEST


async def test_a_run_that_waited_and_whose_chain_refuses_ends_where_it_was_meant_to_be(folder: Path) -> None:
    async with among(folder, ("one", "two"), max_runs={"one": 1}) as (caller, _sidecars):
        busy = Stream(caller.adapter.Execute(request({"one": [[{"gate": "g"}]]}, run_id="busy")))
        await busy.until("started")
        refuses = [[{"refuse": "INVALID_REQUEST"}]]
        asked = request({"one": [WORKS], "two": refuses}, "two", on=(LIMITED,))
        asked.admission.longest_wait.CopyFrom(duration_pb2.Duration(nanos=50_000_000))
        events = await run_to_end(caller, asked)
        assert durable(events) == ["result"]
        assert events[-1].result.failure.code == "no_place"
        assert notices(events) == ["adapter_skipped", "fallback_refused"]
        summary = (await caller.run("r")).run
        assert (summary.adapter, summary.instance_id, summary.attempt) == ("one", "", 0)


async def test_a_chain_that_is_not_followed_for_side_effects_is_reported_with_the_candidates(
    folder: Path, run_log: str
) -> None:
    async with among(folder, run_log=run_log) as (caller, sidecars):
        for sidecar in sidecars.values():
            sidecar.find_agent("/bin/sh")
        await caller.adapter.Detect(pb.DetectRequest(), timeout=PATIENCE_S)
        events = await run_to_end(caller, request({"one": [[{"tool": "t"}, *FAILS]]}, "two"))
        assert kinds(events)[-2:] == ["notice", "result"]
        assert notices(events) == ["fallback_withheld"]
        result = events[-1].result
        assert list(result.fallback_candidates) == ["three", "two"]
        assert list(result.failure.errors) == [events[-2].notice.message]
        assert list((await caller.run("r")).run.remarks) == [events[-2].notice.message]
        unnamed = await run_to_end(
            caller, request({"two": [[{"tool": "t"}, {"failed": "NETWORK"}]]}, "one", run_id="s")
        )
        assert not notices(unnamed)
        assert not unnamed[-1].result.fallback_candidates
        unchained = request({"two": [[{"tool": "t"}, *FAILS]]}, run_id="t")
        unchained.fallback.on.append(AUTH)
        assert not notices(await run_to_end(caller, unchained)), "no adapter would have followed"


async def test_who_did_not_take_a_run_is_found_where_the_run_is_attached_to(folder: Path) -> None:
    async with among(folder) as (caller, _sidecars):
        refuses = [[{"refuse": "INVALID_REQUEST"}]]
        scripts = {"one": [FAILS], "two": refuses, "three": [FAILS]}
        events = await run_to_end(caller, request(scripts, "absent", "two", "three", "absent"))
        (ended,) = [event.attempt_ended for event in events if event.HasField("attempt_ended")]
        assert "'two'" in ended.reason
        assert "'absent'" in ended.reason
        assert ["'two'" in error for error in events[-1].result.failure.errors] == [True, False]
        assert "'absent'" in events[-1].result.failure.errors[1]
        assert not events[-1].result.fallback_candidates
        again = await run_to_end(caller, request({"two": [FAILS], "one": [WORKS]}, "one", run_id="s"))
        assert durable(again) == ["started", "attempt_ended", "result"]
        (kept_away,) = again[-1].result.failure.errors
        assert "the login was rejected" in kept_away


async def test_why_the_first_adapter_was_not_asked_is_found_in_what_comes_then(folder: Path) -> None:
    async with among(folder) as (caller, _sidecars):
        await run_to_end(caller, request({"one": [FAILS]}, run_id="opens-it"))
        events = await run_to_end(caller, request({"one": [WORKS], "two": [FAILS], "three": [FAILS]}, "two", "three"))
        (ended,) = [event.attempt_ended for event in events if event.HasField("attempt_ended")]
        assert ended.reason.count("the login was rejected") == 1
        assert not events[-1].result.failure.errors, "it is said once"


def took_s(result: event_pb2.Result) -> float:
    return result.duration.ToNanoseconds() / 1e9


async def test_the_duration_and_the_limit_of_a_run_cover_all_its_attempts(folder: Path) -> None:
    async with among(folder, ("one", "two")) as (caller, sidecars):
        one = [[{"took": 0.1}, {"failed": "UPSTREAM_UNAVAILABLE"}], [{"took": 0.1}, *FAILS]]
        asked = request({"one": one, "two": [[{"took": 0.1}, *WORKS]]}, "two")
        asked.limits.wall.FromSeconds(60)
        result = (await run_to_end(caller, asked))[-1].result
        assert 0.5 < took_s(result) < PATIENCE_S
        first, second, third = (
            sent.limits.wall.ToNanoseconds() / 1e9
            for name in ("one", "two")
            for sent in sidecars[name].requests("Execute")
        )
        assert first == 60
        assert third < second < 59.5
        alone = request({"two": [[{"took": 0.1}, *WORKS]]}, run_id="s")
        assert took_s((await run_to_end(caller, alone))[-1].result) == 0.1, (
            "an adapter knows it better, if it has all of it"
        )


async def test_the_duration_of_a_run_covers_its_wait_too(folder: Path) -> None:
    async with among(folder, ("one",), max_runs={"one": 1}) as (caller, sidecars):
        busy = Stream(
            caller.adapter.Execute(request({"one": [[{"gate": "g"}, {"end": "SUCCEEDED"}]]}, run_id="busy"))
        )
        await busy.until("started")
        asked = request({"one": [[{"took": 1e-9}, *WORKS]]})
        asked.admission.longest_wait.FromSeconds(60)
        stream = Stream(caller.adapter.Execute(asked))
        await stream.until("state")
        sidecars["one"].open("g")
        assert took_s((await stream.rest())[-1].result) > 1e-6


async def test_no_run_goes_on_at_another_adapter_while_one_works_on_its_task(folder: Path) -> None:
    async with among(folder) as (caller, sidecars):
        task: dict[str, Any] = {"task_key": "t", "agent": pb.Agent(id="a")}
        scripts = {"one": [[{"gate": "g"}, *FAILS]], "two": [WORKS], "three": [WORKS]}
        beside = Stream(caller.adapter.Execute(request({"one": [[{"gate": "h"}, *FAILS]]}, run_id="s", **task)))
        await beside.until("started")
        stream = Stream(caller.adapter.Execute(request(scripts, "two", **task)))
        await stream.until("started")
        elsewhere = Stream(caller.adapter.Execute(request(scripts, "two", run_id="t")))
        await elsewhere.until("started")
        sidecars["one"].open("g")
        events = await stream.rest()
        assert kinds(events) == ["notice", "result"]
        assert notices(events) == ["fallback_refused"]
        assert "'s' of adapter 'one' is already working on this task" in events[-1].result.failure.errors[0]
        assert (await elsewhere.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED, "it has no task"
        again = request({"one": [WORKS], "two": [WORKS]}, "two", run_id="u", **task)
        refused = await Stream(caller.adapter.Execute(again)).error()
        assert refused.reason is Reason.BREAKER_OPEN, "its first adapter was skipped, and the other not allowed"
        sidecars["one"].open("h")
        await beside.rest()
        assert (await run_to_end(caller, again))[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_runs_of_one_task_that_fail_together_fall_back_together(folder: Path) -> None:
    async with among(folder, ("one", "two")) as (caller, sidecars):
        streams = []
        for run_id in ("r", "s"):
            plays = {"one": [[{"gate": "g"}, {"failed": "AUTH_REQUIRED"}]], "two": [WORKS]}
            asked = request(plays, "two", run_id=run_id)
            asked.task_key, asked.agent.id, asked.admission.ignore_breaker = "t", "a", True
            streams.append(Stream(caller.adapter.Execute(asked)))
            await streams[-1].until("started")
        sidecars["one"].open("g")
        for stream in streams:
            assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_a_run_that_waited_does_not_begin_beside_one_that_went_elsewhere_with_its_task(folder: Path) -> None:
    async with among(folder, ("one", "two"), max_runs={"one": 1}) as (caller, sidecars):
        plays = {"one": [[{"gate": "g"}, *FAILS]], "two": [[{"gate": "h"}, *WORKS]]}
        task: dict[str, Any] = {"task_key": "t", "agent": pb.Agent(id="a")}
        goes = Stream(caller.adapter.Execute(request(plays, "two", run_id="goes", **task)))
        await goes.until("started")
        waiting = []
        for run_id, of in (("between", {}), ("waits", task)):
            asked = request({"one": [[{"gate": run_id}, *WORKS]]}, run_id=run_id, **of)
            asked.admission.longest_wait.FromSeconds(60)
            asked.admission.ignore_breaker = True
            waiting.append(Stream(caller.adapter.Execute(asked)))
            await waiting[-1].until("state")
        sidecars["one"].open("g")
        await goes.until("attempt_ended")
        await goes.until("started")
        sidecars["one"].open("between")
        await waiting[0].rest()
        result = (await waiting[1].rest())[-1].result
        assert (result.failure.code, result.failure.retryable) == ("session_busy", True)
        assert [call.run_id for call in sidecars["one"].requests("Execute")] == ["goes", "between"]
        sidecars["two"].open("h")
        assert (await goes.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
