"""The scripted adapter as a program that breaks one rule of processes, named in the variable BREAK."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from dragoman.protocol.addresses import AddressError
from dragoman.sdk import Run

from tests.conformance.scripted import ScriptedAdapter, serving

BREAK = os.environ.get("BREAK", "")
PROCESS_BREAKS = (
    "process.drain",
    "process.sigterm-idle",
    "process.second-start",
    "process.stale-socket",
    "process.nothing-left",
)


class Counting(ScriptedAdapter):
    """Counts its runs."""

    live = 0
    runs = 0

    async def execute(self, run: Run):  # type: ignore[no-untyped-def] # as in the class
        self.live += 1
        self.runs += 1
        try:
            return await super().execute(run)
        finally:
            self.live -= 1


async def main() -> None:
    address = os.environ["DRAGOMAN_LISTEN"]
    adapter = Counting()
    if BREAK == "process.stale-socket" and Path(address.removeprefix("unix:")).exists():
        raise SystemExit("the socket exists")
    stop = asyncio.Event()

    def on_signal() -> None:
        if BREAK == "process.drain" and adapter.live:
            os._exit(0)
        if BREAK == "process.sigterm-idle" and not adapter.runs:
            return
        if BREAK == "process.nothing-left" and adapter.runs:
            subprocess.Popen(["sleep", "8"], start_new_session=True)
        stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_signal)
    try:
        async with serving(address, adapter):
            await stop.wait()
    except AddressError as error:
        sys.exit(0 if BREAK == "process.second-start" else str(error))


if __name__ == "__main__":
    asyncio.run(main())
