"""Running the checks against a target, and judging what they say."""

import asyncio
import enum
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from dragoman.conformance import script
from dragoman.conformance.check import (
    CHECKS,
    RULES,
    STATUS_CHECKS,
    STREAM_CHECKS,
    STREAM_KINDS,
    Level,
    Rule,
    Skip,
    Violation,
)
from dragoman.conformance.kit import KIT_VARIABLE, AgentKind, Kit, Seen, Setup
from dragoman.conformance.launch import LaunchError, Process, end_left, launched
from dragoman.conformance.streams import shown
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.duties import declarations
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.limits import channel_options
from dragoman.protocol.statuses import from_rpc_error
from dragoman.testkit.model_server import ModelServer
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2, router_pb2_grpc
from msgspec import Struct, field
from msgspec.structs import replace

CHECK_S = 20.0
"""How long one check may take, in seconds, before the target counts as hanging; also a single call at the start."""
AT_ONCE = 6
"""How many checks run at the same time."""
_NOTICED_S = 0.5
"""How long after a call that failed the end of its server may be noticed, in seconds."""


class Verdict(enum.StrEnum):
    """What became of a rule."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"
    """The kit itself failed."""


class Outcome(Struct, frozen=True):
    """What became of one rule."""

    rule: Rule
    verdict: Verdict
    message: str = ""
    duration_s: float = 0.0
    is_expected: bool = False
    """Whether the failure is in the list of expected ones."""


class Progress(Struct, frozen=True):
    """How far the kit is.

    Attributes:
        done: how many rules are examined.
        total: how many there are.
        running: the IDs of the rules that are being examined, first come first.
        outcome: what became of the rule that was done last, if one has just been done.
    """

    done: int
    total: int
    running: tuple[str, ...]
    outcome: Outcome | None = None


class Options(Struct, frozen=True):
    """How to run the kit.

    Attributes:
        address: where the target listens; empty if ``command`` starts it.
        command: the program that serves an adapter, and its arguments.
        adapter: the adapter's type or alias; needed at a router.
        config: the ``config`` of every run, as JSON text, with ``{script}``, ``{model_url}`` and
            ``{folder}`` replaced.
        env: variables of every run, with the same placeholders.
        agent: the deterministic agent; ``None`` concludes it from the placeholders.
        model: a scripted model server that runs; ``None`` starts one where ``{model_url}`` names it.
        only: IDs of rules, or their beginnings; empty for all.
        expected_failures: IDs of rules that the target is known to violate.
        at_once: how many checks run at the same time.
        check_s: how long one check may take, in seconds; real agents may start slowly.
        log: the file for what the started target prints; ``None`` keeps none of it.
    """

    address: str = ""
    command: tuple[str, ...] = ()
    adapter: str = ""
    config: str = "{}"
    env: dict[str, str] = field(default_factory=dict)
    agent: AgentKind | None = None
    model: ModelServer | None = None
    only: tuple[str, ...] = ()
    expected_failures: frozenset[str] = frozenset()
    at_once: int = AT_ONCE
    check_s: float = CHECK_S
    log: Path | None = None


class Report(Struct, frozen=True):
    """All outcomes, in the order of the rules; only those so far if the target ended."""

    target: str
    described: api.DescribeResponse
    is_router: bool
    outcomes: tuple[Outcome, ...]
    stale: tuple[str, ...]
    """Expected failures that did not fail."""
    duration_s: float
    stopped: str = ""
    """How the target that the kit had started ended by itself, with what it printed last; empty if it did not."""

    def count(self, verdict: Verdict) -> int:
        """Return how many rules have a verdict."""
        return sum(outcome.verdict is verdict for outcome in self.outcomes)

    @property
    def violations(self) -> list[Outcome]:
        """Failed MUST rules that are not expected to fail."""
        failed = [outcome for outcome in self.outcomes if outcome.verdict is Verdict.FAILED]
        return [outcome for outcome in failed if outcome.rule.level is Level.MUST and not outcome.is_expected]

    @property
    def unexamined(self) -> tuple[str, ...]:
        """What the adapter declares and rules are for, all of which were skipped: features, duties, a mode."""
        declared = declarations(self.described)
        verdicts: dict[str, set[Verdict]] = {}
        for outcome in self.outcomes:
            for name in declared.intersection(outcome.rule.declared_by):
                verdicts.setdefault(name, set()).add(outcome.verdict)
        return tuple(sorted(name for name, found in verdicts.items() if found == {Verdict.SKIPPED}))

    @property
    def exit_code(self) -> int:
        """0: conformant; 1: a MUST rule is violated, or an expected failure is stale; 3: target or kit failed."""
        if self.stopped:
            return 3
        if self.violations or self.stale:
            return 1
        return 3 if self.count(Verdict.ERROR) else 0


async def run_checks(options: Options, on_progress: Callable[[Progress], object] = lambda _: None) -> Report:
    """Run the kit.

    Args:
        options: what to run against, and how.
        on_progress: is called when a rule begins to be examined, and when its outcome is known.

    Raises:
        LaunchError: the target cannot be started or reached, or is none.
        ValueError: the configuration is not a JSON object, or an entry of ``only`` fits no rule.
        OSError: the log cannot be written.
    """
    began = time.monotonic()
    if unknown := [name for name in options.only if not any(rule_id.startswith(name) for rule_id in RULES)]:
        raise ValueError(f"no rule is {unknown[0]!r} or begins so")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-conformance-")))
        setup = await _prepared(options, folder, stack)
        address = options.address
        process = None
        if options.command:
            process = await stack.enter_async_context(
                launched(options.command, folder / "target", slowness=setup.slowness, log=options.log)
            )
            address = process.address
        kit = await stack.enter_async_context(connected(address, setup, Seen()))
        outcomes, stopped = await _judge(kit, options, process, on_progress)
    failed = {outcome.rule.id for outcome in outcomes if outcome.verdict is Verdict.FAILED}
    examined = {outcome.rule.id for outcome in outcomes}
    stale = tuple(sorted((options.expected_failures & examined) - failed))
    target = options.address or " ".join(options.command)
    return Report(target, kit.described, kit.is_router, outcomes, stale, time.monotonic() - began, stopped)


async def _prepared(options: Options, folder: Path, stack: AsyncExitStack) -> Setup:
    """Make the scripted agent available, as far as the configuration names it."""
    texts = [options.config, *options.env.values()]
    values = {"script": str(_script_program(folder)), "folder": str(folder)}
    model = options.model
    if model is None and any("{model_url}" in text for text in texts):
        model = await stack.enter_async_context(ModelServer())
    if model is not None:
        values["model_url"] = model.url
    kind: AgentKind = "none"
    if any("{script}" in text for text in texts):
        kind = "script"
    elif "model_url" in values:
        kind = "model"

    def filled(text: str) -> str:
        for name, value in values.items():
            text = text.replace("{" + name + "}", value)
        return text

    config: Any = json.loads(filled(options.config))
    if not isinstance(config, dict):
        raise ValueError("the configuration is not a JSON object")  # noqa: TRY004 - as the other faults of JSON
    env = {name: filled(value) for name, value in options.env.items()}
    setup = Setup(options.adapter, config, env, options.agent or kind, folder, options.command)
    setup = replace(
        setup, mark=secrets.token_hex(8), script=values["script"], slowness=max(1.0, options.check_s / CHECK_S)
    )
    stack.push_async_callback(end_left, setup.mark, KIT_VARIABLE)
    return setup if model is None else replace(setup, model_requests=partial(_asked, model, []))


def _asked(model: ModelServer, known: list[str]) -> list[str]:
    """Return all requests as text; those that were known are not written anew, as bodies are large."""
    new = model.requests[len(known) :]
    known += [f"{request.path} {json.dumps(request.body, ensure_ascii=False)}" for request in new]
    return known


def _script_program(folder: Path) -> Path:
    program = folder / "dragoman-script"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{script.__file__}" "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    return program


@asynccontextmanager
async def connected(address: str, setup: Setup, seen: Seen) -> AsyncIterator[Kit]:
    """Yield a kit for a target.

    Raises:
        LaunchError: it cannot be reached, or is no adapter and no router.
    """
    try:
        channel = open_channel(address, channel_options(address))
    except DragomanError as error:
        raise LaunchError(error.message) from error
    async with channel:
        kit = Kit(channel, setup, seen, connected)
        kit.address = address
        try:
            kit.is_router = await _is_router(channel)
            request = api.DescribeRequest(adapter=setup.adapter)
            kit.described = await kit.stub.Describe(request, timeout=CHECK_S * setup.slowness)
        except grpc.aio.AioRpcError as error:
            hint = " Name its adapter." if kit.is_router and not setup.adapter else ""
            raise LaunchError(f"{address}: Describe failed: {shown(from_rpc_error(error))}.{hint}") from error
        yield kit


async def _is_router(channel: grpc.aio.Channel) -> bool:
    stub: Any = router_pb2_grpc.RouterServiceStub(channel)
    try:
        await stub.ListAdapters(router_pb2.ListAdaptersRequest(), timeout=CHECK_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return False
        raise
    return True


class _Course:
    """What is known of the rules while they are examined, in one place."""

    def __init__(self, rules: Sequence[Rule], options: Options, on_progress: Callable[[Progress], object]) -> None:
        self._rules = rules
        self._expected = options.expected_failures
        self._on_progress = on_progress
        self._running: list[str] = []
        self._outcomes: dict[str, Outcome] = {}

    def begin(self, rule: Rule) -> None:
        self._running.append(rule.id)
        self._report(None)

    def note(self, outcome: Outcome) -> None:
        if outcome.rule.id in self._running:
            self._running.remove(outcome.rule.id)
        is_expected = outcome.verdict is Verdict.FAILED and outcome.rule.id in self._expected
        outcome = replace(outcome, is_expected=is_expected)
        self._outcomes[outcome.rule.id] = outcome
        self._report(outcome)

    def _report(self, outcome: Outcome | None) -> None:
        self._on_progress(Progress(len(self._outcomes), len(self._rules), tuple(self._running), outcome))

    def running(self) -> list[str]:
        return list(self._running)

    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(self._outcomes[rule.id] for rule in self._rules if rule.id in self._outcomes)


class _TargetEndedError(Exception):
    """The target that the kit started has ended by itself; the text says how."""


async def _judge(
    kit: Kit, options: Options, process: Process | None, on_progress: Callable[[Progress], object]
) -> tuple[tuple[Outcome, ...], str]:
    """Examine every rule: first those with calls, then those that look at what these calls have shown.

    Returns:
        the outcomes, and why they are not all: how the target ended.
    """
    rules = [rule for rule in RULES.values() if not options.only or rule.id.startswith(options.only)]
    declared_most = kit.described.capabilities.max_concurrent_runs
    gate = asyncio.Semaphore(min(options.at_once, declared_most or options.at_once))
    course = _Course(rules, options, on_progress)

    async def examine(rule: Rule) -> None:
        async with gate:
            course.begin(rule)
            outcome = await _examined(rule, kit, options.check_s)
            if outcome.verdict is Verdict.FAILED and process and await process.is_gone(_NOTICED_S):
                raise _TargetEndedError(_ended(process, course.running()))
            course.note(outcome)

    due = [rule for rule in rules if not _why_not(rule, kit)]
    for rule in rules:
        if rule not in due:
            course.note(Outcome(rule, Verdict.SKIPPED, _why_not(rule, kit)))
    try:
        async with asyncio.TaskGroup() as group:
            for rule in due:
                if rule.id in CHECKS:
                    group.create_task(examine(rule))
    except* _TargetEndedError as ended:
        stopped = str(ended.exceptions[0])
    else:
        stopped = ""
        for rule in due:
            if rule.id not in CHECKS:
                course.note(_looked_at(rule, kit.seen))
    return course.outcomes(), stopped


def _ended(process: Process, running: Sequence[str]) -> str:
    rules = " and ".join(filter(None, (", ".join(running[:-1]), running[-1])))
    return f"the target {process.ending} while the kit examined {rules}. It printed last:\n{process.printed}"


def _why_not(rule: Rule, kit: Kit) -> str:
    """Return why an adapter need not keep a rule; empty if it must."""
    if rule.revision > max(kit.described.revision, 1):
        return f"revision {rule.revision} has it first, and the adapter implements {kit.described.revision}"
    if not kit.is_router and rule.id.startswith("router."):
        return ""  # the rule itself says why
    if rule.declared_by and declarations(kit.described).isdisjoint(rule.declared_by):
        return f"{' or '.join(rule.declared_by)} is not declared"
    return ""


async def _examined(rule: Rule, kit: Kit, limit_s: float) -> Outcome:
    began = time.monotonic()
    verdict, message = Verdict.PASSED, ""
    try:
        async with asyncio.timeout(limit_s + rule.wait_s):
            await CHECKS[rule.id](kit)
    except Violation as violation:
        verdict, message = Verdict.FAILED, str(violation)
    except Skip as reason:
        verdict, message = Verdict.SKIPPED, str(reason)
    except DragomanError as error:
        verdict, message = Verdict.FAILED, f"a call that must succeed failed: {shown(error)}"
    except TimeoutError:
        verdict, message = Verdict.FAILED, f"the target hangs: the check did not end within {limit_s:g} s"
    except Exception as error:  # noqa: BLE001 - a bug of one check must not hide what the others find
        verdict, message = Verdict.ERROR, f"the kit failed: {type(error).__name__}: {error}"
    return Outcome(rule, verdict, message, time.monotonic() - began)


def _looked_at(rule: Rule, seen: Seen) -> Outcome:
    if rule.id in STREAM_CHECKS:
        kinds = STREAM_KINDS[rule.id]
        streams = [stream for stream in seen.streams if stream.events and (not kinds or kinds & stream.kinds)]
        problems = [STREAM_CHECKS[rule.id](stream) for stream in streams]
        count, things = len(streams), " or ".join(sorted(kinds)) or "stream"
    else:
        problems = [
            problem and f"{rpc}: {problem}"
            for rpc, error in seen.statuses
            if (problem := STATUS_CHECKS[rule.id](error))
        ]
        count, things = len(seen.statuses), "error status"
    found = [problem for problem in problems if problem]
    if found:
        more = f" (and in {len(found) - 1} more)" if len(found) > 1 else ""
        return Outcome(rule, Verdict.FAILED, found[0] + more)
    if not count:
        return Outcome(rule, Verdict.SKIPPED, f"no {things} was seen")
    return Outcome(rule, Verdict.PASSED)


def declared_features(report: Report) -> dict[str, bool]:
    """Return each feature of the contract, and whether the adapter declares it."""
    declared = {item.feature for item in report.described.capabilities.items}
    values = [value for value in pb.Feature.values() if value]
    return {pb.Feature.Name(value).removeprefix("FEATURE_").lower(): value in declared for value in values}


def read_expected_failures(path: str | os.PathLike[str]) -> frozenset[str]:
    """Return the IDs in a file of expected failures: one a line, ``#`` starts a comment.

    Raises:
        ValueError: a line is no ID of a rule.
        OSError: the file cannot be read.
    """
    lines = [line.partition("#")[0].strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    wrong: Sequence[str] = [line for line in lines if line and line not in RULES]
    if wrong:
        raise ValueError(f"no rule {wrong[0]!r}")
    return frozenset(filter(None, lines))
