"""Owns a guarded child until it is killed: prints the pids of guard and child.

Arguments: the command to run.
"""

import asyncio
import os
import sys

import psutil
from dragoman.sdk._child import Child, ChildSpec


class Printer:
    """Passes the child's output on and says who is who."""

    def spawned(self, pid: int, pgid: int) -> None:
        del pgid
        print(psutil.Process(pid).ppid(), pid, flush=True)

    def spawn_failed(self, errno_name: str, message: str) -> None:
        print(errno_name, message, flush=True)

    def data(self, stream: str, data: bytes) -> None:
        del stream
        os.write(1, data)

    def eof(self, stream: str) -> None:
        del stream

    def exited(self, code: int | None, signal: int | None) -> None:
        del code, signal


async def own() -> None:
    child = await Child.start(ChildSpec(tuple(sys.argv[1:]), "/", dict(os.environ)), Printer())
    await child.wait()


asyncio.run(own())
