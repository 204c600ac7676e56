"""Limits of a run while its agent's tools are at work."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio
from dragoman.sdk import Job, Output, Parser
from dragoman.v1 import event_pb2 as pb

from tests.adapters.process.arena import Arena, arena_in, duration
from tests.sdk.agents.test_command_line import WordsAdapter, WordsParser, request


class ToolsParser(WordsParser):
    """Understands calls of tools, too."""

    def _call(self, *, id: str) -> Iterable[Output]:  # noqa: A002 - the agent's word
        return [pb.AgentEvent(tool_call=pb.ToolCall(id=id, status=pb.TOOL_STATUS_RUNNING))]

    def _called(self, *, id: str) -> Iterable[Output]:  # noqa: A002 - the agent's word
        return [pb.AgentEvent(tool_result=pb.ToolResult(tool_call_id=id, status=pb.TOOL_STATUS_COMPLETED))]


class ToolsAdapter(WordsAdapter):
    """Runs the agent with its tools."""

    def parser(self, job: Job) -> Parser:
        del job
        return ToolsParser()


@pytest_asyncio.fixture
async def arena(tmp_path: Path) -> AsyncIterator[Arena]:
    async with arena_in(tmp_path, ToolsAdapter()) as running:
        yield running


CALL = {"kind": "call", "id": "t"}
CALLED = {"kind": "called", "id": "t"}


async def test_a_silent_tool_is_not_an_idle_agent(arena: Arena) -> None:
    run_request = request(arena, CALL, "pause 2", CALLED)
    run_request.limits.idle.CopyFrom(duration(1.0))
    events = await arena.run(run_request)
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED


async def test_after_its_tool_an_agent_is_idle_again(arena: Arena) -> None:
    run_request = request(arena, CALL, CALLED, "hang")
    run_request.limits.idle.CopyFrom(duration(1.0))
    assert (await arena.result(run_request)).failure.kind == pb.FAILURE_KIND_IDLE_TIMEOUT


@pytest.mark.parametrize("idle_s", [0.0, 0.5])
async def test_a_tool_call_has_a_limit_of_its_own(arena: Arena, idle_s: float) -> None:
    run_request = request(arena, CALL, "hang")
    run_request.limits.tool_call.CopyFrom(duration(1.0))
    run_request.limits.idle.CopyFrom(duration(idle_s))
    events = await arena.run(run_request)
    assert events[0].started.limits.tool_call == duration(1.0)
    result = events[-1].result
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_TIMED_OUT, pb.FAILURE_KIND_TOOL_TIMEOUT)
    assert (result.failure.code, result.failure.retryable) == ("tool_call_timeout", True)
    assert "limits.tool_call" in result.failure.message
