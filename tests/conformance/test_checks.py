"""Checks of the kit by themselves, with a kit that answers as a test wants it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.conformance.check import Violation
from dragoman.conformance.checks.lifecycle import refused_run
from dragoman.conformance.checks.missing import test_environment as missing_environment
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb


async def test_a_process_that_accepts_runs_for_ever_is_named() -> None:
    async def run(request: Any) -> None:
        assert request == "say=hello"
        await asyncio.sleep(0)

    kit: Any = SimpleNamespace(setup=SimpleNamespace(slowness=0.001), run=run, request=lambda step: step)
    with pytest.raises(Violation, match="after SIGTERM new runs are still accepted"):
        await refused_run(kit)


@pytest.mark.parametrize("features", [[], [pb.FEATURE_WORKSPACE]])
async def test_only_an_agent_with_a_workspace_gets_one(features: list[int]) -> None:
    asked: list[Any] = []

    async def call(method: str, request: api.TestEnvironmentRequest) -> api.TestEnvironmentResponse:
        asked.append((method, request.workspace.cwd, request.mode, request.config["command"]))
        answer = api.TestEnvironmentResponse(status=api.TEST_STATUS_FAIL)
        answer.checks.add(code="command_not_found", message="It is not there.", level=pb.SEVERITY_ERROR)
        return answer

    kit: Any = SimpleNamespace(
        adapter="agent",
        has=features.__contains__,
        call=call,
        setup=SimpleNamespace(folder=Path("/kit"), script="{script}", config={"command": "{script}"}, env={}),
    )
    await missing_environment(kit)
    assert asked == [("TestEnvironment", "/kit" if features else "", api.TEST_MODE_QUICK, "/kit/no-such-program")]
