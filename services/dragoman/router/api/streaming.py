"""Streaming a run to a caller: from memory, from the log, or from both."""

import contextlib

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.event_buffer import EventReader
from dragoman.protocol.server import Context, draining, send_head, stream_events
from dragoman.protocol.signals import interruptible
from dragoman.router.api.drain import Drain
from dragoman.router.api.locate import Finished, Remote
from dragoman.router.model.stored import StoredRun
from dragoman.router.runs.actor import Run
from dragoman.router.runs.state import Superseded, is_known, is_replayed
from dragoman.router.storage.reader import StoredEventReader
from dragoman.router.storage.store import Store
from dragoman.v1 import adapter_pb2 as pb

_WRITTEN_S = 1.0
"""How long a reader of events that are no longer in memory waits for them to be in the log."""
_BY_SERVER = frozenset({Reason.SLOW_CONSUMER, Reason.DRAINING})


class SupersededError(Exception):
    """Another router has accepted the run."""


class RunStreams:
    """Streams runs to callers.

    Args:
        store: the run log.
        drain: counts the streams, and ends them with the router.
    """

    def __init__(self, store: Store, drain: Drain) -> None:
        self._store = store
        self._drain = drain

    async def live(
        self,
        run: Run,
        context: Context,
        after_sequence: int = 0,
        *,
        joined: bool = True,
        sends_id: bool = False,
        batching: bool,
    ) -> None:
        """Write a run's events until it is over.

        Args:
            run: the run.
            context: the RPC.
            after_sequence: the last sequence that the caller has.
            joined: whether to send what is pending and to mark where the replay ends.
            sends_id: whether to send nothing before the caller may rely on the run, and then its id first.
            batching: whether the caller takes several events in one message.

        Raises:
            DragomanError: SEQUENCE_AHEAD, SLOW_CONSUMER, DRAINING, or what the run was rejected with.
            SupersededError: another router has accepted it, and nothing was sent.
        """
        # The adapter's replay of an inherited run comes first; only then the run's last sequence is known.
        await run.until(is_replayed)
        if run.refusal is not None:
            raise run.refusal
        if after_sequence > run.fanout.last_sequence:
            raise _ahead(after_sequence, run.fanout.last_sequence)
        reader = await self.reader(run, after_sequence, joined=joined)
        run.notices.send_early()
        with self._drain.stream(), contextlib.closing(reader):
            if sends_id:
                # The reader is there already, so that it misses nothing meanwhile.
                await _accepted(run)
                await send_head(context, run.run_id)
            await stream_events(context, reader, batching=batching, ended_early=run.streams_end)
        if run.refusal is not None:
            raise run.refusal

    async def reader(self, run: Run, after_sequence: int = 0, *, joined: bool = False) -> EventReader:
        """Return a reader of a run's events: from memory if they are there still, else from the log."""
        if run.fanout.first_kept > after_sequence + 1:
            await run.ledger.flushed(_WRITTEN_S)
        copies = (lambda: _pending(run)) if joined else None
        return StoredEventReader(self._store, run.run_id, after_sequence, fanout=run.fanout, copies=copies)

    def stored_reader(self, stored: StoredRun, after_sequence: int = 0) -> EventReader:
        """Return a reader of the events of a run that is over, from the log."""
        return StoredEventReader(self._store, stored.run_id, after_sequence, end=stored.logged)

    async def elsewhere(self, located: Remote | Finished, request: pb.AttachRequest, context: Context) -> None:
        """Write the events of a run that is not this router's: those that its router sends, or from the log.

        Raises:
            DragomanError: SEQUENCE_AHEAD, SLOW_CONSUMER, DRAINING, RUN_NOT_FOUND if the run is deleted meanwhile,
                ADAPTER_UNAVAILABLE, or the status of the run's router.
        """
        stored, after_sequence, ending = located.stored, request.after_sequence, self._drain.ending
        with self._drain.stream():
            if isinstance(located, Remote):
                await located.forwarder.stream(stored, "Attach", request.SerializeToString(), context, ending)
                return
            await send_head(context, stored.run_id)
            if after_sequence > stored.logged:
                raise _ahead(after_sequence, stored.logged)
            # The last event is the result, which a reader that joins at the end gets again.
            reader = self.stored_reader(stored, min(after_sequence, max(stored.logged - 1, 0)))
            await stream_events(context, reader, batching=request.HasField("batching"), ended_early=ending)


async def _accepted(run: Run) -> None:
    """Wait until the caller of ``Execute`` may rely on a run.

    Raises:
        DragomanError: what it was rejected with, or DRAINING.
        SupersededError: another router has it.
    """
    if not is_known(run.state):
        with contextlib.suppress(TimeoutError):
            async with interruptible() as interrupt:
                with run.streams_end.calling(interrupt):
                    await run.until(is_known)
    if isinstance(run.state, Superseded):
        raise SupersededError
    if run.refusal is not None:
        raise run.refusal
    if not is_known(run.state):
        raise draining()


def _pending(run: Run) -> list[bytes]:
    """Return the pending input requests, to be sent again, and the status of a run that no adapter has."""
    pending = [event.SerializeToString() for event in run.record.pending.values()]
    return [*pending, run.notices.status] if run.notices.status else pending


def _ahead(after_sequence: int, last: int) -> DragomanError:
    return DragomanError(
        Reason.SEQUENCE_AHEAD,
        f"after_sequence {after_sequence} is ahead of the run; its last sequence is {last}.",
        {"last_sequence": str(last)},
    )


class KeptAlive:
    """A block while which a run is kept alive; a stream that a server ended counts for a while longer.

    Args:
        run: the run.
        is_relayed: whether another router forwards for a client. Should that router stop, the client will be back.
    """

    __slots__ = ("_is_relayed", "_run")

    def __init__(self, run: Run, *, is_relayed: bool = False) -> None:
        self._run = run
        self._is_relayed = is_relayed

    def __enter__(self) -> None:
        """Count the stream."""
        self._run.keepalive.acquire()

    def __exit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        """Count its end."""
        is_ended = isinstance(failure, DragomanError) and failure.reason in _BY_SERVER
        self._run.keepalive.release(by_server=self._is_relayed or is_ended)
