"""Claude Code's login with a browser: the page leads back to Claude Code, on the machine that it runs on.

Its other way shows a code that has to be typed in.
"""

from typing import Final

from dragoman.adapters.claude_code import control
from dragoman.adapters.claude_code.quota import OUTSIDE
from dragoman.sdk.account import AgentProgram, LoginReader, Steps, follow_login
from dragoman.sdk.fields import inner, parse_json_object, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api

METHOD: Final = "browser"
_BEGIN: Final = "login"
_WAIT: Final = "logged-in"


def log_in(program: AgentProgram) -> Steps:
    """Log Claude Code in; its last event is the outcome. Claude Code stores what it gets in its own files."""
    begin = control.request(_BEGIN, {"subtype": "claude_authenticate", "loginWithClaudeAi": True})
    wait = control.request(_WAIT, {"subtype": "claude_oauth_wait_for_completion"})
    return follow_login(BrowserLogin(), program, OUTSIDE, begin + wait)


class BrowserLogin(LoginReader):
    """What Claude Code's lines mean for one login. Pure."""

    spec = agent_spec(__package__)

    def step(self, line: str) -> api.LoginResponse | None:
        """Return what a line says of the login; ``None`` if nothing."""
        frame = parse_json_object(line.encode()) or {}
        response = inner(frame, "response")
        request_id = text(response, "request_id")
        if text(frame, "type") != "control_response" or request_id not in {_BEGIN, _WAIT}:
            return None
        if text(response, "subtype") != "success":
            return self.refused(text(response, "error") or "the login was refused")
        if request_id == _WAIT:
            return self.done()
        url = text(inner(response, "response"), "automaticUrl")
        return self.prompt(url) if url else self.refused("it shows no page to log in at")
