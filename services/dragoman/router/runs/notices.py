"""What the router reports to a run's present readers without a sequence: its status, notices and heartbeats."""

import asyncio
from collections.abc import Callable
from typing import Any

from dragoman.protocol.event_buffer import EventBuffer
from dragoman.protocol.limits import HEARTBEAT_AFTER_S
from dragoman.protocol.logs import Logger
from dragoman.router.model.ports import Clock
from dragoman.router.model.run_record import RunRecord
from dragoman.v1 import event_pb2 as pb

_log = Logger("dragoman.router")


class RunNotices:
    """The ephemeral events of one run that the router itself makes.

    Args:
        buffer: has its readers.
        hear: called with each notice that is new.
    """

    def __init__(
        self, record: RunRecord, buffer: EventBuffer, clock: Clock, hear: Callable[[pb.AgentEvent], None]
    ) -> None:
        self._record = record
        self._buffer = buffer
        self._clock = clock
        self._hear = hear
        self.status = b""
        """What the run waits for, for readers that join meanwhile; empty if an adapter has it."""
        self.rejections: tuple[str, ...] = ()
        """Why adapters did not take the run, as far as no durable event says so yet."""
        self._early: list[bytes] = []
        """Events from before the first reader came."""
        self._heartbeat: asyncio.TimerHandle | None = None

    def report(self, status: pb.State) -> None:
        """Report what the run waits for."""
        self.status = self._own(state=status)
        self._send(self.status)

    def warn(self, code: str, text: str, cause: str = "", *, each_time: bool = False) -> None:
        """Make a notice for present readers and for ``GetRun``.

        A repeated one is only counted, as readers have seen it; unless it is about what comes and goes.
        """
        is_new = self._record.remark(text)
        if is_new:
            self._hear(pb.AgentEvent(notice=pb.Notice(code=code, message=text)))
        if is_new or each_time:
            self._send(self._own(notice=pb.Notice(severity=pb.SEVERITY_WARNING, code=code, message=text)))
        record, fields = self._record, {"cause": cause} if cause else {}
        run = {"run_id": record.run_id, "adapter": record.adapter, "instance": record.instance_id}
        _log.warning("notice", code=code, **run, **fields)

    def record_rejection(self, code: str, text: str) -> None:
        """Make a notice that an adapter did not take the run; the next durable event that can says so too."""
        self.warn(code, text)
        self.rejections += (text,)

    def send_early(self) -> None:
        """Send what was reported before the first reader came."""
        early, self._early = self._early, []
        for data in early:
            self._buffer.send_ephemeral(data)

    def beat(self, is_due: Callable[[], bool]) -> None:
        """Send a heartbeat now and then, whenever the run's adapter does not, until ``stop``."""
        if is_due():
            heartbeat = pb.Heartbeat(last_sequence=self._buffer.last_sequence)
            self._buffer.send_ephemeral(self._own(heartbeat=heartbeat))
        self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_AFTER_S, self.beat, is_due)

    def stop(self) -> None:
        """Send no more heartbeats."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def _send(self, data: bytes) -> None:
        if not self._buffer.readers and not self._record.last_sequence:
            self._early.append(data)
        self._buffer.send_ephemeral(data)

    def _own(self, **body: Any) -> bytes:
        return self._record.own_event(self._clock.time(), **body)
