"""Changes of a run's model or permission mode while its agent works: taken, rejected, given again, or refused."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk import Job, Output, Parser, Plan, Write
from dragoman.sdk.parsing import NotUpdated, Update, Updated
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.adapters.process.arena import Arena, arena_in
from tests.sdk.agents.test_command_line import WordsAdapter, WordsParser
from tests.sdk.agents.test_sent_inputs import Begun, script, word
from tests.sdk.serving import DEADLINE_S, refusal


class UpdatedParser(WordsParser):
    """Gives the agent a line, and takes it that the agent has changed once it says that it read it."""

    def __init__(self, *, takes: bool, asked: asyncio.Event) -> None:
        super().__init__()
        self.takes = takes
        self.asked = asked

    def update(self, update: Update) -> Iterable[Output] | None:
        if not self.takes:
            return None
        if update.model == "raise":
            raise RuntimeError("do-not-leak-4711")
        self.asked.set()
        return [Write(f"{update.update_id} {update.model}{update.permission_mode}\n".encode())]

    def _text(self, *, text: str) -> Iterable[Output]:
        self.takes = True
        return super()._text(text=text)

    def _heard(self, *, text: str) -> Iterable[Output]:
        update_id, _, value = text.partition(" ")
        if value == "bad":
            return [NotUpdated(update_id, f"{value} is not known")]
        return [Updated(update_id, "acme/exact" if value == "exact" else "")]


class DeafParser(WordsParser):
    """Rejects every change: its agent reads nothing."""

    def update(self, update: Update) -> Iterable[Output]:
        return [NotUpdated(update.update_id, "it reads nothing")]


class UpdatedAdapter(WordsAdapter):
    """Takes changes; the agent of its first turn only once it has said something, where that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []
        self.asked = asyncio.Event()
        self.is_late = False
        self.is_deaf = False

    def plan(self, job: Job) -> Plan:
        self.jobs.append(job)
        plan = super().plan(job)
        return replace(plan, keep_stdin_open=False) if self.is_deaf else plan

    def parser(self, job: Job) -> Parser:
        del job
        if self.is_deaf:
            return DeafParser()
        return UpdatedParser(takes=not self.is_late, asked=self.asked)


@pytest.fixture
def words() -> UpdatedAdapter:
    return UpdatedAdapter()


@pytest_asyncio.fixture
async def arena(tmp_path: Path, words: UpdatedAdapter) -> AsyncIterator[Arena]:
    async with arena_in(tmp_path, words) as running:
        yield running


async def update(arena: Arena, run_id: str = "r", **change: str) -> int:
    asked = api.UpdateRunRequest(run_id=run_id, sender="me", **change)
    return (await arena.sidecar.stub.UpdateRun(asked, timeout=DEADLINE_S)).sequence


def updates(events: Iterable[pb.AgentEvent]) -> list[tuple[int, str, str]]:
    """Return what was changed, in order."""
    found = [event for event in events if event.HasField("run_updated")]
    assert all(event.origin == pb.EVENT_ORIGIN_OPERATOR and event.run_updated.sender == "me" for event in found)
    return [(event.sequence, event.run_updated.model, event.run_updated.permission_mode) for event in found]


def gate(arena: Arena) -> str:
    return f"gate {arena.workspace.parent / 'gate'}"


async def test_what_the_agent_takes_is_recorded_and_holds_for_later_turns(
    arena: Arena, words: UpdatedAdapter
) -> None:
    async with Begun(arena, "read", "read", gate(arena)) as run:
        model = await update(arena, model="large")
        mode = await update(arena, permission_mode="careful")
        await run.send(script("session", word("end")))
        events = await run.rest()
    assert updates(events) == [(model, "large", ""), (mode, "", "careful")]
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    chosen = [(job.settings.model, job.permissions.native_mode) for job in words.jobs]
    assert chosen == [("", ""), ("large", "careful")]


async def test_later_turns_name_a_model_as_exactly_as_the_agent_does(arena: Arena, words: UpdatedAdapter) -> None:
    async with Begun(arena, "read", gate(arena)) as run:
        sequence = await update(arena, model="exact")
        await run.send(script("session", word("end")))
        events = await run.rest()
    assert updates(events) == [(sequence, "exact", "")], "as it was asked for"
    assert [job.settings.model for job in words.jobs] == ["", "acme/exact"]


