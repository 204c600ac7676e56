"""opencode's login of a ChatGPT account with a device code: ``opencode auth login`` prints it, and waits.

Its logins at other providers ask questions at a terminal first, or lead a browser back to this machine.
"""

import re
from typing import Final

from dragoman.sdk.account import AgentProgram, LoginReader, Steps, follow_login
from dragoman.sdk.parsing import without_terminal_orders
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api

METHOD: Final = "device_code"
_ARGS: Final = ("auth", "login", "--provider", "openai", "--method", "ChatGPT Pro/Plus (headless)")
_URL: Final = re.compile(r"Go to: (https?://\S+)")
_CODE: Final = re.compile(r"Enter code: (\S+)")
_DONE: Final = "Login successful"
_FAILED: Final = "Failed to authorize"


def log_in(program: AgentProgram) -> Steps:
    """Log opencode in; its last event is the outcome. opencode stores what it gets in its own files."""
    return follow_login(DeviceLogin(), program, _ARGS, with_errors=True)


class DeviceLogin(LoginReader):
    """What opencode's lines mean for one login. Pure."""

    spec = agent_spec(__package__)
    _url = ""

    def step(self, line: str) -> api.LoginResponse | None:
        """Return what a line says of the login; ``None`` if nothing."""
        shown = without_terminal_orders(line)
        self.last_text = shown.strip(" \t│┌└●◇◒■") or self.last_text
        if (url := _URL.search(shown)) is not None:
            self._url = url[1]
        elif (code := _CODE.search(shown)) is not None and self._url:
            return self.prompt(self._url, code[1])
        elif _DONE in shown:
            return self.done()
        elif _FAILED in shown:
            return self.refused("the login was not completed")
        return None
