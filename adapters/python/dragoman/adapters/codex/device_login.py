"""Codex's login with a device code: its app server asks for the code, and waits for a person to enter it."""

from typing import Final

from dragoman.adapters.codex.plan import hello
from dragoman.sdk.account import AgentProgram, LoginReader, Steps, follow_login
from dragoman.sdk.fields import Fields, inner, parse_json_object, text
from dragoman.sdk.jsonrpc import Peer, answer_to
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api

METHOD: Final = "device_code"
_SPEC: Final = agent_spec(__package__)
_START: Final = "account/login/start"
_ID: Final = 2
"""Of the second request."""


def log_in(program: AgentProgram) -> Steps:
    """Log Codex in; its last event is the outcome. Codex stores what it gets in its own files."""
    peer = Peer[str](says_version=False)
    first = hello(peer, _SPEC.version) + peer.notify("initialized")
    lines = first + peer.request(_START, {"type": "chatgptDeviceCode"}, _START)
    return follow_login(DeviceLogin(), program, ("app-server",), lines)


class DeviceLogin(LoginReader):
    """What Codex's lines mean for one login. Pure."""

    spec = _SPEC
    _login_id = ""

    def step(self, line: str) -> api.LoginResponse | None:
        """Return what a line says of the login; ``None`` if nothing."""
        answer = answer_to(_ID, line)
        if answer:
            return self._begun(answer)
        frame = parse_json_object(line.encode()) or {}
        if text(frame, "method") != "account/login/completed" or not self._login_id:
            return None
        about = inner(frame, "params")
        if text(about, "loginId") != self._login_id:
            return None
        if about.get("success") is True:
            return self.done()
        return self.refused(text(about, "error") or "the login was not completed")

    def _begun(self, answer: Fields) -> api.LoginResponse:
        result = inner(answer, "result")
        self._login_id, url = text(result, "loginId"), text(result, "verificationUrl")
        if self._login_id and url:
            return self.prompt(url, text(result, "userCode"))
        return self.refused(text(inner(answer, "error"), "message") or "it offers no device code")
