"""opencode's login of a ChatGPT account with a device code: ``opencode auth login`` prints it, and waits.

Its logins at other providers ask questions at a terminal first, or lead a browser back to this machine.
"""

import re
from typing import Final

from dragoman.sdk import FailureInfo
from dragoman.sdk.account import AgentProgram, Steps, follow_login, login_ended, login_failed, login_refused
from dragoman.sdk.detection import dialogue
from dragoman.sdk.parsing import without_terminal_orders
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api

METHOD: Final = "device_code"
_SPEC: Final = agent_spec(__package__)
LIMIT_S: Final = 1200.0
"""OpenAI's codes are good for 15 minutes."""
_ARGS: Final = ("auth", "login", "--provider", "openai", "--method", "ChatGPT Pro/Plus (headless)")
_URL: Final = re.compile(r"Go to: (https?://\S+)")
_CODE: Final = re.compile(r"Enter code: (\S+)")
_DONE: Final = "Login successful"
_FAILED: Final = "Failed to authorize"


def log_in(program: AgentProgram) -> Steps:
    """Log opencode in; its last event is the outcome. opencode stores what it gets in its own files.

    Args:
        program: opencode.
    """
    argv = [program.executable, *_ARGS]
    return follow_login(DeviceLogin(), dialogue(argv, program.env, b"", LIMIT_S, with_errors=True))


class DeviceLogin:
    """What opencode's lines mean for one login. Pure."""

    def __init__(self) -> None:
        self._url = ""
        self._begun = False
        self._last = ""

    def step(self, line: str) -> api.LoginResponse | None:
        """Return what a line says of the login; ``None`` if nothing."""
        shown = without_terminal_orders(line)
        self._last = shown.strip(" \t│┌└●◇◒■") or self._last
        if (url := _URL.search(shown)) is not None:
            self._url = url[1]
        elif (code := _CODE.search(shown)) is not None and self._url:
            self._begun = True
            return api.LoginResponse(prompt=api.LoginPrompt(url=self._url, user_code=code[1]))
        elif _DONE in shown and self._begun:
            return api.LoginResponse(outcome=api.LoginOutcome())
        elif _FAILED in shown:
            return login_failed(login_refused(_SPEC, "the login was not completed", begun=self._begun))
        return None

    def ended(self) -> FailureInfo:
        """Return why there is no outcome, when opencode has ended or its time is over."""
        if self._begun or not self._last:
            return login_ended(_SPEC)
        return login_refused(_SPEC, self._last, begun=self._begun)
