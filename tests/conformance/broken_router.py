"""A router in front of the scripted adapter, as a program; with BREAK=router.drain it ends without its streams."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path

from dragoman.router.app import Router

from tests.conformance.scripted import serving
from tests.router.harness import config

BREAK = os.environ.get("BREAK", "")


async def main() -> None:
    stop = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="dragoman-router-") as name:
        folder = Path(name)
        async with serving(f"unix:{folder / 'whole.sock'}") as adapter:
            configured = config(
                folder, listen=(os.environ["DRAGOMAN_LISTEN"],), addresses=(str(adapter.addresses[0]),)
            )
            async with Router(configured) as router:
                on_signal = (lambda: os._exit(0)) if BREAK == "router.drain" else stop.set
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_signal)
                await stop.wait()
                await router.stop(10.0)


if __name__ == "__main__":
    asyncio.run(main())
