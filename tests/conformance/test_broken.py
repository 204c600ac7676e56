"""For each rule an adapter that breaks it and no other: the kit names exactly that rule."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.conformance import RULES, Options, Report, Verdict, run_checks
from dragoman.conformance.check import CHECKS, Violation
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.conformance.breaks import BREAKS
from tests.conformance.broken_process import PROCESS_BREAKS
from tests.conformance.feature_breaks import FEATURE_BREAKS
from tests.conformance.file_breaks import FILE_BREAKS
from tests.conformance.leaks import HANDLES, LEAKS
from tests.conformance.missing_breaks import MISSING_BREAKS
from tests.conformance.patience import WRONG, examined
from tests.conformance.proxy import Break, Call, proxied
from tests.conformance.router_breaks import ROUTER_BREAKS, ROUTER_STRICTER
from tests.conformance.scripted import TYPE, ForklessAdapter, ModestAdapter, ScriptedAdapter, UnqueuedAdapter, serving
from tests.conformance.stricter_breaks import STRICTER
from tests.conformance.test_launch import is_alive
from tests.conformance.trace_breaks import TRACE_BREAKS
from tests.router.harness import config, routing

pytestmark = [pytest.mark.timeout(300), pytest.mark.conformance]

AT_ONCE = 16
CONFIG = '{"command": "{script}"}'
"""Names a program, which the kit makes absent; the scripted adapter does not start it."""
ADAPTER_BREAKS = {**BREAKS, **FEATURE_BREAKS, **MISSING_BREAKS, **FILE_BREAKS, **TRACE_BREAKS}
LARGE = {
    *("request.large", "request.too-large", "prompt.large", "output.slow-reader", "output.huge-line"),
    *("events.heartbeat", "attach.retention", "limits.grace", "run.orphan-after", "run.unheld-output"),
}
"""Rules that take megabytes or seconds to examine; each is examined where it is the one that is broken."""
MODEST = {
    f"unsupported.{name}"
    for name in (
        *("session", "permissions", "model", "system-prompt", "instructions", "skills", "mcp-servers"),
        *("changes", "attachments", "quota", "login"),
    )
} | {"send.refused"}
"""Rules of what an adapter must refuse that does not declare what the others here need."""
DRAIN = "router.drain"
"""The rule of a router's process."""
FORKLESS = {"unsupported.fork"}
"""The same for one that resumes sessions."""


def failed(report: Report) -> list[str]:
    """Return the rules that failed, with the faults of the kit."""
    return [f"{item.rule.id}: {item.message}" for item in report.outcomes if item.verdict in WRONG]


def assert_names(report: Report, rule_id: str) -> None:
    """Assert that one rule alone failed. A kit that fails itself where the rule is broken has not named it."""
    found = {item.rule.id: item.verdict for item in report.outcomes if item.verdict in WRONG}
    assert found == {rule_id: Verdict.FAILED}, failed(report)


async def examine(broken: Break, folder: Path, rule_id: str) -> Report:
    only = tuple(name for name in RULES if name not in LARGE or name == rule_id or not rule_id)
    make = ForklessAdapter if rule_id in FORKLESS else ModestAdapter if rule_id in MODEST else ScriptedAdapter
    async with (
        serving(f"unix:{folder / 'whole.sock'}", make()) as server,
        proxied(server.addresses[0], broken) as address,
    ):
        options = Options(address=address, adapter=TYPE, config=CONFIG, agent="script", only=only, at_once=AT_ONCE)
        return await examined(options, rule_id)


def test_each_rule_is_broken_by_an_adapter() -> None:
    assert sorted([*ADAPTER_BREAKS, *PROCESS_BREAKS, *ROUTER_BREAKS, DRAIN]) == sorted(RULES)


async def test_an_adapter_that_breaks_nothing_passes(tmp_path: Path) -> None:
    report = await examine(Break(), tmp_path, "")
    assert failed(report) == []
    skipped = {item.rule.id for item in report.outcomes if item.verdict is Verdict.SKIPPED}
    assert skipped == {*PROCESS_BREAKS, *ROUTER_BREAKS, DRAIN, *MODEST, *FORKLESS}


async def test_a_modest_adapter_that_breaks_nothing_passes(tmp_path: Path) -> None:
    report = await examine(Break(), tmp_path, min(MODEST))
    assert failed(report) == []
    assert {item.rule.id for item in report.outcomes if item.verdict is Verdict.PASSED} >= MODEST


@pytest.mark.parametrize("rule_id", ADAPTER_BREAKS)
async def test_the_kit_names_exactly_the_broken_rule(rule_id: str, tmp_path: Path) -> None:
    report = await examine(ADAPTER_BREAKS[rule_id], tmp_path, rule_id)
    assert_names(report, rule_id)


