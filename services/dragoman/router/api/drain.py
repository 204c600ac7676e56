"""The end of a router: no new work, then the end of its runs, its adapters, and its clients' streams."""

import asyncio

from dragoman.protocol.logs import Logger
from dragoman.protocol.server import draining
from dragoman.protocol.signals import Signal
from dragoman.router.adapters.adapter_set import AdapterSet
from dragoman.router.adapters.remote import RunningAdapter
from dragoman.router.cluster.forwarding import ReplicaForwarder
from dragoman.router.model.tasks import Conditions, Held, Tasks, first_of
from dragoman.router.runs.registry import RunRegistry
from dragoman.router.runs.state import Live, is_over, is_unstarted

_LAST_READS_S = 1.0
"""How long readers may take to read the end of their runs once the adapters are gone."""

_log = Logger("dragoman.router")


class Drain:
    """Counts the streams of clients, and ends them with all that the router runs.

    Args:
        stop_s: how long a launched adapter may take to drain.
    """

    def __init__(
        self, runs: RunRegistry, adapters: AdapterSet, forwarder: ReplicaForwarder, tasks: Tasks, stop_s: float
    ) -> None:
        self._stop_s = stop_s
        self._runs = runs
        self._adapters = adapters
        self._forwarder = forwarder
        self._tasks = tasks
        self.ending = Signal()
        """Set when the streams of clients end because the router does."""
        self.is_draining = False
        self.hurry = asyncio.Event()
        """Set to end a drain that is under way at once."""
        self._streams = 0
        self._fewer_streams = Conditions()

    def refuse_new(self) -> None:
        """Raise DRAINING if nothing new is accepted."""
        if self.is_draining:
            raise draining()

    def stream(self) -> Held[None]:
        """Count a client's stream from now on, until the end of the block."""
        self._streams += 1
        return Held(None, self._end_stream)

    def _end_stream(self) -> None:
        self._streams -= 1
        self._fewer_streams.check()

    async def drain(self, grace_s: float) -> None:
        """Refuse new work; give live runs ``grace_s`` seconds; stop launched adapters; end all streams.

        An adapter that stops cancels its runs, and their readers see how they end. Runs at configured addresses
        continue without this router; their readers are asked to attach again.
        """
        self.is_draining = True
        live = self._runs.live()
        if live:
            _log.info("waiting for live runs", live=len(live), grace_s=grace_s)
            all_over = asyncio.gather(*(run.until(is_over) for run in live))
            await first_of(all_over, self.hurry.wait(), timeout_s=grace_s)
        for run in live:
            if isinstance(run.backend, RunningAdapter):
                run.end_streams()
            elif isinstance(run.state, Live) and not is_unstarted(run.state):
                run.notices.warn(
                    "router_stopped", "The router and its adapters are shutting down; the run is being cancelled."
                )
            if is_unstarted(run.state):
                # The next router ends it as not started; this one must not give it a free slot.
                run.end_streams(stop=True)
        await self._adapters.stop_launched(0.0 if self.hurry.is_set() else self._stop_s, self.hurry)
        await self._fewer_streams.until(lambda: not self._streams, _LAST_READS_S)
        self.ending.set()
        for run in self._runs:
            run.end_streams()
            # Whether a client still holds it is no longer this router's business.
            run.keepalive.close()
        await self._tasks.end()
        await self._adapters.stop()
        await self._forwarder.close()
