"""What serves the calls for an adapter: a living process, started or reached when a call needs it."""

import abc
import asyncio

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.channel import RETRY_S, unavailable
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.registry import AdapterRecord
from dragoman.router.model.tasks import Held, first_of
from dragoman.v1 import router_pb2

_log = Logger("dragoman.router")


class AdapterBackend(abc.ABC):
    """Gives calls a living process of one adapter.

    Args:
        record: the registry's entry, which is kept up to date here.
        context: what the backends of all adapters share.
    """

    def __init__(self, record: AdapterRecord, context: AdapterContext) -> None:
        self.record = record
        self._context = context
        self.waiting = 0
        """How many calls and runs wait for a process."""
        self.is_removed = False
        """Whether it only serves the runs that it has, as it is no longer in the list."""
        self.process_count = 1
        """How many processes take new runs, or would once they are started; at least 1."""

    async def use(self, instance_id: str = "") -> Held[AdapterInstance]:
        """Use a living process of this adapter until the end of the block; it is started if need be.

        Args:
            instance_id: which process, for a run that it has: it may be draining; empty for one for a new run.

        Raises:
            DragomanError: ADAPTER_UNAVAILABLE or ADAPTER_REFUSED.
        """
        self.waiting += 1
        try:
            return (await self._serving(instance_id)).used()
        finally:
            self.waiting -= 1

    @property
    @abc.abstractmethod
    def is_up(self) -> bool:
        """Whether there is a process that could know a run."""

    def lose(self, instance: AdapterInstance) -> None:  # noqa: B027 - only launched processes have an owner
        """Note that another router has taken over a process of this adapter, with its runs."""

    async def end_if_deaf(self, instance: AdapterInstance) -> None:  # noqa: B027 - as above
        """End a launched process, with all its agents, if it no longer answers.

        Its guard keeps it because it lives, and it would receive no Cancel.
        """

    @property
    def remarks(self) -> list[str]:
        """What there is to say of it beside its state, for people."""
        return []

    async def retire(self) -> None:
        """Serve only the runs and calls that are under way, and return once the last is over.

        New ones are refused: it has been removed.
        """
        self.is_removed = True
        why = "it was removed from this router"
        self.record.reject(f"{why} ({self.record.spec.origin})" if self.record.spec.origin else why)
        await self._end_unused()

    @abc.abstractmethod
    async def _end_unused(self) -> None:
        """End it once it is not used any more, and return then."""

    @abc.abstractmethod
    async def stop(self, grace_s: float) -> None:
        """Stop it: a process that was launched here ends within ``grace_s`` seconds or is killed."""

    @abc.abstractmethod
    async def _acquire(self, instance_id: str) -> AdapterInstance:
        """Return the present process, starting or reaching it if need be.

        Args:
            instance_id: which, if the adapter has several; empty for the best.
        """

    async def _serving(self, instance_id: str) -> AdapterInstance:
        if self.record.is_rejected:
            raise self.refusal()
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + self._context.timing.patience_s
        while True:
            instance = await self._acquire(instance_id)
            if instance.serving.is_set() or instance_id:
                return instance
            if loop.time() >= patient_until:
                raise self.unavailable(self.record.reason or instance.gone_because or "is draining")
            # Either it is back, or another process replaces it.
            await first_of(instance.serving.wait(), instance.gone.wait(), timeout_s=patient_until - loop.time())

    def refusal(self) -> DragomanError:
        """Return the error for a call to a rejected adapter."""
        return DragomanError(
            Reason.ADAPTER_REFUSED,
            f"Adapter {self.record.type!r} is rejected: {self.record.reason.rstrip('.')}.",
            {"adapter": self.record.type},
        )

    def reject(self, why: str) -> DragomanError:
        """Note that it is rejected, and return the error for calls."""
        self.record.reject(why)
        _log.warning("adapter refused", adapter=self.record.type, reason=self.record.reason)
        self._context.changes.notify()
        return self.refusal()

    def unavailable(self, why: str, retry_after_s: float = RETRY_S) -> DragomanError:
        """Return the error for a call that gets no process."""
        error = unavailable(f"Adapter {self.record.type!r} {why}.", max(retry_after_s, 0.1))
        error.metadata = {"adapter": self.record.type}
        return error

    def set_state(self, state: router_pb2.AdapterState.ValueType, reason: str = "") -> None:
        """Set the state of the adapter, and notify those that watch the list."""
        if self.is_removed:
            return
        # Only a later description that is valid ends a rejection.
        if not self.record.is_rejected or state == router_pb2.ADAPTER_STATE_READY:
            self.record.enter(state, reason)
        self._context.changes.notify()
