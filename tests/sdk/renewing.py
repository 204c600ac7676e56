"""An agent that renews its login with a token that is good for one use, and an adapter for it.

As a program it serves the adapter: ``python -m tests.sdk.renewing ADDRESS``.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from dragoman.sdk import Job, Plan, serve
from dragoman.sdk.detection import RenewingLogin
from dragoman.v1 import adapter_pb2 as api

from tests.sdk.agents.test_command_line import WordsAdapter

AGENT = r"""
import json, os, sys, time

def say(kind, **fields):
    print(json.dumps({"is": kind, **fields}), flush=True)

path, used, lifetime, then = sys.argv[1:]
say("heard", text="started")
if then == "hang":
    sys.stdin.read()
with open(path) as file:
    login = json.load(file)
time.sleep(0.3)  # another one that starts now reads the same token
if login["expires"] <= time.time() + 1:
    try:
        os.close(os.open(f"{used}/{login['token']}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        print("refresh_token_reused", file=sys.stderr)
        say("done", ok=False)
        sys.exit(1)
    with open(f"{path}.new", "w") as file:
        json.dump({"token": login["token"] + 1, "expires": time.time() + float(lifetime)}, file)
    os.replace(f"{path}.new", path)
say("text", text="hello")
if then == "work":
    sys.stdin.read()
say("done", ok=True)
"""


class RenewingAdapter(WordsAdapter):
    """Runs the agent; the request's variables say where its login is."""

    def plan(self, job: Job) -> Plan:
        env = job.request.env
        words = (env["LOGIN"], env["USED"], env["LIFETIME"], job.prompt)
        return Plan((job.executable, "-I", "-S", "-c", AGENT, *words), keep_stdin_open=True)

    def renewing_login(self, job: Job, env: Mapping[str, str]) -> RenewingLogin | None:
        del env
        path = Path(job.request.env["LOGIN"])
        return RenewingLogin(path, json.loads(path.read_text())["expires"]) if path.exists() else None


class Account:
    """A login in a file, and the tokens that were used."""

    def __init__(self, root: Path, *, expires: float = 0.0) -> None:
        self.path = root / "login.json"
        self.used = root / "used"
        self.used.mkdir()
        self.path.write_text(json.dumps({"token": 1, "expires": expires}))

    def request(self, cwd: Path, then: str = "", *, lifetime_s: float = 3600.0) -> api.ExecuteRequest:
        """Return a request for a run with this login."""
        run_request = api.ExecuteRequest(prompt=then or "end", adapter="words")
        run_request.workspace.cwd = str(cwd)
        run_request.config["command"] = sys.executable
        run_request.env.update({"LOGIN": str(self.path), "USED": str(self.used), "LIFETIME": str(lifetime_s)})
        run_request.limits.grace.FromMilliseconds(300)
        run_request.orphan_after.FromSeconds(20)
        return run_request

    def renewed(self) -> int:
        """Return how often it was renewed."""
        return len(list(self.used.iterdir()))


def now() -> float:
    """Return the time as logins have it."""
    return time.time()


if __name__ == "__main__":
    serve(RenewingAdapter(), [sys.argv[1]])
