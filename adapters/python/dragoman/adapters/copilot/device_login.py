"""Copilot's login with a device code: ``copilot login`` prints the code, and waits for a person to enter it.

It stores its token in a key ring; without one only if its user has allowed a file (``storeTokenPlaintext``), for
which it asks at a terminal otherwise.
"""

import re
from typing import Final

from dragoman.sdk import FailureInfo
from dragoman.sdk.account import AgentProgram, LoginReader, Steps, follow_login, login_failed
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

METHOD: Final = "device_code"
_PROMPT: Final = re.compile(r"To authenticate, visit (\S+) and enter code (\S+)")
_DONE: Final = "Signed in successfully"
_FAILED: Final = "Login failed: "
_NOT_SAVED: Final = "the token was not saved"
_HOSTS: Final = ("COPILOT_GH_HOST", "GH_HOST")
"""Variables with another host than github.com, as runs have it; the first that is set wins."""


def log_in(program: AgentProgram) -> Steps:
    """Log Copilot in; its last event is the outcome. Copilot stores what it gets."""
    host = next(filter(None, map(program.env.get, _HOSTS)), "")
    arguments = ("login", "--device-code", *(("--host", host) if host else ()))
    return follow_login(DeviceLogin(), program, arguments, with_errors=True)


class DeviceLogin(LoginReader):
    """What Copilot's lines mean for one login. Pure."""

    spec = agent_spec(__package__)

    def step(self, line: str) -> api.LoginResponse | None:
        """Return what a line says of the login; ``None`` if nothing."""
        self.last_text = line.strip() or self.last_text
        if (prompt := _PROMPT.search(line)) is not None:
            return self.prompt(prompt[1], prompt[2])
        if line.startswith(_DONE):
            return self.done()
        if line.startswith(_FAILED):
            return self.refused(line.removeprefix(_FAILED))
        if _NOT_SAVED in line:
            advice = 'Without a key ring, first set "storeTokenPlaintext": true in Copilot\'s settings.json.'
            message = f"Copilot has nowhere to store its token. {advice}"
            return login_failed(FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, "copilot_token_not_saved"))
        return None
