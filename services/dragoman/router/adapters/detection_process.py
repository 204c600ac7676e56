"""One process that detects the agents of many adapters.

Most of an adapter's start is the import of what all adapters that come with Dragoman share. Asked together they are
asked in one process, which is ended afterwards; each one's answer is what its own process would say.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self

from dragoman.protocol.errors import DragomanError
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.channel import AdapterChannel
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.launch_spec import LaunchSpec
from dragoman.router.adapters.launcher import LaunchError
from dragoman.router.adapters.registry import AdapterRecord, without_process
from dragoman.router.model.tasks import first_of

NAME = "shared-detection"
"""For paths and logs. No adapter has this type."""

_log = Logger("dragoman.router")


class DetectionProcess:
    """The process, while it runs; made by ``open``."""

    def __init__(self, channel: AdapterChannel, context: AdapterContext) -> None:
        self._channel = channel
        self._context = context

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, spec: LaunchSpec, context: AdapterContext) -> AsyncIterator[Self | None]:
        """Start it, and end it with the block; yields ``None`` if it does not start."""
        try:
            launched = await context.launcher.launch(NAME, spec)
        except LaunchError as error:
            _log.warning("shared detection failed to start", reason=str(error))
            yield None
            return
        channel = AdapterChannel(launched.address)
        try:
            connected = asyncio.ensure_future(channel.listening())
            await first_of(connected, launched.ended(), timeout_s=context.timing.start_s)
            is_up = not connected.cancelled() and connected.exception() is None
            if not is_up:
                _log.warning("shared detection failed to start", log=launched.log_path)
            yield cls(channel, context) if is_up else None
        finally:
            await channel.close()
            await asyncio.shield(launched.stop(0.0))

    async def detect(self, record: AdapterRecord, request: bytes, timeout_s: float | None) -> bytes:
        """Return an adapter's ``DetectResponse``, and store its description if it is not known.

        Args:
            record: the adapter.
            request: a ``DetectRequest`` that names it by its type.
            timeout_s: how long to wait.

        Raises:
            DragomanError: its status, or that the process is gone.
        """
        detecting = asyncio.ensure_future(self._channel.answer("Detect", request, timeout_s=timeout_s))
        try:
            if record.description is None:
                await self._describe(record, timeout_s)
            return await detecting
        finally:
            detecting.cancel()

    async def _describe(self, record: AdapterRecord, timeout_s: float | None) -> None:
        with contextlib.suppress(DragomanError):  # its own process will say what is wrong with it
            described = await self._channel.describe(timeout_s, adapter=record.type)
            data = without_process(described).SerializeToString()
            self._context.descriptions.save(record.identity, data)
            self._context.registry.restore(record, data)
