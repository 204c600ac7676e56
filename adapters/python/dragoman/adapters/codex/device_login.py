"""Codex's login with a device code: its app server asks for the code, and waits for a person to enter it."""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from dragoman.adapters.codex.plan import hello
from dragoman.adapters.codex.turn import BUSY, LoginBusyError, turn
from dragoman.sdk import FailureInfo
from dragoman.sdk.detection import LoginLocks, dialogue
from dragoman.sdk.failures import failure_message, sentence
from dragoman.sdk.fields import Fields, inner, parse_json_object, text
from dragoman.sdk.jsonrpc import Peer
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

METHOD: Final = "device_code"
LIMIT_S: Final = 1200.0
"""Codex gives up after 15 minutes itself."""
_START: Final = "account/login/start"
_ID: Final = 2
"""Of the second request."""


async def log_in(
    executable: str, env: Mapping[str, str], version: str, locks: LoginLocks
) -> AsyncGenerator[api.LoginResponse, None]:
    """Log Codex in; its last event is the outcome. Codex stores what it gets in its own files.

    As it starts it may renew the login that it has, so until its first word to the caller it holds that.

    Args:
        executable: Codex.
        env: its whole environment.
        version: the adapter's.
        locks: the turns of those that share a login.
    """
    try:
        async with (
            turn(env, locks) as pass_on,
            contextlib.aclosing(_steps(executable, env, version)) as events,
        ):
            async for event in events:
                pass_on()
                yield event
    except LoginBusyError:
        yield failed(BUSY)


async def _steps(executable: str, env: Mapping[str, str], version: str) -> AsyncGenerator[api.LoginResponse, None]:
    peer, login = Peer[str](says_version=False), DeviceLogin()
    first = hello(peer, version)
    lines = first + peer.notify("initialized") + peer.request(_START, {"type": "chatgptDeviceCode"}, _START)
    async with contextlib.aclosing(dialogue([executable, "app-server"], env, lines, LIMIT_S)) as heard:
        async for line in heard:
            event = login.step(line)
            if event is not None:
                yield event
                if event.HasField("outcome"):
                    return
    message = "Codex ended before it had logged in, or its time for that was over."
    yield failed(FailureInfo(pb.FAILURE_KIND_AUTH_REQUIRED, message, "codex_login_ended"))


class DeviceLogin:
    """What Codex's lines mean for one login. Pure."""

    def __init__(self) -> None:
        self._login_id = ""

    def step(self, line: str) -> api.LoginResponse | None:
        """Return what a line says of the login; ``None`` if nothing."""
        answer = parse_json_object(line.encode()) or {}
        if answer.get("id") == _ID and "method" not in answer:
            return self._begun(answer)
        if text(answer, "method") != "account/login/completed" or not self._login_id:
            return None
        about = inner(answer, "params")
        if text(about, "loginId") != self._login_id:
            return None
        if about.get("success") is True:
            return api.LoginResponse(outcome=api.LoginOutcome())
        return _refused(text(about, "error") or "the login was not completed", pb.FAILURE_KIND_AUTH_REQUIRED)

    def _begun(self, answer: Fields) -> api.LoginResponse:
        result = inner(answer, "result")
        self._login_id, url = text(result, "loginId"), text(result, "verificationUrl")
        if self._login_id and url:
            return api.LoginResponse(prompt=api.LoginPrompt(url=url, user_code=text(result, "userCode")))
        why = text(inner(answer, "error"), "message") or "it offers no device code"
        return _refused(why, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE)


def failed(info: FailureInfo) -> api.LoginResponse:
    """Return the outcome of a login that failed."""
    return api.LoginResponse(outcome=api.LoginOutcome(failure=failure_message(info)))


def _refused(why: str, kind: pb.FailureKind.ValueType) -> api.LoginResponse:
    return failed(FailureInfo(kind, sentence("Codex", why), "codex_login"))
