"""Codex's login with a device code, with programs that pretend to be Codex."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
from dragoman.adapters.codex import adapter
from dragoman.adapters.codex.device_login import DeviceLogin
from dragoman.protocol.errors import DragomanError
from dragoman.sdk._detection import account
from dragoman.sdk.detection import LoginLocks, RenewingLogin
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

BEGUN = {"loginId": "l", "verificationUrl": "https://auth.example/codex/device", "userCode": "AB-12"}
PROMPT = api.LoginResponse(prompt=api.LoginPrompt(url="https://auth.example/codex/device", user_code="AB-12"))
DONE = api.LoginResponse(outcome=api.LoginOutcome())
PROGRAM = """#!/bin/sh
read hello; echo '{"id": 1, "result": {}}'
read initialized; echo '{"method": "configWarning", "params": {}}'
read asked
"""


def completed(**params: object) -> dict[str, object]:
    return {"method": "account/login/completed", "params": {"loginId": "l", **params}}


def install(folder: Path, *answers: object, then: str = "") -> api.LoginRequest:
    """Put a Codex on PATH that prints this, then does what a command of the shell does."""
    program = folder / "codex"
    printed = "".join(f"echo '{json.dumps(answer)}'\n" for answer in answers)
    program.write_text(f"{PROGRAM}{printed}{then}\n")
    program.chmod(0o755)
    return api.LoginRequest(env={"PATH": f"{folder}:{os.defpath}", "HOME": str(folder)})


async def steps(request: api.LoginRequest) -> list[api.LoginResponse]:
    return [step async for step in adapter().log_in(request)]


@pytest.mark.parametrize("method", ["", "device_code"])
async def test_a_prompt_then_the_outcome(method: str, tmp_path: Path) -> None:
    begun = {"id": 2, "result": BEGUN}
    other = completed(loginId="another", success=False, error="of another login")
    request = install(tmp_path, begun, other, completed(success=True, error=None), then="while read more; do :; done")
    request.method = method
    assert await steps(request) == [PROMPT, DONE]


@pytest.mark.parametrize(
    ("answer", "message", "kind"),
    [
        ({"id": 2, "error": {"message": "no device code"}}, "no device code", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
        ({"id": 2, "result": {"type": "chatgpt"}}, "no device code", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
    ],
)
async def test_a_login_that_does_not_begin(answer: object, message: str, kind: int, tmp_path: Path) -> None:
    (ended,) = await steps(install(tmp_path, answer))
    assert (ended.outcome.failure.kind, message in ended.outcome.failure.message) == (kind, True)


async def test_a_login_that_fails(tmp_path: Path) -> None:
    failed = completed(success=False, error="device auth failed with status 400 Bad Request")
    prompt, ended = await steps(install(tmp_path, {"id": 2, "result": BEGUN}, failed))
    assert prompt == PROMPT
    assert ended.outcome.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
    assert "400 Bad Request" in ended.outcome.failure.message


async def test_a_program_that_ends(tmp_path: Path) -> None:
    prompt, ended = await steps(install(tmp_path, {"id": 2, "result": BEGUN}, then="exit 0"))
    assert prompt == PROMPT
    assert ended.outcome.failure.code == "codex_login_ended"


async def test_no_program(tmp_path: Path) -> None:
    request = api.LoginRequest(env={"PATH": str(tmp_path), "HOME": str(tmp_path)})
    (ended,) = await steps(request)
    assert ended.outcome.failure.kind == pb.FAILURE_KIND_NOT_INSTALLED


async def asked_for_quota(request: api.LoginRequest) -> api.GetQuotaResponse:
    return await adapter().get_quota(api.GetQuotaRequest(config=request.config, env=request.env))


@pytest.mark.parametrize("ask", [steps, asked_for_quota])
async def test_its_environment_is_as_in_runs(
    ask: Callable[[api.LoginRequest], Awaitable[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inherited = {"DRAGOMAN_TOKEN": "t", "ANTHROPIC_API_KEY": "k", "CODEX_THREAD_ID": "i", "OPENAI_API_KEY": "o"}
    for name, value in {**inherited, "CODEX_HOME": "/adapter"}.items():
        monkeypatch.setenv(name, value)
    request = install(tmp_path, then=f"env > {tmp_path}/env")
    request.config.update({"env": {**request.env, "CODEX_HOME": "/config", "A": "config"}})
    request.env.clear()
    request.env["A"] = "request"
    await ask(request)
    got = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    expected = {"OPENAI_API_KEY": "o", "CODEX_HOME": "/config", "A": "request", "HOME": str(tmp_path)}
    assert {name: value for name, value in got.items() if name in {*inherited, *expected}} == expected


async def test_an_unknown_method(tmp_path: Path) -> None:
    request = install(tmp_path)
    request.method = "browser"
    with pytest.raises(DragomanError) as caught:
        await steps(request)
    assert [violation.path for violation in caught.value.violations] == ["method"]


def renewable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RenewingLogin:
    """Log Codex in already, with a login that may have to be renewed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    stored = folder / ".codex" / "auth.json"
    stored.parent.mkdir()
    stored.write_text(json.dumps({"tokens": {"refresh_token": "r"}}))
    return RenewingLogin(stored)


