"""One process of an adapter, as calls and runs use it."""

import asyncio

from dragoman.protocol.signals import Signal
from dragoman.router.adapters.channel import AdapterChannel
from dragoman.router.model.tasks import Held
from dragoman.v1 import adapter_pb2


class AdapterInstance:
    """A process that answered Describe. A run is assigned to it; another process gets another instance."""

    def __init__(self, channel: AdapterChannel, description: adapter_pb2.DescribeResponse) -> None:
        self.channel = channel
        self.instance_id = description.instance_id
        self.adapter = description.adapter
        self.grants_batching = description.batching
        self.serving = asyncio.Event()
        """Set while it is connected and says SERVING."""
        self.serving.set()
        self.gone = Signal()
        """Set once this process is known not to answer ever again."""
        self.gone_because = ""
        self.users = 0
        """How many calls and runs use it."""
        self._unused = asyncio.Event()
        self._unused.set()
        self._unused_since = asyncio.get_running_loop().time()

    def leave(self, because: str) -> None:
        """Note that this process will never answer again; the first reason counts."""
        if not self.gone.is_set():
            self.gone_because = because
            self.serving.clear()
            self.gone.set()

    def used(self) -> Held["AdapterInstance"]:
        """Count a user from now on, until the end of the block."""
        self.users += 1
        self._unused.clear()
        return Held(self, self._end_use)

    def _end_use(self) -> None:
        self.users -= 1
        if self.users == 0:
            self._unused_since = asyncio.get_running_loop().time()
            self._unused.set()

    def idle_s(self, now: float) -> float:
        """Return for how many seconds it has been unused, at this time of the event loop; 0 while it is used."""
        return 0.0 if self.users else max(0.0, now - self._unused_since)

    async def unused(self) -> None:
        """Wait until no call and no run uses it."""
        await self._unused.wait()
