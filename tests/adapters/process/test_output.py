"""What a command's output must be, and what else is done with the command: nothing."""

import sys
from pathlib import Path

import pytest
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.process.arena import Arena


def printing(arena: Arena, *lines: str, code: int = 0) -> api.ExecuteRequest:
    """Return a request for a program that prints lines where JSON lines are due."""
    program = f"import sys\nfor line in sys.argv[1:]: print(line)\nsys.exit({code})"
    return arena.request(sys.executable, "-I", "-S", "-c", program, *lines, output="jsonl")


@pytest.mark.parametrize("code", [0, 3])
async def test_garbage_where_json_lines_are_due_fails_and_is_kept(arena: Arena, code: int) -> None:
    result = await arena.result(printing(arena, "<html>", "x" * 40_000, "</html>", code=code))
    assert (result.outcome, result.exit_code) == (pb.OUTCOME_FAILED, code)
    assert result.failure.kind == pb.FAILURE_KIND_UNPARSEABLE_OUTPUT
    assert f"code {code}" in result.failure.message
    assert not result.failure.retryable
    assert result.raw_head.startswith("<html>\n")
    assert result.raw_tail.endswith("</html>\n")


@pytest.mark.parametrize("lines", [[], [""], ["{}", '{"type": "assistant", "text": "hello"}'], ["noise", '{"a": 1}']])
async def test_anything_else_that_ends_well_is_a_success(arena: Arena, lines: list[str]) -> None:
    result = await arena.result(printing(arena, *lines))
    assert result.outcome == pb.OUTCOME_SUCCEEDED


async def test_a_command_of_the_users_own_is_run_once_and_asked_nothing(arena: Arena, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    command = tmp_path / "command"
    command.write_text(f'#!/bin/sh\necho "called with: $*" >> {calls}\n')
    command.chmod(0o755)
    assert (await arena.result(arena.request(str(command), "mine"))).outcome == pb.OUTCOME_SUCCEEDED
    detect, check = api.DetectRequest(), api.TestEnvironmentRequest()
    for message in (detect, check):
        message.config["command"] = str(command)
    await arena.sidecar.stub.Detect(detect)
    await arena.sidecar.stub.TestEnvironment(check)
    assert calls.read_text().splitlines() == ["called with: mine"]
