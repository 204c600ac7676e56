"""Owns a guarded child until it is killed: prints the pids of guard and child, and how the child ended.

Arguments: the command to run; `--and` separates several, which run at the same time.
"""

import asyncio
import os
import sys

import psutil
from dragoman.guard.tree import MARKER
from dragoman.sdk._process.child import Child, ChildSpec


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
    words = "\0".join(sys.argv[1:]).split("\0--and\0")
    await asyncio.gather(*(run(command.split("\0"), number) for number, command in enumerate(words)))


async def run(argv: list[str], number: int) -> None:
    # Each has a marker of its own: what is done about one run must meet neither the other nor ourselves.
    environment = {**os.environ, MARKER: f"{os.environ.get(MARKER)}-{number}"}
    child = await Child.start(ChildSpec(tuple(argv), "/", environment), Printer())
    print(await child.wait(), flush=True)


asyncio.run(own())
