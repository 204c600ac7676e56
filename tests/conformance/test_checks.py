"""Checks of the kit by themselves, with a kit that answers as a test wants it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.conformance.check import Skip, Violation
from dragoman.conformance.checks.lifecycle import refused_run
from dragoman.conformance.checks.missing import test_environment as missing_environment
from dragoman.conformance.checks.requests import config_key
from dragoman.conformance.checks.router import session_unknown
from dragoman.conformance.checks.settings import model as chosen_model
from dragoman.conformance.checks.updating import refused as refused_change
from dragoman.conformance.checks.updating import taken as taken_change
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2


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


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_session_that_never_was_is_not_deleted(deleted: bool) -> None:
    async def answer(rpc: str, request: Any) -> Any:
        assert request.adapter == "agent"
        if rpc == "GetSession":
            raise DragomanError(Reason.SESSION_NOT_FOUND, "none")
        return router_pb2.DeleteSessionResponse(deleted=deleted)

    calls = SimpleNamespace(GetSession=lambda request: request, DeleteSession=lambda request: request)
    kit: Any = SimpleNamespace(
        is_router=True, router=calls, answer=answer, described=SimpleNamespace(adapter="agent")
    )
    if not deleted:
        await session_unknown(kit)
        return
    with pytest.raises(Violation, match="deleted a session that never was"):
        await session_unknown(kit)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DragomanError(Reason.NOT_IMPLEMENTED, "of an earlier revision"), ""),
        (DragomanError(Reason.NOT_SUPPORTED, "no", violations=[FieldViolation("model", "no")]), ""),
        (DragomanError(Reason.NOT_SUPPORTED, "no"), "BadRequest must name the field model; it has none"),
        (DragomanError(Reason.RUN_NOT_FOUND, "no"), "NOT_SUPPORTED is due, not"),
    ],
    ids=["earlier", "supported", "unnamed", "other"],
)
async def test_a_change_that_is_not_declared_is_refused(error: DragomanError, message: str, tmp_path: Path) -> None:
    asked: list[Any] = []

    async def call(rpc: str, request: api.UpdateRunRequest) -> Any:
        asked.append((rpc, request.run_id, request.model))
        raise error

    async def nothing(*_: Any) -> None:
        """Wait for nothing."""

    kit: Any = SimpleNamespace(
        adapter="agent",
        has=[pb.FEATURE_UPDATE_PERMISSION_MODE].__contains__,
        setup=SimpleNamespace(agent="script"),
        path=lambda name: tmp_path / name,
        request=lambda *_, **__: api.ExecuteRequest(run_id="run-1"),
        execute=lambda _: SimpleNamespace(rest=nothing, until_text=nothing),
        call=call,
    )
    if message:
        with pytest.raises(Violation) as raised:
            await refused_change(kit)
        assert str(raised.value).startswith(message)
    else:
        await refused_change(kit)
    assert asked == [("UpdateRun", "run-1", "conformance")]
    assert (tmp_path / "gate").exists()


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_model_arrives_at_a_real_agents_service(arrives: bool) -> None:
    requests = ["/v1/models", "/v1/messages: another-model"]

    async def rest() -> None:
        if arrives:
            requests.append(f"/v1/messages: {request.model}")

    request = api.ExecuteRequest()
    result = SimpleNamespace(outcome=pb.OUTCOME_SUCCEEDED)
    kit: Any = SimpleNamespace(
        setup=SimpleNamespace(agent="model", model_requests=lambda: requests),
        request=lambda *_, **__: request,
        execute=lambda _: SimpleNamespace(ending=rest, result=result),
    )
    if arrives:
        await chosen_model(kit)
        return
    with pytest.raises(Violation, match="the model does not reach the agent"):
        await chosen_model(kit)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [(Reason.UPDATE_REFUSED, None), (Reason.RUN_FINISHED, Skip), (Reason.RUN_NOT_FOUND, Violation)],
)
async def test_a_change_that_is_declared_may_be_refused_by_the_agent(
    reason: Reason, expected: type[Exception] | None, tmp_path: Path
) -> None:
    async def call(_rpc: str, _request: api.UpdateRunRequest) -> Any:
        raise DragomanError(reason, "no")

    async def nothing(*_: Any) -> None:
        """Wait for nothing."""

    kit: Any = SimpleNamespace(
        adapter="agent",
        has=[pb.FEATURE_UPDATE_MODEL].__contains__,
        setup=SimpleNamespace(agent="script"),
        path=lambda name: tmp_path / name,
        request=lambda *_, **__: api.ExecuteRequest(run_id="run-1"),
        execute=lambda _: SimpleNamespace(rest=nothing, until_text=nothing, durable=()),
        call=call,
    )
    if expected is None:
        await taken_change(kit)
        return
    with pytest.raises(expected):
        await taken_change(kit)


async def test_a_setting_that_no_schema_has_comes_with_those_that_the_adapter_needs() -> None:
    async def rejected(request: api.ExecuteRequest) -> DragomanError:
        assert dict(request.config) == {"command": "words", "conformanceNoSuchKey": 1}
        wrong = [FieldViolation("config.conformanceNoSuchKey", "is none")]
        return DragomanError(Reason.INVALID_REQUEST, "no", violations=wrong)

    kit: Any = SimpleNamespace(
        described=SimpleNamespace(config_schema_json='{"additionalProperties": false}'),
        setup=SimpleNamespace(config={"command": "words"}),
        request=api.ExecuteRequest,
        rejected=rejected,
    )
    await config_key(kit)
