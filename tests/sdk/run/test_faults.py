"""An adapter's own exceptions: seen on the run by type and place, never by their text, and never a run that hangs."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dragoman.sdk import Answer, Ask, Evidence, FailureInfo, Job, Output, Parser, Plan, Report, Terminal
from dragoman.sdk._run.faults import MOST_REPORTED, place_of
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.adapters.process.arena import Arena, arena_in, duration
from tests.sdk.agents.test_command_line import WordsAdapter, WordsParser, codes, request
from tests.sdk.serving import DEADLINE_S

SECRET = "do-not-leak-4711"
_PATH: Any = Path("/bin/sh")
_PROMPT: Any = "a prompt"
"""What a type checker would not accept in a plan."""


class FailingParser(WordsParser):
    """Fails where a test wants it."""

    def _done(self, *, ok: bool) -> Iterable[Output]:
        raise KeyError(SECRET)

    def _at(self, *, number: int) -> Iterable[Output]:
        exec(compile("\n" * number + "raise ValueError('do-not-leak-4711')", __file__, "exec"))
        return []

    def _strange(self) -> Iterable[Output]:
        request = pb.InputRequest(id="s", kind=pb.INPUT_KIND_PERMISSION, title="May I?")
        return [Ask(request, _unspeakable)]

    def _stray(self) -> Any:
        return "words"

    def _finished(self, *, ok: bool) -> Iterable[Output]:
        self.report.terminal = Terminal(succeeded=ok)
        return []


def _unspeakable(answer: Answer) -> bytes:
    raise LookupError(SECRET)


class FailingAdapter(WordsAdapter):
    spec = replace(WordsAdapter.spec, unread_s=0.3)
    fails: str = ""
    planned: Any = None
    """Makes of a program what is planned in place of a plan."""

    def _may_fail(self, hook: str) -> None:
        if self.fails == hook:
            raise OSError(SECRET)

    def plan(self, job: Job) -> Plan:
        self._may_fail("plan")
        plan: Plan = super().plan(job) if self.planned is None else self.planned(job.executable)
        return plan

    def parser(self, job: Job) -> Parser:
        self._may_fail("parser")
        return FailingParser()

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        self._may_fail("classify")
        return super().classify(evidence)

    async def complete(self, job: Job, env: Mapping[str, str], report: Report, began_at: float) -> None:
        self._may_fail("complete")

    async def finish(self, job: Job, env: Mapping[str, str], report: Report) -> bool:
        self._may_fail("finish")
        return True


@pytest.fixture
def adapter() -> FailingAdapter:
    return FailingAdapter()


@pytest_asyncio.fixture
async def arena(tmp_path: Path, adapter: FailingAdapter) -> AsyncIterator[Arena]:
    async with arena_in(tmp_path, adapter) as running:
        yield running


def finished(*, ok: bool = True) -> dict[str, object]:
    return {"kind": "finished", "ok": ok}


def notices(events: Iterable[pb.AgentEvent], code: str) -> list[pb.Notice]:
    return [event.notice for event in events if event.notice.code == code]


# The parser.


async def test_a_parser_that_raises_is_a_notice_with_type_and_place(arena: Arena) -> None:
    events = await arena.run(request(arena, {"kind": "raise"}, {"kind": "raise"}, finished(), "exit 0"))
    (notice,) = notices(events, "parser_failed")
    assert notice.severity == pb.SEVERITY_WARNING
    assert "RuntimeError at test_command_line.py:" in notice.message
    assert SECRET not in repr(events) + repr(arena.logged)
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED, "its end could be read"
    (logged,) = (line for line in arena.logged if line["event"] == "parser failed")
    assert (logged["log_level"], logged["exception"]) == ("warning", "RuntimeError")


async def test_a_run_whose_end_could_not_be_read_fails_and_says_where(arena: Arena) -> None:
    result = (await arena.run(request(arena, {"kind": "text", "text": "hello"})))[-1].result
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_UNPARSEABLE_OUTPUT)
    assert result.failure.code == "parser_failed"
    assert "KeyError at test_faults.py:" in result.failure.message
    assert not result.failure.retryable
    assert '"done"' in result.raw_head


async def test_what_the_agent_says_of_its_own_failure_is_known_better(arena: Arena) -> None:
    handle = pb.SessionHandle(adapter="words", native_id="id-1", cwd=str(arena.workspace))
    events = await arena.run(request(arena, {"kind": "raise"}, "lost", session=handle))
    (ended,) = (event.attempt_ended for event in events if event.HasField("attempt_ended"))
    assert ended.failure.kind == pb.FAILURE_KIND_SESSION_LOST


async def test_a_question_that_could_not_be_read_ends_the_run(arena: Arena) -> None:
    events = await asyncio.wait_for(arena.run(request(arena, {"kind": "raise"}, "read")), DEADLINE_S)
    result = events[-1].result
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_UNPARSEABLE_OUTPUT)
    assert "may wait for an answer" in result.failure.message
    assert result.tree_confirmed_dead


async def test_an_answer_that_could_not_be_written_ends_the_run(arena: Arena) -> None:
    run_request = request(arena, {"kind": "strange"}, "read")
    run_request.permissions.auto_approve = True
    events = await asyncio.wait_for(arena.run(run_request), DEADLINE_S)
    (notice,) = notices(events, "parser_failed")
    assert "LookupError at test_faults.py:" in notice.message
    assert events[-1].result.failure.kind == pb.FAILURE_KIND_UNPARSEABLE_OUTPUT


async def test_silence_after_a_line_that_was_read_again_is_not_limited(arena: Arena) -> None:
    run_request = request(arena, {"kind": "raise"}, "hang")
    run_request.limits.idle.CopyFrom(duration(1.5))
    result = (await arena.run(run_request))[-1].result
    assert result.failure.kind == pb.FAILURE_KIND_IDLE_TIMEOUT


async def test_an_event_that_may_not_be_is_a_notice(arena: Arena) -> None:
    events = await arena.run(request(arena, {"kind": "forbidden"}, finished(), "exit 0"))
    assert codes(events) == ["event_refused", "after the forbidden one"]


async def test_what_is_no_output_is_a_notice_and_leaves_standard_input_open(arena: Arena) -> None:
    events = await arena.run(request(arena, {"kind": "stray"}, {"kind": "strange"}, finished(), "exit 0"))
    (notice,) = notices(events, "event_refused")
    assert "str is no output; yield events, as the helpers return them; that event is missing" in notice.message


async def test_notices_of_many_places_are_bounded(arena: Arena) -> None:
    steps = [{"kind": "at", "number": number} for number in range(3 * MOST_REPORTED)]
    events = await arena.run(request(arena, *steps, finished(), "exit 0"))
    assert len(notices(events, "parser_failed")) == MOST_REPORTED
    assert len([line for line in arena.logged if line["event"] == "parser failed"]) == MOST_REPORTED


# The other hooks.


@pytest.mark.parametrize("hook", ["plan", "parser"])
async def test_without_a_plan_or_a_parser_the_run_fails_and_names_the_place(
    arena: Arena, adapter: FailingAdapter, hook: str
) -> None:
    adapter.fails = hook
    result = (await arena.run(request(arena, finished())))[-1].result
    assert (result.failure.kind, result.failure.code) == (pb.FAILURE_KIND_INTERNAL, "adapter_failed")
    assert "OSError at test_faults.py:" in result.failure.message


@pytest.mark.parametrize(
    ("planned", "what"),
    [
        (Plan, "argv is a str; give a tuple of str"),
        (lambda program: Plan(part for part in (program,)), "argv is a generator; give a tuple of str"),  # type: ignore[arg-type]
        (lambda _: Plan(None), "argv is a NoneType; give a tuple of str"),  # type: ignore[arg-type]
        (lambda program: Plan((_PATH, program)), "argv has a PosixPath; give each item as str"),
        (lambda program: Plan((program,), stdin=_PROMPT), "stdin is str; give bytes, as of job.prompt.encode()"),
        (lambda program: [program], "plan returned list; return a Plan"),
    ],
    ids=["text", "generator", "none", "path", "stdin", "list"],
)
async def test_what_is_no_plan_is_named(arena: Arena, adapter: FailingAdapter, planned: Any, what: str) -> None:
    adapter.planned = planned
    result = (await arena.run(request(arena, finished())))[-1].result
    assert (result.failure.kind, result.failure.code) == (pb.FAILURE_KIND_INTERNAL, "adapter_failed")
    assert f": {what}). Its log has more" in result.failure.message


@pytest.mark.parametrize("hook", ["complete", "finish"])
async def test_a_run_keeps_its_result_when_what_follows_it_fails(
    arena: Arena, adapter: FailingAdapter, hook: str
) -> None:
    adapter.fails = hook
    events = await arena.run(request(arena, "session", finished(), "exit 0"))
    (notice,) = notices(events, "adapter_hook_failed")
    assert f"{hook} raised OSError at test_faults.py:" in notice.message
    result = events[-1].result
    assert result.outcome == pb.OUTCOME_SUCCEEDED
    assert result.session.handle.native_id == "id-new"
    assert result.tree_confirmed_dead == (hook != "finish")
    assert SECRET not in repr(events) + repr(arena.logged)


async def test_a_failure_that_could_not_be_classified_is_reported_nevertheless(
    arena: Arena, adapter: FailingAdapter
) -> None:
    adapter.fails = "classify"
    events = await arena.run(request(arena, finished(ok=False), "exit 3"))
    (notice,) = notices(events, "adapter_hook_failed")
    assert "classify raised OSError at test_faults.py:" in notice.message
    assert events[-1].result.failure.kind == pb.FAILURE_KIND_PROCESS_CRASHED
    assert events[-1].result.exit_code == 3


# Places.


def test_the_place_is_the_adapters_own_even_if_a_library_raised() -> None:
    def fault() -> BaseException:
        try:
            int("x", base=99)
        except ValueError as error:
            return error
        raise AssertionError

    assert place_of(fault(), FailingAdapter()).startswith("ValueError at test_faults.py:")
    with pytest.raises(OSError, match="such") as caught:
        Path("/no/such/file").read_text()
    assert place_of(caught.value, FailingAdapter()).startswith("FileNotFoundError at test_faults.py:")
    assert not place_of(caught.value, api.ExecuteRequest()).startswith("FileNotFoundError at test_faults.py:")
    assert place_of(KeyError("x"), None) == "KeyError"


def test_what_is_installed_in_the_adapters_folder_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter's folder often has its virtual environment in it."""
    packages = tmp_path / ".venv/lib/python3/site-packages"
    packages.mkdir(parents=True)
    (packages / "library_beside.py").write_text("def load():\n    raise KeyError\n", encoding="utf-8")
    source = "import library_beside\n\nclass Parser:\n    def line(self):\n        library_beside.load()\n"
    (tmp_path / "adapter_beside.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.syspath_prepend(str(tmp_path))
    parser = importlib.import_module("adapter_beside").Parser()
    with pytest.raises(KeyError) as caught:
        parser.line()
    assert place_of(caught.value, parser) == "KeyError at adapter_beside.py:5"
