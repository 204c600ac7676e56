"""The checks of TestEnvironment: each finding has its code, its severity and a hint."""

from pathlib import Path

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk._agents.environment import _check_live
from dragoman.sdk._detection import agent
from dragoman.sdk._detection.agent import _add_auth
from dragoman.sdk._detection.auth import AuthFinding
from dragoman.sdk._detection.checks import Checks, check_agent, check_program
from dragoman.sdk.spec import AgentSpec
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

SPEC = AgentSpec(
    type="words",
    label="Words",
    version="1",
    configuration_doc="",
    config_schema={},
    executables=("words",),
    install_hint="Install words.",
    login_hint="Log in with words.",
    config_dir_name=".words",
)
INFO, WARNING, ERROR = pb.SEVERITY_INFO, pb.SEVERITY_WARNING, pb.SEVERITY_ERROR


def shown(checks: Checks) -> list[tuple[str, int, str]]:
    return [(check.code, check.level, check.hint) for check in checks.items]


@pytest.mark.parametrize(
    ("state", "code", "level", "hint"),
    [
        (api.AUTH_STATE_OK, "auth_ok", INFO, ""),
        (api.AUTH_STATE_MISSING, "auth_missing", ERROR, "Log in with words."),
        (api.AUTH_STATE_EXPIRED, "auth_expired", WARNING, "Log in with words."),
        (api.AUTH_STATE_UNKNOWN, "auth_unknown", INFO, ""),
    ],
)
def test_a_program_that_is_there(
    tmp_path: Path, state: api.AuthState.ValueType, code: str, level: int, hint: str
) -> None:
    found = api.Detection(executable="/bin/words", version="2.1", auth=state, auth_method="token")
    checks = Checks()
    check_program(SPEC, found, {"HOME": str(tmp_path)}, {}, checks)
    assert shown(checks) == [("command_found", INFO, ""), (code, level, hint), ("config_dir_absent", INFO, "")]
    assert checks.items[0].detail == "2.1"
    assert str(tmp_path / ".words") in checks.items[2].message
    assert checks.has_error == (level == ERROR)


@pytest.mark.parametrize("is_there", [False, True])
def test_an_agent_that_is_no_program(is_there: bool) -> None:
    found = api.Detection(available=is_there, message="Words.", hint="Look there.", auth=api.AUTH_STATE_OK)
    checks = Checks()
    check_agent(SPEC, found, checks)
    first = ("agent_available", INFO, "") if is_there else ("agent_unavailable", ERROR, "Look there.")
    assert shown(checks) == [first, ("auth_ok", INFO, "")]
    assert checks.items[0].message == "Words."


def test_its_problems_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / ".words").mkdir()
    found = api.Detection(executable="/bin/words")
    found.problems.add(code="executable_broken", message="It does not start.", hint="Reinstall it.")
    found.problems.add(code="auth", message="It is logged in twice.")
    checks = Checks()
    check_program(SPEC, found, {"HOME": str(tmp_path)}, {}, checks)
    assert shown(checks)[1:3] == [("executable_broken", ERROR, "Reinstall it."), ("auth", WARNING, "")]


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("", "Install words."),
        ("mine", "Install it, or set config.command to its absolute path."),
        ("make test", "There is no shell: config.command is one program, and config.args has its arguments."),
    ],
)
def test_a_program_that_is_not_there(command: str, hint: str) -> None:
    checks = Checks()
    check_program(SPEC, api.Detection(), {}, {"command": command}, checks)
    assert shown(checks) == [("command_not_found", ERROR, hint)]
    assert checks.items[0].message.startswith(command or "words")


def test_no_program_is_named() -> None:
    checks = Checks()
    check_program(replace(SPEC, executables=()), api.Detection(), {}, {}, checks)
    (check,) = checks.items
    assert (check.code, check.message) == ("command_not_found", "No command is configured in config.command.")
    assert "`--config command=NAME`" in check.hint


async def test_an_agent_that_does_not_answer_about_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(executable: str, env: object) -> AuthFinding:
        raise TimeoutError

    monkeypatch.setattr(agent, "AUTH_LIMIT_S", 0.01)
    found = api.Detection(executable="/bin/words", available=True)
    await _add_auth(SPEC, never, found, {})
    assert found.auth == api.AUTH_STATE_UNKNOWN
    assert [problem.code for problem in found.problems] == ["auth_timeout"]


@pytest.mark.parametrize(
    ("result", "says", "code", "level"),
    [
        (None, "", "live_refused", ERROR),
        (pb.Result(outcome=pb.OUTCOME_FAILED), "", "live_failed", ERROR),
        (pb.Result(outcome=pb.OUTCOME_SUCCEEDED), "Hello.", "live_no_echo", ERROR),
        (pb.Result(outcome=pb.OUTCOME_SUCCEEDED), None, "live_ok", INFO),
    ],
)
async def test_a_live_turn(result: pb.Result | None, says: str | None, code: str, level: int) -> None:
    asked: list[api.ExecuteRequest] = []

    async def try_live(request: api.ExecuteRequest) -> tuple[pb.Result, str]:
        assert Path(request.workspace.cwd).is_dir()
        asked.append(request)
        if result is None:
            raise DragomanError(Reason.TOO_MANY_RUNS, "too many runs")
        return result, request.prompt if says is None else says

    checks = Checks()
    request = api.TestEnvironmentRequest(adapter="words")
    request.timeout.FromSeconds(3)
    await _check_live(SPEC, try_live, request, checks)
    assert [(check.code, check.level) for check in checks.items] == [(code, level)]
    (execute,) = asked
    assert (execute.limits.wall.seconds, execute.limits.grace.seconds) == (3, 2)
    assert not Path(execute.workspace.cwd).exists()
