"""One process of an adapter, as calls and runs see it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from dragoman.router._rpc.link import Link
from dragoman.v1 import adapter_pb2


class Endpoint:
    """A process that answered. Runs are pinned to it; it never becomes another one.

    Args:
        link: the channel to it.
        description: what it said of itself.
    """

    def __init__(self, link: Link, description: adapter_pb2.DescribeResponse) -> None:
        self.link = link
        self.instance_id = description.instance_id
        self.adapter = description.adapter
        self.serving = asyncio.Event()
        """Set while it is connected and says SERVING."""
        self.serving.set()
        self.gone = asyncio.Event()
        """Set once this process is known not to answer ever again."""
        self.gone_because = ""
        self._on_gone: set[Callable[[], object]] = set()
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._in_use = asyncio.Event()

    def leave(self, because: str) -> None:
        """Say that this process will not answer any more; the first reason counts."""
        if not self.gone.is_set():
            self.gone_because = because
            self.serving.clear()
            self.gone.set()
            for call in tuple(self._on_gone):
                call()

    @contextlib.contextmanager
    def when_gone(self, call: Callable[[], object]) -> Iterator[None]:
        """Have this called should the process go while the block runs, or be gone already."""
        if self.gone.is_set():
            call()
        self._on_gone.add(call)
        try:
            yield
        finally:
            self._on_gone.discard(call)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Count a user while the block runs."""
        self._users += 1
        self._unused.clear()
        self._in_use.set()
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                self._unused.set()
                self._in_use.clear()

    @property
    def is_used(self) -> bool:
        """Whether anybody uses it."""
        return self._users > 0

    async def unused(self) -> None:
        """Wait until nobody uses it."""
        await self._unused.wait()

    async def in_use(self) -> None:
        """Wait until somebody uses it."""
        await self._in_use.wait()