@pytest.mark.parametrize("answers", [[{"id": 2, "result": BEGUN}], []], ids=["prompt", "end"])
async def test_runs_with_its_login_wait_until_it_is_renewed(
    answers: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login, tested, waits = renewable(tmp_path, monkeypatch), adapter(), asyncio.Event()
    request = install(tmp_path, *answers, then="while read more; do :; done" if answers else "")
    program = tmp_path / "codex"
    (tmp_path / "begun").touch()
    os.mkfifo(tmp_path / "renewed")
    program.write_text(program.read_text().replace("read asked", f"rm {tmp_path}/begun; read x < {tmp_path}/renewed"))
    async with aclosing(tested.log_in(request)) as events:
        first = asyncio.ensure_future(anext(events))
        while (tmp_path / "begun").exists():  # noqa: ASYNC110 - there is no event for that
            await asyncio.sleep(0.01)
        taking = asyncio.ensure_future(LoginLocks().take(login, waits.set))
        await asyncio.wait({taking, asyncio.ensure_future(waits.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert waits.is_set()
        await asyncio.to_thread((tmp_path / "renewed").write_text, "\n")
        await first
        (await taking).release()


@pytest.mark.parametrize("ask", [steps, asked_for_quota])
async def test_a_login_that_runs_renew_is_left_alone(
    ask: Callable[[api.LoginRequest], Awaitable[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = renewable(tmp_path, monkeypatch)
    held = await LoginLocks().take(login, lambda: None)
    request = install(tmp_path, then=f"touch {tmp_path}/started")
    with monkeypatch.context() as patched:
        patched.setattr(account, "TURN_LIMIT_S", 0.01)
        assert "codex_login_busy" in str(await ask(request))
    assert not (tmp_path / "started").exists()
    held.release()
    assert "codex_login_busy" not in str(await ask(request))


async def test_closing_it_kills_the_program(tmp_path: Path) -> None:
    request = install(tmp_path, {"id": 2, "result": BEGUN}, then="echo $$ > pid.new; mv pid.new pid; sleep 600")
    (tmp_path / "codex").write_text((tmp_path / "codex").read_text().replace("pid", f"{tmp_path}/pid"))
    async with aclosing(adapter().log_in(request)) as events:
        assert await anext(events) == PROMPT
        while not (tmp_path / "pid").exists():  # noqa: ASYNC110 - there is no event for that
            await asyncio.sleep(0.01)
    pid = int((tmp_path / "pid").read_text())
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        pytest.fail("it runs")


@given(
    st.lists(
        st.text(max_size=20)
        | st.sampled_from(
            [{"id": 2, "result": BEGUN}, completed(success=True), completed(success=1), completed()]
        ).map(json.dumps)
        | st.recursive(
            st.none() | st.booleans() | st.text(max_size=5),
            lambda inner: st.dictionaries(
                st.sampled_from(("id", "method", "params", "result", "error", "loginId", "success")), inner
            ),
        ).map(json.dumps),
        max_size=6,
    )
)
def test_any_lines_are_steps(lines: list[str]) -> None:
    login = DeviceLogin()
    for event in map(login.step, lines):
        assert event is None or event.prompt.url or event.HasField("outcome")
        if event is not None and event.outcome.HasField("failure"):
            assert event.outcome.failure.message