async def test_what_the_agent_rejects_is_an_error_and_changes_nothing(arena: Arena, words: UpdatedAdapter) -> None:
    async with Begun(arena, "read", gate(arena)) as run:
        error = await refusal(update(arena, model="bad"))
        await run.send(script("session"))
        events = await run.rest()
    assert error.reason is Reason.UPDATE_REFUSED
    assert "bad is not known" in str(error)
    assert updates(events) == []
    assert words.jobs[-1].settings.model == ""


async def test_an_agent_without_an_input_rejects_what_it_is_asked(arena: Arena, words: UpdatedAdapter) -> None:
    words.is_deaf = True
    async with Begun(arena, gate(arena)) as run:
        error = await refusal(update(arena, model="large"))
        await run.rest()
    assert error.reason is Reason.UPDATE_REFUSED
    assert "it reads nothing" in str(error)


async def test_a_change_waits_for_an_agent_that_takes_none_just_now(arena: Arena, words: UpdatedAdapter) -> None:
    words.is_late = True
    async with Begun(arena, gate(arena), word("now"), "read") as run:
        asked = asyncio.create_task(update(arena, model="large"))
        events = await run.rest()
        assert updates(events) == [(await asked, "large", "")]


async def test_a_change_that_the_agent_does_not_answer_goes_to_it_again_in_the_next_turn(
    arena: Arena, words: UpdatedAdapter
) -> None:
    async with Begun(arena, gate(arena)) as run:
        await run.send(script("session", "read"))
        asked = asyncio.create_task(update(arena, model="large"))
        await words.asked.wait()
        events = await run.rest()
        assert updates(events) == [(await asked, "large", "")]


@pytest.mark.parametrize("end", ["cancelled", "ended"])
async def test_a_run_that_ends_fails_the_changes_that_wait(arena: Arena, words: UpdatedAdapter, end: str) -> None:
    async with Begun(arena, gate(arena)) as run:
        asked = asyncio.create_task(update(arena, model="large"))
        await words.asked.wait()
        if end == "cancelled":
            await run.cancel()
        events = await run.rest()
        assert (await refusal(asked)).reason is Reason.RUN_FINISHED
        assert (await refusal(update(arena, model="large"))).reason is Reason.RUN_FINISHED
    assert updates(events) == []


async def test_a_parser_that_fails_changes_nothing(arena: Arena) -> None:
    async with Begun(arena, gate(arena)) as run:
        error = await refusal(update(arena, model="raise"))
        events = await run.rest()
    assert error.reason is Reason.UPDATE_REFUSED
    assert "do-not-leak" not in str(error)
    assert "update_failed" in [event.notice.code for event in events]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({}, "change"),
        ({"model": ""}, "model"),
        ({"permission_mode": " "}, "permission_mode"),
        ({"model": "-x"}, "model"),
        ({"model": "x" * 4097}, "model"),
    ],
)
async def test_an_invalid_change_is_refused_with_its_field(arena: Arena, change: dict[str, str], path: str) -> None:
    error = await refusal(update(arena, "unknown", **change))
    assert error.reason is Reason.INVALID_REQUEST
    assert [violation.path for violation in error.violations] == [path]


async def test_a_change_of_an_unknown_run_is_refused(arena: Arena) -> None:
    assert (await refusal(update(arena, "unknown", model="m"))).reason is Reason.RUN_NOT_FOUND


@pytest.mark.parametrize("name", ["model", "permission_mode"])
async def test_a_change_that_is_not_declared_is_refused_with_its_field(tmp_path: Path, name: str) -> None:
    declared = pb.Capabilities(items=[pb.Capability(feature=pb.FEATURE_RESUME)])

    class Steady(WordsAdapter):
        spec = replace(WordsAdapter.spec, capabilities=declared)

    async with arena_in(tmp_path, Steady()) as arena, Begun(arena, gate(arena)) as run:
        error = await refusal(update(arena, **{name: "x"}))
        await run.rest()
    assert error.reason is Reason.NOT_SUPPORTED
    assert [violation.path for violation in error.violations] == [name]


async def test_a_mode_that_the_agent_does_not_have_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    class Modal(UpdatedAdapter):
        spec = replace(WordsAdapter.spec, native_modes=("plan", "act"))

    async with arena_in(tmp_path, Modal()) as arena, Begun(arena, "read", gate(arena)) as run:
        error: DragomanError = await refusal(update(arena, permission_mode="sleep"))
        assert await update(arena, permission_mode="plan")
        await run.rest()
    assert (error.reason, error.violations[0].path) == (Reason.INVALID_REQUEST, "permission_mode")


def test_one_change_is_one_thing() -> None:
    asked: Any = api.UpdateRunRequest(model="m", permission_mode="p")
    assert asked.WhichOneof("change") == "permission_mode", "the last one"
