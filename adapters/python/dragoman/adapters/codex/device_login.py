"""Codex's login with a device code: its app server asks for the code, and waits for a person to enter it."""

from typing import Final

from dragoman.adapters.codex.login import renewing_login
from dragoman.adapters.codex.plan import hello
from dragoman.sdk import FailureInfo
from dragoman.sdk.account import (
    AgentProgram,
    Steps,
    follow_login,
    in_turn,
    login_busy,
    login_ended,
    login_failed,
    login_refused,
)
from dragoman.sdk.detection import LoginLocks, dialogue
from dragoman.sdk.fields import Fields, inner, parse_json_object, text
from dragoman.sdk.jsonrpc import Peer
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api

METHOD: Final = "device_code"
LIMIT_S: Final = 1200.0
"""Codex gives up after 15 minutes itself."""
_SPEC: Final = agent_spec(__package__)
_START: Final = "account/login/start"
_ID: Final = 2
"""Of the second request."""


def log_in(program: AgentProgram, version: str, locks: LoginLocks) -> Steps:
    """Log Codex in; its last event is the outcome. Codex stores what it gets in its own files.

    Args:
        program: Codex.
        version: the adapter's.
        locks: the turns of those that share a login.
    """
    peer = Peer[str](says_version=False)
    first = hello(peer, version)
    lines = first + peer.notify("initialized") + peer.request(_START, {"type": "chatgptDeviceCode"}, _START)
    heard = dialogue([program.executable, "app-server"], program.env, lines, LIMIT_S)
    steps = follow_login(DeviceLogin(), heard)
    return in_turn(renewing_login(program.env), locks, steps, login_busy(_SPEC))


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
        why = text(about, "error") or "the login was not completed"
        return login_failed(login_refused(_SPEC, why, begun=True))

    def ended(self) -> FailureInfo:
        """Return why there is no outcome, when Codex has ended or its time is over."""
        return login_ended(_SPEC)

    def _begun(self, answer: Fields) -> api.LoginResponse:
        result = inner(answer, "result")
        self._login_id, url = text(result, "loginId"), text(result, "verificationUrl")
        if self._login_id and url:
            return api.LoginResponse(prompt=api.LoginPrompt(url=url, user_code=text(result, "userCode")))
        why = text(inner(answer, "error"), "message") or "it offers no device code"
        return login_failed(login_refused(_SPEC, why, begun=False))
