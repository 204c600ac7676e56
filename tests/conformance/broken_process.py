"""The scripted adapter as a program that breaks one rule of processes, named in the variable BREAK."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from dragoman.conformance.script import VARIABLE
from dragoman.protocol.addresses import AddressError
from dragoman.sdk import Run

from tests.conformance.scripted import ScriptedAdapter, serving

BREAK = os.environ.get("BREAK", "")
GRACE_S = 2.0
"""How long a run may live on while the adapter drains."""
LONGER_THAN_IT_MAY_S = 4.0
PROCESS_BREAKS = (
    "process.drain",
    "process.draining",
    "process.secrets",
    "process.sigterm-idle",
    "process.second-start",
    "process.stale-socket",
    "process.nothing-left",
)


def leave_agent(env: dict[str, str]) -> None:
    """Start an agent that outlives the adapter, and write its process ID down."""
    agent = subprocess.Popen(["sleep", "60"], start_new_session=True, env=env)
    with Path(os.environ["LEFT"]).open("a", encoding="utf-8") as file:
        file.write(f"{agent.pid}\n")


class Counting(ScriptedAdapter):
    """Counts its runs."""

    live = 0
    deaf = 0
    runs = 0

    async def execute(self, run: Run):  # type: ignore[no-untyped-def] # as in the class
        if BREAK == "process.secrets":
            sys.stderr.write(f"{run.request}\n")
        if BREAK == "agents-left":
            leave_agent(dict(run.request.env))
        is_deaf = "deaf" in run.request.env.get(VARIABLE, "")
        self.live += 1
        self.deaf += is_deaf
        self.runs += 1
        try:
            return await super().execute(run)
        finally:
            self.live -= 1
            self.deaf -= is_deaf


async def main() -> None:
    address = os.environ["DRAGOMAN_LISTEN"]
    adapter = Counting()
    if BREAK == "process.stale-socket" and Path(address.removeprefix("unix:")).exists():
        raise SystemExit("the socket exists")
    stop = asyncio.Event()

    def on_signal() -> None:
        if BREAK == "process.drain" and adapter.live > adapter.deaf:
            os._exit(0)
        if BREAK == "process.sigterm-idle" and not adapter.runs:
            return
        if BREAK == "process.nothing-left" and adapter.runs:
            subprocess.Popen(["sleep", "8"], start_new_session=True)
        stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_signal)
    try:
        async with serving(address, adapter, grace_s=GRACE_S):
            await stop.wait()
            if BREAK == "process.draining" and adapter.deaf:
                await asyncio.sleep(LONGER_THAN_IT_MAY_S)
    except AddressError as error:
        sys.exit(0 if BREAK == "process.second-start" else str(error))


if __name__ == "__main__":
    asyncio.run(main())
