"""Fallback, further tries, breakers and places: one run, several attempts, in streams the contract allows."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2

from tests.router.harness import PATIENCE_S, Caller, Stream, config, failure, gone, kinds, manifest, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.store.databases import run_log
from tests.router.test_processes import program

__all__ = ["run_log"]

AUTH = event_pb2.FAILURE_KIND_AUTH_REQUIRED
UPSTREAM = event_pb2.FAILURE_KIND_UPSTREAM_UNAVAILABLE
REPORTED = [event_pb2.FEATURE_TOOL_START, event_pb2.FEATURE_PROMPT]
FAILS = [{"failed": "AUTH_REQUIRED"}]
WORKS = ["b", {"end": "SUCCEEDED"}]


@contextlib.asynccontextmanager
async def among(
    folder: Path,
    types: Sequence[str] = ("one", "two", "three"),
    features: Any = REPORTED,
    schema: str = "",
    **fields: Any,
) -> AsyncIterator[tuple[Caller, dict[str, Sidecar]]]:
    """A router that has several adapters at configured addresses."""
    sidecars = {name: Sidecar(name, features=features, schema=schema) for name in types}
    addresses = {name: f"unix:{folder}/{name}.sock" for name in types}
    async with contextlib.AsyncExitStack() as stack:
        for name, sidecar in sidecars.items():
            await stack.enter_async_context(serving(sidecar, addresses[name]))
        configured = config(folder, addresses=tuple(addresses.values()), **fields)
        _router, caller = await stack.enter_async_context(routing(configured))
        for name in types:
            await caller.until(name, router_pb2.ADAPTER_STATE_READY)
        yield caller, sidecars


def request(
    scripts: Any, *chain: str, run_id: str = "r", on: Sequence[Any] = (AUTH,), **fields: Any
) -> pb.ExecuteRequest:
    """Return a request whose adapters do these things; ``chain`` may follow the first."""
    execute = pb.ExecuteRequest(run_id=run_id, adapter=next(iter(scripts)), prompt=json.dumps(scripts), **fields)
    if chain:
        execute.fallback.adapters.extend(chain)
        execute.fallback.on.extend(on)
    return execute


async def run_to_end(caller: Caller, asked: pb.ExecuteRequest) -> list[event_pb2.AgentEvent]:
    """Return all events of a run; they are checked, and the log has the same."""
    live = await Stream(caller.adapter.Execute(asked)).rest()
    check_stream(live)
    again = [event for event in await caller.attach(asked.run_id).rest() if event.sequence]
    assert again == [event for event in live if event.sequence]
    return live


def durable(events: Sequence[event_pb2.AgentEvent]) -> list[str]:
    return kinds([event for event in events if event.sequence])


def notices(events: Sequence[event_pb2.AgentEvent]) -> list[str]:
    return [event.notice.code for event in events if event.HasField("notice")]


async def test_a_failed_attempt_is_followed_by_the_next_adapter_in_a_fresh_session(
    folder: Path, run_log: str
) -> None:
    async with among(folder, run_log=run_log) as (caller, sidecars):
        handle = event_pb2.SessionHandle(adapter="one", native_id="s")
        asked = request({"one": [FAILS], "two": [WORKS]}, "two", "three", model="m", env={"API_KEY": "secret"})
        asked.session.handle.CopyFrom(handle)
        asked.config.update({"command": "/one", "model": "m", "maxTurns": 3})
        asked.workspace.cwd = str(folder)
        events = await run_to_end(caller, asked)
        assert durable(events) == ["started", "attempt_ended", "started", "text:b", "result"]
        assert [event.attempt for event in events if event.sequence] == [1, 1, 2, 2, 2]
        (ended,) = [event.attempt_ended for event in events if event.HasField("attempt_ended")]
        assert (ended.failure.kind, ended.next_adapter) == (AUTH, "two")
        (sent,) = sidecars["two"].requests("Execute")
        assert (sent.relay.first_sequence, sent.relay.first_attempt) == (3, 2)
        assert (sent.session.fresh, sent.session.handle.native_id) == (True, "")
        assert "fell back from 'one'" in sent.session.reason
        assert not sent.model
        assert dict(sent.config) == {"maxTurns": 3}
        assert (sent.workspace.cwd, sent.env["API_KEY"]) == (str(folder), "secret")
        assert not sent.HasField("fallback")
        summary = (await caller.run("r")).run
        assert (summary.adapter, summary.attempt) == ("two", 2)
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id="r", adapter="one"), timeout=PATIENCE_S)
        assert answer.outcome == event_pb2.OUTCOME_SUCCEEDED, "who started it at the first adapter still finds it"


@pytest.mark.parametrize(
    ("first", "fields", "follows"),
    [
        ([{"tool": "t"}, *FAILS], {}, False),
        ([{"tool": "t"}, *FAILS], {"after_side_effects": True}, True),
        (["said", *FAILS], {}, True),
        ([{"failed": "INTERNAL"}], {}, False),
        ([{"end": "CANCELLED"}], {}, False),
        ([{"end": "SUCCEEDED"}], {}, False),
    ],
)
async def test_only_what_the_request_names_is_followed_and_never_what_had_effects(
    folder: Path, first: list[Any], fields: dict[str, Any], follows: bool
) -> None:
    async with among(folder, ("one", "two")) as (caller, sidecars):
        asked = request({"one": [first], "two": [WORKS]}, "two")
        asked.fallback.MergeFrom(pb.Fallback(**fields))
        events = await run_to_end(caller, asked)
        assert ("attempt_ended" in kinds(events)) is follows
        assert bool(sidecars["two"].requests("Execute")) is follows


async def test_an_adapter_that_does_not_report_tools_may_have_called_them(folder: Path) -> None:
    async with among(folder, ("one", "two"), features=()) as (caller, sidecars):
        asked = request({"one": [[{"running": True}, *FAILS]], "two": [WORKS]}, "two")
        assert durable(await run_to_end(caller, asked)) == ["started", "state", "result"]
        assert not sidecars["two"].requests("Execute")


async def test_an_adapter_that_rejects_is_skipped_and_without_another_the_last_result_counts(
    folder: Path, run_log: str
) -> None:
    async with among(folder, run_log=run_log) as (caller, sidecars):
        refuses = [[{"refuse": "INVALID_REQUEST"}]]
        chain = ("unknown", "two", "three")
        events = await run_to_end(caller, request({"one": [FAILS], "two": refuses, "three": [WORKS]}, *chain))
        assert durable(events) == ["started", "attempt_ended", "started", "text:b", "result"]
        assert notices(events) == ["fallback_unknown", "fallback_refused", "fallback_refused"]
        asked = request({"one": [FAILS], "two": refuses, "three": refuses}, *chain, run_id="s", env={"A_KEY": "k"})
        events = await run_to_end(caller, asked)
        assert durable(events) == ["started", "attempt_ended", "result"]
        assert events[-1].result.failure.kind == AUTH
        summary = (await caller.run("s")).run
        assert summary.remarks
        assert (summary.adapter, summary.attempt) == ("one", 1), "who refused did not fail at it"
        assert summary.instance_id == sidecars["one"].instance_id
        listed = await caller.router.ListRuns(router_pb2.ListRunsRequest(adapter="one"))
        assert [run.run_id for run in listed.runs] == ["s"]


async def test_settings_of_one_adapter_reach_no_other(folder: Path) -> None:
    async with among(folder) as (caller, sidecars):
        asked = request({"one": [FAILS], "two": [FAILS], "three": [WORKS]}, "two", "three")
        asked.config.update({"cwd": str(folder), "of": "one"})
        asked.fallback.configs["two"].update({"of": "two", "sessionCompaction": {"maxSessionRuns": 5}})
        assert durable(await run_to_end(caller, asked))[-1] == "result"
        ((second,), (third,)) = (sidecars[name].requests("Execute") for name in ("two", "three"))
        assert (dict(second.config), second.workspace.cwd) == ({"of": "two"}, str(folder))
        assert dict(third.config) == {"cwd": str(folder), "of": "one"}


CLOSED = '{"properties": {"maxTurns": {}}, "additionalProperties": false}'


async def test_settings_that_the_next_adapter_does_not_know_are_refused_before_the_run(folder: Path) -> None:
    async with among(folder, schema=CLOSED) as (caller, sidecars):
        asked = request({"one": [FAILS], "two": [FAILS], "three": [WORKS]}, "unknown", "two", "three")
        asked.config.update({"maxTurns": 3, "of": "one", "command": "/one"})
        error = await Stream(caller.adapter.Execute(asked)).error()
        assert error.reason is Reason.INVALID_REQUEST
        assert [wrong.path for wrong in error.violations] == ["fallback.configs.two", "fallback.configs.three"]
        assert "'two'" in error.message
        assert "{} for none" in error.message
        assert error.message.endswith("{} for none")
        assert not sidecars["one"].requests("Execute")
        asked.fallback.configs["two"].SetInParent()
        asked.fallback.configs["three"].update({"maxTurns": 3})
        assert durable(await run_to_end(caller, asked))[-1] == "result"
        ((second,), (third,)) = (sidecars[name].requests("Execute") for name in ("two", "three"))
        assert second.HasField("config")
        assert (dict(second.config), dict(third.config)) == ({}, {"maxTurns": 3})


async def test_an_adapter_not_yet_described_is_asked_when_its_turn_comes(folder: Path) -> None:
    named = [manifest(folder, name, env={"SIDECAR_SCHEMA": CLOSED}) for name in ("one", "two")]
    async with routing(config(folder, manifests=tuple(named))) as (_router, caller):
        asked = request({"one": [FAILS], "two": [WORKS]}, "two")
        asked.config.update({"of": "one"})
        assert durable(await run_to_end(caller, asked))[-1] == "result", "the sidecar takes anything"
        asked.run_id = "s"
        error = await Stream(caller.adapter.Execute(asked)).error()
        assert error.reason is Reason.INVALID_REQUEST, "now it is known"
        asked.run_id = "r"
        assert durable(await run_to_end(caller, asked))[-1] == "result", "it ran, and is only asked for again"


async def test_a_run_that_waits_for_the_next_after_one_refused_is_cancelled_there(folder: Path) -> None:
    async with among(folder, max_runs={"three": 1}) as (caller, sidecars):
        busy = Stream(caller.adapter.Execute(request({"three": [[{"gate": "g"}]]}, run_id="busy")))
        await busy.until("started")
        scripts = {"one": [FAILS], "two": [[{"refuse": "INVALID_REQUEST"}]], "three": [WORKS]}
        asked = request(scripts, "two", "three")
        asked.admission.longest_wait.CopyFrom(duration_pb2.Duration(seconds=60))
        stream = Stream(caller.adapter.Execute(asked))
        while (await stream.next()).state.phase != event_pb2.RUN_PHASE_QUEUED:
            pass
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert answer.outcome == event_pb2.OUTCOME_CANCELLED
        assert (await stream.rest())[-1].result.subtype == "between_attempts"
        assert not sidecars["two"].requests("Cancel")
        assert len(sidecars["three"].requests("Execute")) == 1


async def test_if_none_is_there_the_result_is_the_adapters_own(folder: Path) -> None:
    async with among(folder, ("one",)) as (caller, _sidecars):
        events = await run_to_end(caller, request({"one": [FAILS]}, "unknown"))
        assert durable(events) == ["started", "result"]
        assert events[-1].origin == event_pb2.EVENT_ORIGIN_AGENT


async def test_nothing_follows_a_cancel(folder: Path) -> None:
    async with among(folder, ("one", "two")) as (caller, sidecars):
        first = [{"deaf": "g"}, {"gate": "g"}, *FAILS]  # it fails by itself while it is being cancelled
        stream = Stream(caller.adapter.Execute(request({"one": [first], "two": [WORKS]}, "two")))
        await stream.until("started")
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert answer.outcome == event_pb2.OUTCOME_FAILED
        assert durable(await stream.rest()) == ["result"]
        assert not sidecars["two"].requests("Execute")


async def test_a_cancel_between_two_tries_ends_the_run_there(
    folder: Path, run_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.router.policy.next_step.FIRST_DELAY_S", 20.0)  # so that there is time
    async with among(folder, ("one",), run_log=run_log) as (caller, sidecars):
        asked = request({"one": [[{"failed": "UPSTREAM_UNAVAILABLE"}], WORKS]})
        stream = Stream(caller.adapter.Execute(asked))
        before = await stream.until("attempt_ended")
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert answer.outcome == event_pb2.OUTCOME_CANCELLED
        assert answer.tree_confirmed_dead
        check_stream([*before, *await stream.rest()])
        assert len(sidecars["one"].requests("Execute")) == 1


async def test_what_failed_upstream_is_tried_again_visibly_and_not_for_ever(folder: Path) -> None:
    async with among(folder, ("one",)) as (caller, sidecars):
        fails = [{"failed": "UPSTREAM_UNAVAILABLE"}]
        events = await run_to_end(caller, request({"one": [fails, WORKS]}))
        assert durable(events) == ["started", "attempt_ended", "started", "text:b", "result"]
        (state,) = [event.state for event in events if event.HasField("state")]
        assert (state.phase, state.retry_attempt, state.retry_cause) == (event_pb2.RUN_PHASE_RETRYING, 1, UPSTREAM)
        assert 0.5 <= state.retry_delay.ToNanoseconds() / 1e9 <= 1
        assert [sent.relay.first_attempt for sent in sidecars["one"].requests("Execute")] == [0, 2]
        events = await run_to_end(caller, request({"one": [fails, fails, fails]}, run_id="s"))
        assert durable(events) == ["started", "attempt_ended", "started", "attempt_ended", "started", "result"]


async def test_what_an_agent_has_tried_again_itself_is_not_multiplied(folder: Path) -> None:
    async with among(folder, ("one",)) as (caller, sidecars):
        fails = [{"retried": True}, {"failed": "UPSTREAM_UNAVAILABLE"}]
        events = await run_to_end(caller, request({"one": [fails, WORKS]}))
        assert durable(events) == ["started", "result"]
        assert events[-1].result.failure.agent_retried
        assert len(sidecars["one"].requests("Execute")) == 1


@pytest.mark.parametrize("longest_wait_s", [0, 60])
async def test_a_run_that_is_tried_again_keeps_its_place(folder: Path, longest_wait_s: int) -> None:
    async with among(folder, ("one",), max_runs={"one": 1}) as (caller, sidecars):
        second = [{"gate": "g"}, *WORKS]
        first = Stream(caller.adapter.Execute(request({"one": [[{"failed": "UPSTREAM_UNAVAILABLE"}], second]})))
        before = await first.until("attempt_ended")
        other = request({"one": [WORKS]}, run_id="other")
        other.admission.longest_wait.CopyFrom(duration_pb2.Duration(seconds=longest_wait_s))
        stream = Stream(caller.adapter.Execute(other))
        if longest_wait_s:
            assert (await stream.next()).state.phase == event_pb2.RUN_PHASE_QUEUED
        else:
            assert (await stream.error()).reason is Reason.TOO_MANY_RUNS
        sidecars["one"].open("g")
        events = [*before, *await first.rest()]
        check_stream(events)
        assert durable(events) == ["started", "attempt_ended", "started", "text:b", "result"]
        assert not notices(events)
        await stream.rest_or_error()
        expected = ["r", "r", "other"] if longest_wait_s else ["r", "r"]
        assert [sent.run_id for sent in sidecars["one"].requests("Execute")] == expected


async def test_a_further_try_asks_the_breaker_too_and_its_refusal_is_called_so(folder: Path) -> None:
    async with among(folder, ("one",)) as (caller, sidecars):
        scripts = {"one": [[{"gate": "g"}, {"failed": "UPSTREAM_UNAVAILABLE"}], WORKS]}
        stream = Stream(caller.adapter.Execute(request(scripts)))
        before = await stream.until("started")
        await run_to_end(caller, request({"one": [FAILS]}, run_id="opens-it"))
        sidecars["one"].open("g")
        events = [*before, *await stream.rest()]
        check_stream(events)
        assert durable(events) == ["started", "attempt_ended", "result"]
        assert notices(events) == ["retry_refused"]
        assert events[-1].result.failure.kind == UPSTREAM
        assert [sent.run_id for sent in sidecars["one"].requests("Execute")] == ["r", "opens-it"]


async def test_what_failed_upstream_after_the_agent_spoke_is_not_tried_again(folder: Path) -> None:
    async with among(folder, ("one",)) as (caller, _sidecars):
        events = await run_to_end(caller, request({"one": [["said", {"failed": "UPSTREAM_UNAVAILABLE"}]]}))
        assert durable(events) == ["started", "text:said", "result"]


@pytest.mark.parametrize("kind", ["AUTH_REQUIRED", "PROCESS_CRASHED", "WALL_TIMEOUT"])
async def test_a_failure_without_a_chain_names_who_could_take_over(folder: Path, kind: str) -> None:
    fails = [{"failed": kind}]
    async with among(folder) as (caller, sidecars):
        capabilities = event_pb2.Capabilities(
            items=[
                event_pb2.Capability(feature=feature)
                for feature in (
                    event_pb2.FEATURE_PROMPT,
                    event_pb2.FEATURE_WORKSPACE,
                    event_pb2.FEATURE_MODEL_CHOICE,
                )
            ]
        )
        for name, sidecar in sidecars.items():
            sidecar.detections = [
                pb.Detection(
                    adapter=name,
                    available=True,
                    confidence=pb.DETECTION_CONFIDENCE_CONFIDENT,
                    auth=pb.AUTH_STATE_OK,
                    executable="/bin/sh" if name == "two" else "",
                    capabilities=capabilities,
                )
            ]
        await caller.adapter.Detect(pb.DetectRequest(), timeout=PATIENCE_S)
        events = await run_to_end(caller, request({"one": [fails]}))
        assert list(events[-1].result.fallback_candidates) == ["two", "three"]
        assert list((await caller.run("r")).run.result.fallback_candidates) == ["two", "three"]
        on_nothing = request({"one": [fails]}, run_id="s", fallback=pb.Fallback(adapters=["two"]))
        on_nothing.admission.ignore_breaker = True
        events = await run_to_end(caller, on_nothing)
        assert list(events[-1].result.fallback_candidates) == ["two", "three"], "a chain for no failure is none"


async def test_a_login_that_failed_is_not_asked_again_and_another_one_is(folder: Path) -> None:
    async with among(folder, ("one", "two")) as (caller, sidecars):
        await run_to_end(caller, request({"one": [FAILS]}, env={"API_KEY": "bad"}))
        scripts = {"one": [WORKS], "two": [WORKS]}
        bad = request(scripts, run_id="bad", env={"API_KEY": "bad"})
        refused = await Stream(caller.adapter.Execute(bad)).error()
        assert refused.reason is Reason.BREAKER_OPEN
        assert refused.retry_after_s is not None
        assert 0 < refused.retry_after_s <= 30
        assert "bad" not in refused.message
        assert "the login was rejected" in (await caller.entry("one")).remarks[0]
        good = request(scripts, run_id="good", env={"API_KEY": "good"})
        assert durable(await run_to_end(caller, good))[-1] == "result"
        chained = request(scripts, "two", run_id="chained", env={"API_KEY": "bad"})
        events = await run_to_end(caller, chained)
        assert durable(events) == ["started", "text:b", "result"]
        assert notices(events) == ["adapter_skipped"]
        assert [sent.run_id for sent in sidecars["two"].requests("Execute")] == ["chained"]
        bad.admission.ignore_breaker = True
        assert durable(await run_to_end(caller, bad))[-1] == "result"
        assert not (await caller.entry("one")).remarks, "what works closes it"


@pytest.mark.parametrize("two", ["refuses", "is full", "is kept away too"])
async def test_after_one_that_is_kept_away_who_refuses_is_passed_over(folder: Path, two: str) -> None:
    async with among(folder, max_runs={"two": 1}) as (caller, sidecars):
        await run_to_end(caller, request({"one": [FAILS]}, run_id="opens-it"))
        if two == "is kept away too":
            await run_to_end(caller, request({"two": [FAILS]}, run_id="opens-two"))
        elif two == "is full":
            busy = Stream(caller.adapter.Execute(request({"two": [[{"gate": "g"}]]}, run_id="busy")))
            await busy.until("started")
        scripts = {"one": [WORKS], "two": [[{"refuse": "INVALID_REQUEST"}]], "three": [WORKS]}
        events = await run_to_end(caller, request(scripts, "two", "three"))
        assert durable(events) == ["started", "text:b", "result"]
        assert notices(events) == ["adapter_skipped", "fallback_refused"]
        assert (await caller.run("r")).run.adapter == "three"
        assert not any(sent.run_id == "r" for sent in sidecars["one"].requests("Execute"))


async def test_if_none_takes_a_run_whose_first_adapter_is_kept_away_it_is_refused_for_that(folder: Path) -> None:
    async with among(folder) as (caller, _sidecars):
        await run_to_end(caller, request({"one": [FAILS]}, run_id="opens-it"))
        refuses = [[{"refuse": "INVALID_REQUEST"}]]
        asked = request({"one": [WORKS], "two": refuses, "three": refuses}, "two", "unknown", "three")
        error = await Stream(caller.adapter.Execute(asked)).error()
        assert (error.reason, error.metadata["adapter"]) == (Reason.BREAKER_OPEN, "one")
        assert error.retry_after_s
        forgotten = caller.router.GetRun(router_pb2.GetRunRequest(run_id="r"))
        assert (await failure(forgotten)).reason is Reason.RUN_NOT_FOUND
        asked.admission.ignore_breaker = True
        assert durable(await run_to_end(caller, asked)) == ["started", "text:b", "result"], "its id is free again"


async def test_a_run_that_waits_after_one_that_is_kept_away_is_cancelled_there(folder: Path) -> None:
    async with among(folder, max_runs={"three": 1}) as (caller, sidecars):
        await run_to_end(caller, request({"one": [FAILS]}, run_id="opens-it"))
        busy = Stream(caller.adapter.Execute(request({"three": [[{"gate": "g"}]]}, run_id="busy")))
        await busy.until("started")
        asked = request({"one": [WORKS], "two": [[{"refuse": "INVALID_REQUEST"}]]}, "two", "three")
        asked.admission.longest_wait.CopyFrom(duration_pb2.Duration(seconds=60))
        stream = Stream(caller.adapter.Execute(asked))
        while (await stream.next()).state.phase != event_pb2.RUN_PHASE_QUEUED:
            pass
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert answer.outcome == event_pb2.OUTCOME_CANCELLED
        assert (await stream.rest())[-1].result.subtype == "not_started"
        assert len(sidecars["three"].requests("Execute")) == 1


async def test_a_repaired_login_is_seen_by_the_next_detection(folder: Path) -> None:
    async with among(folder, ("one",)) as (caller, sidecars):
        await run_to_end(caller, request({"one": [FAILS]}))
        asked = request({"one": [WORKS]}, run_id="s")
        assert (await Stream(caller.adapter.Execute(asked)).error()).reason is Reason.BREAKER_OPEN
        sidecars["one"].detections[0].auth = pb.AUTH_STATE_OK
        await caller.adapter.Detect(pb.DetectRequest(adapter="one", refresh=True), timeout=PATIENCE_S)
        assert durable(await run_to_end(caller, asked))[-1] == "result"


async def test_an_adapter_that_is_full_refuses_or_lets_wait_as_the_caller_chooses(folder: Path) -> None:
    async with among(folder, ("one",), max_runs={"one": 1}) as (caller, sidecars):
        first = Stream(caller.adapter.Execute(request({"one": [[{"gate": "g"}, {"end": "SUCCEEDED"}]]})))
        await first.until("started")
        refused = await Stream(caller.adapter.Execute(request({"one": [WORKS]}, run_id="no"))).error()
        assert refused.reason is Reason.TOO_MANY_RUNS
        assert refused.retry_after_s
        waits = request({"one": [WORKS]}, run_id="waits")
        waits.admission.longest_wait.CopyFrom(duration_pb2.Duration(seconds=60))
        second = Stream(caller.adapter.Execute(waits))
        queued = await second.next()
        assert queued.state.phase == event_pb2.RUN_PHASE_QUEUED
        assert (await caller.run("waits")).run.phase == event_pb2.RUN_PHASE_QUEUED
        sidecars["one"].open("g")
        check_stream([queued, *await second.rest()])


async def test_a_reader_that_joins_a_waiting_run_gets_its_state_and_heartbeats(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.router.runs.notices.HEARTBEAT_AFTER_S", 0.05)
    async with among(folder, ("one",), max_runs={"one": 1}) as (caller, sidecars):
        first = Stream(caller.adapter.Execute(request({"one": [[{"gate": "g"}, {"end": "SUCCEEDED"}]]})))
        await first.until("started")
        waits = request({"one": [[{"gate": "h"}, {"end": "SUCCEEDED"}]]}, run_id="waits")
        waits.admission.longest_wait.CopyFrom(duration_pb2.Duration(seconds=60))
        second = Stream(caller.adapter.Execute(waits))
        joined = [await second.next(), await caller.attach("waits").next()]
        assert [event.state.phase for event in joined] == [event_pb2.RUN_PHASE_QUEUED] * 2
        follower = caller.attach("waits")
        assert kinds(await follower.until("heartbeat"))[:2] == ["state", "replay_done"]
        sidecars["one"].open("g")
        await second.until("started")
        late = caller.attach("waits")
        assert kinds(await late.until("replay_done")) == ["started", "replay_done"]
        waits.run_id = "waits-too"
        third = Stream(caller.adapter.Execute(waits))
        for _ in range(2):
            await third.until("heartbeat")
        sidecars["one"].open("h")
        assert kinds(await late.rest()) == ["result"], "an adapter has it, and says itself that it lives"


async def test_a_run_that_waits_too_long_fails_and_one_that_is_cancelled_never_starts(folder: Path) -> None:
    async with among(folder, ("one",), max_runs={"one": 1}) as (caller, sidecars):
        first = Stream(caller.adapter.Execute(request({"one": [[{"gate": "g"}]]})))
        await first.until("started")
        waits = request({"one": [WORKS]}, run_id="short")
        waits.admission.longest_wait.CopyFrom(duration_pb2.Duration(nanos=50_000_000))
        assert (await Stream(caller.adapter.Execute(waits)).rest())[-1].result.failure.code == "no_place"
        waits = request({"one": [WORKS]}, run_id="long")
        waits.admission.longest_wait.CopyFrom(duration_pb2.Duration(seconds=60))
        stream = Stream(caller.adapter.Execute(waits))
        await stream.next()
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id="long"), timeout=PATIENCE_S)
        assert answer.outcome == event_pb2.OUTCOME_CANCELLED
        assert durable(await stream.rest()) == ["result"]
        assert len(sidecars["one"].requests("Execute")) == 1


async def test_another_agent_takes_a_task_over_only_between_runs_and_in_a_fresh_session(folder: Path) -> None:
    async with among(folder, ("one", "two")) as (caller, sidecars):
        scripts = {"one": [[{"set": "native"}, {"gate": "g"}, {"end": "SUCCEEDED"}]], "two": [WORKS]}
        task: dict[str, Any] = {
            "task_key": "t",
            "agent": pb.Agent(id="a"),
            "workspace": pb.Workspace(cwd=str(folder)),
        }
        first = Stream(caller.adapter.Execute(request(scripts, **task)))
        await first.until("started")
        other = request(scripts, run_id="s", **task)
        other.adapter = "two"
        refused = await Stream(caller.adapter.Execute(other)).error()
        assert (refused.reason, refused.metadata["run_id"]) == (Reason.SESSION_BUSY, "r")
        sidecars["one"].open("g")
        await first.rest()
        assert durable(await run_to_end(caller, other))[-1] == "result"
        (sent,) = sidecars["two"].requests("Execute")
        assert not sent.session.HasField("handle")
        assert sent.workspace.cwd == str(folder)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"fallback": pb.Fallback(adapters=[""])}, "fallback.adapters"),
        ({"fallback": pb.Fallback(adapters=["x"] * 17)}, "fallback.adapters"),
        ({"fallback": pb.Fallback(on=[event_pb2.FAILURE_KIND_ADAPTER_LOST])}, "fallback.on"),
        ({"fallback": pb.Fallback(on=[event_pb2.FAILURE_KIND_UNSPECIFIED])}, "fallback.on"),
        ({"admission": {"longest_wait": {"seconds": -1}}}, "admission.longest_wait"),
    ],
)
async def test_an_impossible_fallback_is_rejected(folder: Path, fields: dict[str, Any], path: str) -> None:
    async with among(folder, ("one",)) as (caller, _sidecars):
        error = await Stream(caller.adapter.Execute(request({"one": [WORKS]}, **fields))).error()
        assert error.reason is Reason.INVALID_REQUEST
        assert error.violations[0].path == path


async def attached(caller: Caller, after: int) -> list[event_pb2.AgentEvent]:
    """Attach as soon as the run can be followed again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await caller.attach("r", after, hold=True).rest()
            except DragomanError as error:
                if error.reason is not Reason.ADAPTER_UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)  # a router that restarts is asked again, as its clients do


