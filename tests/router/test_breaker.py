"""Breakers at a router: who is kept from an adapter after a login failed, for how long, and who is not."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.server import Context
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2

from tests.router.harness import PATIENCE_S, Caller, Stream, config, manifest, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_fallback import FAILS, WORKS, among, durable, notices, request, run_to_end

NOT_ENTERED = event_pb2.Failure(kind=event_pb2.FAILURE_KIND_AUTH_REQUIRED, message="Not entered in time.")
GATED_FAILURE = [{"gate": "g"}, {"failed": "AUTH_REQUIRED"}]


class Entering(Sidecar):
    """Logs its agent in with this outcome."""

    outcome = pb.LoginOutcome()

    async def Login(self, _request: pb.LoginRequest, context: Context) -> None:  # noqa: N802 - the contract's name
        await context.write(pb.LoginResponse(prompt=pb.LoginPrompt(url="https://login.example")).SerializeToString())
        await context.write(pb.LoginResponse(outcome=self.outcome).SerializeToString())


def with_settings(steps: list[Any], run_id: str, token: str = "", **settings: Any) -> pb.ExecuteRequest:
    asked = request({"one": [steps]}, run_id=run_id, auth_token=token)
    asked.config.update(settings)
    return asked


def queued(run_id: str, *chain: str, **fields: Any) -> pb.ExecuteRequest:
    asked = request({"one": [WORKS], "two": [WORKS]}, *chain, run_id=run_id, **fields)
    asked.admission.longest_wait.CopyFrom(duration_pb2.Duration(seconds=60))
    return asked


async def refused(caller: Caller, asked: pb.ExecuteRequest) -> DragomanError:
    return await Stream(caller.adapter.Execute(asked)).error()


async def works(caller: Caller, asked: pb.ExecuteRequest) -> None:
    events = await Stream(caller.adapter.Execute(asked)).rest()
    assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def begun(stream: Stream) -> DragomanError | None:
    """Wait until a run begins at its adapter, or return why it does not."""
    try:
        await stream.until("started")
    except DragomanError as error:
        return error
    return None


async def until_queued(stream: Stream) -> None:
    while (await stream.next()).state.phase != event_pb2.RUN_PHASE_QUEUED:
        pass


async def test_a_login_that_failed_keeps_no_other_out(folder: Path) -> None:
    path = manifest(folder, "one")
    async with routing(config(folder, manifests=(path,))) as (_router, caller):
        await Stream(caller.adapter.Execute(with_settings(FAILS, "a", "t", url="https://bad"))).rest()
        await works(caller, with_settings(WORKS, "b", "t", url="https://good"))
        await works(caller, with_settings(WORKS, "c", "other", url="https://bad"))
        await works(caller, with_settings(WORKS, "d", "t"))
        bad = await refused(caller, with_settings(WORKS, "e", "t", url="https://bad", effort="high"))
        assert bad.reason is Reason.BREAKER_OPEN
        assert "https" not in bad.message
        (remark,) = (await caller.entry("one")).remarks
        assert remark.startswith("circuit breaker open for ")


@pytest.mark.parametrize(
    ("outcome", "fields", "restored"),
    [
        (pb.LoginOutcome(), {}, True),
        (pb.LoginOutcome(failure=NOT_ENTERED), {}, False),
        (pb.LoginOutcome(), {"env": {"HOME": "/elsewhere"}}, False),
        (pb.LoginOutcome(), {"config": {"fields": {"command": {"string_value": "other"}}}}, False),
    ],
)
async def test_a_login_lets_runs_in_and_what_was_detected_before_it_is_stale(
    folder: Path, outcome: pb.LoginOutcome, fields: dict[str, Any], restored: bool
) -> None:
    sidecar, address = Entering("one"), f"unix:{folder}/one.sock"
    sidecar.outcome = outcome
    detect = pb.DetectRequest(adapter="one")
    async with serving(sidecar, address), routing(config(folder, addresses=(address,))) as (_router, caller):
        await caller.until("one", router_pb2.ADAPTER_STATE_READY)
        await caller.adapter.Detect(detect, timeout=PATIENCE_S)
        await run_to_end(caller, request({"one": [FAILS]}))
        asked = request({"one": [WORKS]}, run_id="s")
        assert (await refused(caller, asked)).reason is Reason.BREAKER_OPEN
        steps = [step async for step in caller.adapter.Login(pb.LoginRequest(adapter="one", **fields))]
        assert steps[-1].outcome == outcome
        (found,) = (await caller.adapter.Detect(detect, timeout=PATIENCE_S)).detections
        assert found.cached is not restored
        if restored:
            await works(caller, asked)
        else:
            assert (await refused(caller, asked)).reason is Reason.BREAKER_OPEN


async def test_a_model_out_of_quota_keeps_no_other_out(folder: Path) -> None:
    async with among(folder, ("one",)) as (caller, _sidecars):
        spent = [{"until": 2**33}, {"failed": "QUOTA_EXCEEDED"}]
        await run_to_end(caller, with_settings(spent, "a", model="m"))
        assert (await refused(caller, with_settings(WORKS, "b", model="m"))).reason is Reason.BREAKER_OPEN
        (remark,) = (await caller.entry("one")).remarks
        assert "for runs that use this machine's login with model 'm'" in remark
        await works(caller, with_settings(WORKS, "c", model="n"))
        await works(caller, with_settings(WORKS, "d"))


async def test_runs_that_fail_together_keep_others_away_as_one_does(folder: Path) -> None:
    async with among(folder, ("one",)) as (caller, sidecars):
        streams = [
            Stream(caller.adapter.Execute(request({"one": [GATED_FAILURE]}, run_id=f"r{number}")))
            for number in range(6)
        ]
        for stream in streams:
            await stream.until("started")
        sidecars["one"].open("g")
        for stream in streams:
            await stream.rest()
        error = await refused(caller, request({"one": [WORKS]}, run_id="next"))
        assert error.retry_after_s is not None
        assert 0 < error.retry_after_s <= 30


async def test_who_waited_for_a_place_is_refused_if_the_login_failed_meanwhile(folder: Path) -> None:
    async with among(folder, ("one", "two"), max_runs={"one": 1}) as (caller, sidecars):
        first = Stream(caller.adapter.Execute(request({"one": [GATED_FAILURE]})))
        await first.until("started")
        asked = [queued("waits"), queued("chained", "two"), queued("other", env={"API_KEY": "k"}), queued("forced")]
        asked[-1].admission.ignore_breaker = True
        waiting = [Stream(caller.adapter.Execute(one)) for one in asked]
        for stream in waiting:
            await until_queued(stream)
        sidecars["one"].open("g")
        await first.rest()
        failed = (await waiting[0].rest())[-1].result.failure
        assert (failed.kind, failed.code) == (event_pb2.FAILURE_KIND_AUTH_REQUIRED, "breaker_open")
        chained = await waiting[1].rest()
        assert notices(chained) == ["adapter_skipped"]
        for stream in (waiting[2], waiting[3]):
            assert durable(await stream.rest())[-1] == "result"
        assert [sent.run_id for sent in sidecars["one"].requests("Execute")] == ["r", "other", "forced"]
        assert [sent.run_id for sent in sidecars["two"].requests("Execute")] == ["chained"]
        assert not (await caller.entry("one")).remarks, "what works closes it"


@pytest.mark.parametrize("configured", [None, 2])
async def test_an_adapter_has_no_more_runs_than_it_says_it_can_have(folder: Path, configured: int | None) -> None:
    path = manifest(folder, "one", env={"SIDECAR_MOST": "1"})
    limits = {} if configured is None else {"one": configured}
    async with routing(config(folder, manifests=(path,), max_runs=limits)) as (_router, caller):
        gated = {"one": [[{"gate": "g"}, {"end": "SUCCEEDED"}]]}
        streams = [Stream(caller.adapter.Execute(request(gated, run_id=f"r{number}"))) for number in range(3)]
        reasons = [answer for answer in await asyncio.gather(*map(begun, streams)) if answer is not None]
        assert [(error.reason, error.metadata["limit"]) for error in reasons] == [(Reason.TOO_MANY_RUNS, "1")] * 2


async def test_who_waits_for_a_place_is_not_the_probe(folder: Path) -> None:
    async with among(folder, ("one",), max_runs={"one": 1}) as (caller, sidecars):
        over = [{"until": 1}, {"failed": "QUOTA_EXCEEDED"}]
        await run_to_end(caller, request({"one": [over]}, env={"API_KEY": "k"}))
        busy = Stream(caller.adapter.Execute(request({"one": [[{"gate": "g"}, {"end": "SUCCEEDED"}]]}, run_id="s")))
        await busy.until("started")
        streams = [
            Stream(caller.adapter.Execute(queued(run_id, env={"API_KEY": "k"}))) for run_id in ("first", "second")
        ]
        for stream in streams:
            await until_queued(stream)
        await caller.adapter.Cancel(pb.CancelRequest(run_id="first"), timeout=PATIENCE_S)
        sidecars["one"].open("g")
        assert durable(await streams[1].rest())[-1] == "result"


@pytest.mark.parametrize("ends", ["SUCCEEDED", "AUTH_REQUIRED"])
async def test_a_quotas_end_is_not_forgotten_for_a_run_beside_it(folder: Path, ends: str) -> None:
    async with among(folder, ("one",)) as (caller, sidecars):
        last = {"end": ends} if ends == "SUCCEEDED" else {"failed": ends}
        beside = Stream(caller.adapter.Execute(request({"one": [[{"gate": "g"}, last]]}, run_id="beside")))
        await beside.until("started")
        used_up = [{"until": 2**33}, {"failed": "QUOTA_EXCEEDED"}]
        await run_to_end(caller, request({"one": [used_up]}))
        sidecars["one"].open("g")
        await beside.rest()
        error = await refused(caller, request({"one": [WORKS]}, run_id="next"))
        assert error.retry_after_s is not None
        assert error.retry_after_s > 3600


async def test_an_adapter_whose_open_period_is_over_is_a_candidate_again(folder: Path) -> None:
    async with among(folder) as (caller, sidecars):
        for sidecar in sidecars.values():
            sidecar.find_agent("/bin/sh")
        await caller.adapter.Detect(pb.DetectRequest(), timeout=PATIENCE_S)
        quota = [[{"until": 1}, {"failed": "QUOTA_EXCEEDED"}], FAILS]
        await run_to_end(caller, request({"two": quota[:1]}, run_id="over"))
        await run_to_end(caller, request({"three": quota[1:]}, run_id="not-over"))
        assert not (await caller.entry("two")).remarks
        assert (await caller.entry("three")).remarks
        events = await run_to_end(caller, request({"one": [FAILS]}))
        assert list(events[-1].result.fallback_candidates) == ["two"]


@pytest.mark.parametrize("sign", ["text", {"tool": "t"}])
async def test_others_wait_for_a_probe_only_until_its_agent_works(folder: Path, sign: Any) -> None:
    async with among(folder, ("one",), features=[event_pb2.FEATURE_PROMPT]) as (caller, sidecars):
        await run_to_end(caller, request({"one": [[{"until": 1}, {"failed": "QUOTA_EXCEEDED"}]]}))
        steps = [{"running": True}, {"gate": "g"}, sign, {"gate": "h"}, {"end": "SUCCEEDED"}]
        probe = Stream(caller.adapter.Execute(request({"one": [steps]}, run_id="probe")))
        await probe.until("state")
        error = await refused(caller, request({"one": [WORKS]}, run_id="next"))
        assert error.reason is Reason.BREAKER_OPEN
        assert error.retry_after_s is not None
        assert 2 < error.retry_after_s <= 10
        assert "a probe run is in progress" in error.message
        assert "a probe run is in progress" in (await caller.entry("one")).remarks[0]
        sidecars["one"].open("g")
        await probe.until("text" if sign == "text" else "tool_call")
        assert not (await caller.entry("one")).remarks
        await works(caller, request({"one": [WORKS]}, run_id="next"))
        sidecars["one"].open("h")
        await probe.rest()


async def test_who_watches_hears_that_a_time_is_over(folder: Path) -> None:
    async with among(folder, ("one",)) as (caller, _sidecars):
        watch = caller.router.WatchAdapters(router_pb2.WatchAdaptersRequest(), timeout=PATIENCE_S)
        over = [{"until": int(time.time()) + 2}, {"failed": "QUOTA_EXCEEDED"}]
        await run_to_end(caller, request({"one": [over]}))
        seen: list[bool] = []
        async for listed in watch:
            if (is_open := bool(listed.adapters[0].remarks)) or seen:
                seen.append(is_open)
            if seen and not is_open:
                break
        assert seen[0]
        watch.cancel()


async def test_who_is_kept_away_reads_what_a_result_would_say(folder: Path) -> None:
    async with among(folder) as (caller, sidecars):
        for name in ("two", "three"):
            sidecars[name].find_agent("/bin/sh")
        await caller.adapter.Detect(pb.DetectRequest(), timeout=PATIENCE_S)
        login = [{"login": "https://login"}, {"words": "Invalid API key"}, *FAILS]
        await run_to_end(caller, request({"one": [login]}))
        error = await refused(caller, request({"one": [WORKS]}, run_id="next"))
        assert error.metadata == {
            "adapter": "one",
            "failure_kind": "FAILURE_KIND_AUTH_REQUIRED",
            "failure_message": "Invalid API key",
            "login_url": "https://login",
            "candidates": "three,two",
        }
        on = (event_pb2.FAILURE_KIND_NETWORK,)
        chained = await refused(caller, request({"one": [WORKS]}, "two", run_id="chained", on=on))
        assert "candidates" not in chained.metadata, "as a result with a chain"


async def test_of_an_agent_that_crashes_the_others_are_named(folder: Path) -> None:
    async with among(folder, breaker_crashes=1) as (caller, sidecars):
        for name in ("one", "two"):
            sidecars[name].find_agent("/bin/sh")
        await caller.adapter.Detect(pb.DetectRequest(), timeout=PATIENCE_S)
        await run_to_end(caller, request({"one": [[{"failed": "PROCESS_CRASHED"}]]}))
        error = await refused(caller, request({"one": [WORKS]}, run_id="next"))
        assert error.metadata == {
            "adapter": "one",
            "failure_kind": "FAILURE_KIND_PROCESS_CRASHED",
            "failure_message": "PROCESS_CRASHED",
            "candidates": "two",
        }


LOGINS = {"no": pb.AUTH_STATE_MISSING, "ok": pb.AUTH_STATE_OK, "?": pb.AUTH_STATE_UNKNOWN}


@pytest.mark.parametrize(
    ("failure", "looks", "closes"),
    [
        ("AUTH_REQUIRED", ["no", "FAILS", "ok"], True),
        ("AUTH_REQUIRED", ["FAILS", "no", "ok"], True),
        ("AUTH_REQUIRED", ["FAILS", "ok!"], True),
        ("AUTH_REQUIRED", ["FAILS", "ok"], False),
        ("AUTH_REQUIRED", ["ok", "FAILS", "ok!"], False),
        ("AUTH_REQUIRED", ["ok", "FAILS", "?hangs!", "ok!"], False),
        ("AUTH_REQUIRED", ["no", "FAILS", "no!"], False),
        ("QUOTA_EXCEEDED", ["no", "FAILS", "ok!"], False),
    ],
)
async def test_only_a_repaired_login_closes_it(folder: Path, failure: str, looks: list[str], closes: bool) -> None:
    async with among(folder, ("one",)) as (caller, sidecars):
        found = sidecars["one"].detections[0]
        found.executable = "/gone"  # so that no finding is cached
        for look in looks:
            if look == "FAILS":
                await run_to_end(caller, request({"one": [[{"failed": failure}]]}))
                continue
            found.auth = LOGINS[look.removesuffix("!").removesuffix("hangs")]
            del found.problems[:]
            if "hangs" in look:
                found.problems.add(code="timeout")
            asked = pb.DetectRequest(adapter="one", refresh=look.endswith("!"))
            await caller.adapter.Detect(asked, timeout=PATIENCE_S)
        assert bool((await caller.entry("one")).remarks) is not closes