async def examine_some(
    broken: Break, folder: Path, *only: str, make: type[ScriptedAdapter] = ScriptedAdapter
) -> dict[str, tuple[Verdict, str]]:
    """Return what became of some rules, by ID."""
    async with (
        serving(f"unix:{folder / 'whole.sock'}", make()) as server,
        proxied(server.addresses[0], broken) as address,
    ):
        report = await run_checks(
            Options(address=address, adapter=TYPE, config=CONFIG, agent="script", only=only, at_once=AT_ONCE)
        )
    return {item.rule.id: (item.verdict, item.message) for item in report.outcomes}


@pytest.mark.parametrize(("rule_id", "message"), STRICTER)
async def test_the_kit_sees_what_an_adapter_only_claims(rule_id: str, message: str, tmp_path: Path) -> None:
    found = await examine_some(STRICTER[rule_id, message], tmp_path, rule_id, "run.failure-is-data")
    assert found[rule_id][0] is Verdict.FAILED
    assert message in found[rule_id][1]


def _over(call: Call) -> None:
    if call.method == "Send":
        raise DragomanError(Reason.RUN_FINISHED, "the run is over")


def _refuses(call: Call) -> None:
    if call.method == "Send":
        raise DragomanError(Reason.NOT_SUPPORTED, "no inputs")


def _too_late(_: Call, came: pb.AgentEvent) -> None:
    if came.message.input_id:
        came.input_dropped.CopyFrom(pb.InputDropped(input_id=came.message.input_id, reason="run_ended"))


@pytest.mark.parametrize(
    ("make", "broken", "verdict"),
    [
        (ScriptedAdapter, Break(request=_over), Verdict.SKIPPED),
        (UnqueuedAdapter, Break(event=_too_late), Verdict.SKIPPED),
        (ScriptedAdapter, Break(event=_too_late), Verdict.FAILED),
        (ScriptedAdapter, Break(request=_refuses), Verdict.FAILED),
    ],
    ids=["over", "too-late", "could-be-queued", "refused"],
)
async def test_a_turn_that_ends_before_its_input_is_no_fault(
    make: type[ScriptedAdapter], broken: Break, verdict: Verdict, tmp_path: Path
) -> None:
    found = await examine_some(broken, tmp_path, "send.steered", make=make)
    assert found["send.steered"][0] is verdict, found


@pytest.mark.parametrize(
    ("declared", "verdict"),
    [
        (pb.FEATURE_PER_CALL_USAGE, Verdict.FAILED),
        (pb.FEATURE_PER_MODEL_USAGE, Verdict.FAILED),
        (pb.FEATURE_UNSPECIFIED, Verdict.SKIPPED),
    ],
    ids=["per-call", "per-model", "neither"],
)
async def test_an_adapter_that_declares_usage_reports_some(
    declared: pb.Feature.ValueType, verdict: Verdict, tmp_path: Path
) -> None:
    def describe(call: Call, came: api.DescribeResponse) -> None:
        if call.method == "Describe":
            dropped = {pb.FEATURE_PER_CALL_USAGE, pb.FEATURE_PER_MODEL_USAGE} - {declared}
            kept = [item for item in came.capabilities.items if item.feature not in dropped]
            del came.capabilities.items[:]
            came.capabilities.items.extend(kept)

    def uncount(_: Call, came: pb.AgentEvent) -> None:
        body = came.WhichOneof("body")
        if body in {"usage", "result"}:
            usage = came.usage if body == "usage" else came.result.usage
            usage.Clear()

    found = await examine_some(Break(answer=describe, event=uncount), tmp_path, "usage.reported")
    assert found["usage.reported"][0] is verdict, found


async def test_a_real_agent_that_starts_no_mcp_server_breaks_the_rule(tmp_path: Path) -> None:
    async def run(_: api.ExecuteRequest) -> None:
        """Do nothing."""

    kit: Any = SimpleNamespace(
        setup=SimpleNamespace(agent="model"),
        path=lambda name: tmp_path / name,
        request=lambda *_, **__: api.ExecuteRequest(),
        run=run,
    )
    with pytest.raises(Violation, match="does not start its MCP server"):
        await CHECKS["settings.mcp-servers"](kit)
    (tmp_path / "started").touch()
    await CHECKS["settings.mcp-servers"](kit)


async def test_an_adapter_without_sequences_is_no_error_of_the_kit(tmp_path: Path) -> None:
    need_one = {
        *("request.relay", "request.next-attempt", "attach.at-end", "attach.ahead", "attach.live"),
        *("attach.pending-request", "cancel.outcome", "run.survives-connection"),
    }
    broken = Break(event=lambda _, came: came.ClearField("sequence"))
    found = await examine_some(broken, tmp_path, *need_one)
    assert {name: verdict for name, (verdict, _) in found.items() if verdict is not Verdict.FAILED} == {}
    assert {message for _, message in found.values()} == {"Execute: no event has a sequence"}


