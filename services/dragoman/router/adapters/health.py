"""The health of one process: whether it serves, and whether it still is the same process."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from dragoman.protocol.backoff import Backoff
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.channel import AdapterChannel, NotServedError, is_overdue
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.v1 import adapter_pb2, router_pb2

_DESCRIBE_S = 10.0
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
NOT_SERVING = "reports NOT_SERVING"
"""Why an adapter that starts or drains is unavailable."""

Report: TypeAlias = Callable[[router_pb2.AdapterState.ValueType, str], None]

_log = Logger("dragoman.router")


async def handshake(channel: AdapterChannel) -> adapter_pb2.DescribeResponse:
    """Wait until a process reports SERVING; return its description.

    A process with runs may be too busy to answer in time, and is asked again.

    Raises:
        DragomanError: its answer is an error or invalid.
    """
    while True:
        await channel.connected()
        with contextlib.suppress(NotServedError):
            while not await _first_serving(channel):
                await asyncio.sleep(_SHORTEST_PAUSE_S)
                await channel.connected()
        try:
            return await channel.describe(_DESCRIBE_S)
        except DragomanError as error:
            if not is_overdue(error):
                raise


async def introduction(channel: AdapterChannel) -> tuple[adapter_pb2.DescribeResponse, bool]:
    """Return the description of a process, and whether it serves: one that drains may have runs to take over.

    Raises:
        DragomanError: its answer is an error or invalid.
    """
    is_serving = True
    with contextlib.suppress(NotServedError):
        async for reported in channel.health():
            is_serving = reported
            break
    return await channel.describe(_DESCRIBE_S), is_serving


async def _first_serving(channel: AdapterChannel) -> bool:
    """Follow its health until it serves; return False if the connection ends before."""
    async for serving in channel.health():
        if serving:
            return True
    return False


class HealthWatch:
    """Follows the health of one process.

    Args:
        instance: the process.
        report: is given its state, with a reason.
        reconnect: waits until there is a connection again, or the process is known to be gone.
    """

    def __init__(self, instance: AdapterInstance, report: Report, reconnect: Callable[[], Awaitable[None]]) -> None:
        self._instance = instance
        self._report = report
        self._reconnect = reconnect

    async def run(self) -> None:
        """Follow it until another process answers at its address."""
        instance, backoff = self._instance, Backoff(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S)
        while not instance.gone.is_set():
            if await self._follow():
                backoff.reset()
            if instance.gone.is_set():
                return
            instance.serving.clear()
            self._report(router_pb2.ADAPTER_STATE_UNAVAILABLE, "is not connected")
            await asyncio.sleep(backoff.next_s())
            await self._reconnect()
            if not instance.gone.is_set():
                await self._recognise()

    async def _follow(self) -> bool:
        """Follow it over one connection; return whether it reported anything."""
        has_reported = False
        try:
            async for serving in self._instance.channel.health():
                has_reported = True
                self._note(serving)
        except NotServedError:
            has_reported = True
            self._note(serving=True)
            await self._instance.channel.disconnected()
        return has_reported

    def _note(self, serving: bool) -> None:
        instance = self._instance
        if instance.gone.is_set() or serving == instance.serving.is_set():
            return
        log = _log.bind(adapter=instance.adapter, instance=instance.instance_id)
        if serving:
            instance.serving.set()
            self._report(router_pb2.ADAPTER_STATE_READY, "")
            log.info("adapter is serving")
        else:
            instance.serving.clear()
            self._report(router_pb2.ADAPTER_STATE_UNAVAILABLE, NOT_SERVING)
            log.warning("adapter reports NOT_SERVING")

    async def _recognise(self) -> None:
        """Check that the same process still answers."""
        try:
            description = await self._instance.channel.describe(_DESCRIBE_S)
        except DragomanError:
            return  # the connection is gone again; the next one will show
        if description.instance_id != self._instance.instance_id:
            self._instance.leave("was restarted: another process answers at its address")
