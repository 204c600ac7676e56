"""Claude Code's login with a browser: the page leads back to Claude Code, on the machine that it runs on.

Its other way shows a code that has to be typed in.
"""

from typing import Final

from dragoman.adapters.claude_code import control
from dragoman.adapters.claude_code.login import renewing_login
from dragoman.adapters.claude_code.quota import OUTSIDE
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
from dragoman.sdk.fields import inner, parse_json_object, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api

METHOD: Final = "browser"
LIMIT_S: Final = 1200.0
_SPEC: Final = agent_spec(__package__)
_BEGIN: Final = "login"
_WAIT: Final = "logged-in"


def log_in(program: AgentProgram, locks: LoginLocks) -> Steps:
    """Log Claude Code in; its last event is the outcome. Claude Code stores what it gets in its own files.

    Args:
        program: Claude Code.
        locks: the turns of those that share a login.
    """
    begin = control.request(_BEGIN, {"subtype": "claude_authenticate", "loginWithClaudeAi": True})
    wait = control.request(_WAIT, {"subtype": "claude_oauth_wait_for_completion"})
    heard = dialogue([program.executable, *OUTSIDE], program.env, begin + wait, LIMIT_S)
    return in_turn(renewing_login(program.env), locks, follow_login(BrowserLogin(), heard), login_busy(_SPEC))


class BrowserLogin:
    """What Claude Code's lines mean for one login. Pure."""

    def __init__(self) -> None:
        self._begun = False

    def step(self, line: str) -> api.LoginResponse | None:
        """Return what a line says of the login; ``None`` if nothing."""
        frame = parse_json_object(line.encode()) or {}
        response = inner(frame, "response")
        request_id = text(response, "request_id")
        if text(frame, "type") != "control_response" or request_id not in {_BEGIN, _WAIT}:
            return None
        if text(response, "subtype") != "success":
            return self._refused(text(response, "error") or "the login was refused")
        if request_id == _WAIT:
            return api.LoginResponse(outcome=api.LoginOutcome()) if self._begun else None
        url = text(inner(response, "response"), "automaticUrl")
        if not url:
            return self._refused("it shows no page to log in at")
        self._begun = True
        return api.LoginResponse(prompt=api.LoginPrompt(url=url))

    def ended(self) -> FailureInfo:
        """Return why there is no outcome, when Claude Code has ended or its time is over."""
        return login_ended(_SPEC)

    def _refused(self, why: str) -> api.LoginResponse:
        return login_failed(login_refused(_SPEC, why, begun=self._begun))