async def test_a_rule_that_has_seen_nothing_is_skipped(tmp_path: Path) -> None:
    rules = ("run.succeeds", "events.tool-results", "events.input-resolved", "batching.form")
    found = await examine_some(Break(), tmp_path, *rules)
    assert found == {
        "run.succeeds": (Verdict.PASSED, ""),
        "events.tool-results": (Verdict.SKIPPED, "no tool_call or tool_result was seen"),
        "events.input-resolved": (Verdict.SKIPPED, "no input_request was seen"),
        "batching.form": (Verdict.SKIPPED, "no batch was seen"),
    }
    found = await examine_some(Break(event=lambda _, came: came.ClearField("sequence")), tmp_path, "attach.replay")
    assert found["attach.replay"] == (Verdict.SKIPPED, "no event has a sequence: there is nothing to replay")


async def test_where_processes_cannot_be_searched_the_rule_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.conformance.launch.sys", SimpleNamespace(platform="darwin"))
    command = (sys.executable, "-m", "tests.conformance.broken_process")
    report = await run_checks(Options(command=command, agent="script", only=("process.nothing-left",)))
    (outcome,) = report.outcomes
    assert (outcome.verdict, outcome.message) == (
        Verdict.SKIPPED,
        "processes are not searched on darwin, only on Linux",
    )


@pytest.mark.parametrize("body", LEAKS)
async def test_a_secret_leaks_in_any_event(body: str, tmp_path: Path) -> None:
    found = await examine_some(LEAKS[body], tmp_path, "secrets.echo")
    assert found["secrets.echo"] == (Verdict.FAILED, f"a secret of env is in clear in {body}")


@pytest.mark.parametrize("place", HANDLES)
async def test_ids_and_handles_are_not_searched_for_secrets(place: str, tmp_path: Path) -> None:
    found = await examine_some(HANDLES[place], tmp_path, "secrets.echo")
    assert found["secrets.echo"] == (Verdict.PASSED, "")


async def examine_router(broken: Break, folder: Path, rule_id: str = "") -> Report:
    """Examine a router of this process in front of the scripted adapter."""
    async with (
        serving(f"unix:{folder / 'whole.sock'}") as server,
        routing(config(folder, addresses=(str(server.addresses[0]),))) as (router, _),
        proxied(router.addresses[0], broken) as address,
    ):
        options = Options(address=address, adapter=TYPE, agent="script", only=("registration.", "router."))
        return await examined(options, rule_id)


async def test_a_router_that_breaks_nothing_passes(tmp_path: Path) -> None:
    report = await examine_router(Break(), tmp_path)
    assert failed(report) == []
    assert report.count(Verdict.PASSED) == len(ROUTER_BREAKS)


@pytest.mark.parametrize("rule_id", ROUTER_BREAKS)
async def test_the_kit_names_exactly_the_broken_rule_of_routers(rule_id: str, tmp_path: Path) -> None:
    report = await examine_router(ROUTER_BREAKS[rule_id], tmp_path, rule_id)
    assert_names(report, rule_id)


@pytest.mark.parametrize(("rule_id", "message"), ROUTER_STRICTER)
async def test_the_kit_says_what_is_wrong_with_a_router(rule_id: str, message: str, tmp_path: Path) -> None:
    report = await examine_router(ROUTER_STRICTER[rule_id, message], tmp_path, rule_id)
    assert [one for one in failed(report) if one.startswith(f"{rule_id}: ") and message in one], failed(report)


@pytest.mark.parametrize("rule_id", PROCESS_BREAKS)
async def test_the_kit_names_exactly_the_broken_rule_of_processes(
    rule_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAK", rule_id)
    command = (sys.executable, "-m", "tests.conformance.broken_process")
    report = await examined(Options(command=command, agent="script", only=("process.",)), rule_id)
    assert_names(report, rule_id)


async def test_a_process_that_breaks_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    command = (sys.executable, "-m", "tests.conformance.broken_process")
    report = await examined(Options(command=command, agent="script", only=("process.",)))
    assert failed(report) == []
    assert report.count(Verdict.PASSED) == len(PROCESS_BREAKS)


async def test_agents_that_an_adapter_leaves_end_with_the_kit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left"
    monkeypatch.setenv("BREAK", "agents-left")
    monkeypatch.setenv("LEFT", str(left))
    command = (sys.executable, "-m", "tests.conformance.broken_process")
    report = await examined(Options(command=command, agent="script", only=("run.succeeds",)))
    assert failed(report) == []
    pids = left.read_text().split()
    assert pids
    assert [pid for pid in pids if is_alive(int(pid))] == []


@pytest.mark.parametrize("rule_id", ["", DRAIN])
async def test_the_kit_names_the_broken_rule_of_a_router_process(
    rule_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAK", rule_id)
    command = (sys.executable, "-m", "tests.conformance.broken_router")
    report = await examined(Options(command=command, adapter=TYPE, agent="script", only=(DRAIN,)), rule_id)
    (outcome,) = report.outcomes
    assert outcome.verdict is (Verdict.FAILED if rule_id else Verdict.PASSED), outcome.message