async def test_a_run_whose_router_is_killed_goes_on_in_its_second_attempt(folder: Path) -> None:
    features = {"SIDECAR_FEATURES": "FEATURE_TOOL_START"}
    named = [manifest(folder, name, env=features) for name in ("one", "two")]
    second = ["b", {"gate": "g"}, {"running": True}, {"end": "SUCCEEDED"}]
    async with program(folder, manifests=[str(path) for path in named]) as (process, caller):
        stream = Stream(caller.adapter.Execute(request({"one": [FAILS], "two": [second]}, "two")))
        before = await stream.until("text")
        entry = await caller.entry("two")
        process.kill()
        await process.wait()
        await stream.rest_or_error()
    async with routing(config(folder, manifests=tuple(named))) as (_router, caller):
        following = asyncio.ensure_future(attached(caller, before[-1].sequence))
        await caller.until("two", router_pb2.ADAPTER_STATE_READY)
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        rest = await following
        assert durable(rest) == ["state", "result"]
        whole = [event for event in await caller.attach("r").rest() if event.sequence]
        check_stream(whole)
        assert durable(whole) == ["started", "attempt_ended", "started", "text:b", "state", "result"]
        assert (await caller.run("r")).run.adapter == "two"
        again = await failure(caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=9))
        assert again.reason is Reason.REQUEST_NOT_FOUND
    await gone(entry.pid)


async def test_a_run_that_waited_elsewhere_begins_again_where_its_request_says(folder: Path) -> None:
    named = [manifest(folder, name) for name in ("one", "two")]
    asked = request({"one": [WORKS], "two": [WORKS]}, "two", run_id="s")
    asked.admission.longest_wait.CopyFrom(duration_pb2.Duration(seconds=60))
    async with program(folder, manifests=[str(path) for path in named], max_runs={"two": 1}) as (process, caller):
        await Stream(caller.adapter.Execute(request({"one": [FAILS]}, run_id="opens-it"))).rest()
        await Stream(caller.adapter.Execute(request({"two": [[{"gate": "g"}]]}, run_id="busy"))).until("started")
        stream = Stream(caller.adapter.Execute(asked))
        while (await stream.next()).state.phase != event_pb2.RUN_PHASE_QUEUED:
            pass
        assert (await caller.run("s")).run.adapter == "two"
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        process.kill()
        await process.wait()
    async with routing(config(folder, manifests=tuple(named))) as (_router, caller):
        events = await Stream(caller.adapter.Execute(asked)).rest()
        assert durable(events) == ["started", "text:b", "result"]
        assert (await caller.run("s")).run.adapter == "one"
