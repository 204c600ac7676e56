"""What the services do alike: reading requests, refusing them, streaming a run."""

from typing import Any, TypeVar

import structlog
from dragoman.protocol.errors import DragomanError, Reason, invalid, not_supported
from dragoman.protocol.fanout import EventReader
from dragoman.protocol.server import Context, stream_events
from dragoman.router._domain.requests import Objection
from dragoman.router._domain.stored import StoredRun
from dragoman.router._rpc.core import Core
from dragoman.router._rpc.recalling import LogReader
from dragoman.router._rpc.run import Run
from google.protobuf.message import DecodeError, Message

_MARGIN_S = 0.05
"""What is kept of a caller's deadline, so that the answer that it passed is the adapter's and has a reason."""
_WRITTEN_S = 1.0
"""How long a reader of what is in memory no more waits for it to be in the log."""
_BY_SERVER = frozenset({Reason.SLOW_CONSUMER, Reason.DRAINING})

Request = TypeVar("Request", bound=Message)


def read(kind: type[Request], data: bytes) -> Request:
    """Parse a request.

    Raises:
        DragomanError: INVALID_REQUEST.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise DragomanError(Reason.INVALID_REQUEST, f"the request is no {kind.DESCRIPTOR.name}") from error


def addressed(kind: type[Message], data: bytes, given: str, adapter: str) -> bytes:
    """Return the request with the adapter's type in place of a name that it may not know itself.

    Not written anew: of a field that comes twice the last counts, so the type is put behind.

    Args:
        kind: the request's type, which has a field ``adapter``.
        data: the request.
        given: the name in it.
        adapter: the type.
    """
    if given in {"", adapter}:
        return data
    return data + kind(adapter=adapter).SerializeToString()


def refuse(objection: Objection | None) -> None:
    """Raise what is wrong with a request, if anything is."""
    if objection is not None:
        make = not_supported if objection.is_unsupported else invalid
        raise make(objection.path, objection.description)


def bind(**facts: str) -> None:
    """Put these facts into every log line of this RPC."""
    structlog.contextvars.bind_contextvars(**facts)


def remaining_s(context: Context) -> float | None:
    """Return how long an adapter may take to answer; ``None`` if the caller has no deadline."""
    left: Any = context.time_remaining()  # None without a deadline, which the stubs do not say
    return None if left is None else max(left - _MARGIN_S, 0.001)


async def stream_run(core: Core, run: Run, context: Context, *, after_sequence: int = 0, joined: bool) -> None:
    """Write a run's events until it is over.

    Args:
        core: the router.
        run: the run.
        context: the RPC.
        after_sequence: the last sequence the reader has.
        joined: whether to send what is pending and to mark where the replay ends.

    Raises:
        DragomanError: SEQUENCE_AHEAD, SLOW_CONSUMER, DRAINING, or what the run was refused with.
    """
    if run.catches_up:
        # What the adapter has kept comes first; only then is it known where the run stands.
        await run.replayed.wait()
    if run.refusal is not None:
        raise run.refusal
    if after_sequence > run.fanout.last_sequence:
        raise _ahead(after_sequence, run.fanout.last_sequence)
    reader: EventReader
    if run.fanout.first_kept <= after_sequence + 1:
        reader = run.fanout.reader(after_sequence, replay_done=joined, copies=_pending(run) if joined else [])
    else:
        await run.written(_WRITTEN_S)
        reader = LogReader(
            core.keeping.store,
            run.run_id,
            after_sequence,
            fanout=run.fanout,
            replay_done=joined,
            copies=lambda: _pending(run) if joined else [],
        )
    run.tell_early()
    with core.stream():
        await stream_events(context, reader, ended_early=run.streams_end)
    if run.refusal is not None:
        raise run.refusal


async def stream_stored(core: Core, stored: StoredRun, context: Context, *, after_sequence: int = 0) -> None:
    """Write the events of a run that is over, from the log.

    Args:
        core: the router.
        stored: the run.
        context: the RPC.
        after_sequence: the last sequence the reader has.

    Raises:
        DragomanError: SEQUENCE_AHEAD, SLOW_CONSUMER, DRAINING, or RUN_NOT_FOUND as it is forgotten meanwhile.
    """
    if after_sequence > stored.logged:
        raise _ahead(after_sequence, stored.logged)
    with core.stream():
        reader = LogReader(core.keeping.store, stored.run_id, after_sequence, end=stored.logged)
        await stream_events(context, reader, ended_early=core.ending)


def _pending(run: Run) -> list[bytes]:
    """Return the questions that wait for an answer, to be sent again, and where a run stands that no adapter has."""
    pending = [event.SerializeToString() for event in run.record.pending.values()]
    return [*pending, run.standing] if run.standing else pending


def _ahead(after_sequence: int, last: int) -> DragomanError:
    return DragomanError(
        Reason.SEQUENCE_AHEAD,
        f"after_sequence {after_sequence} is past the end; the last sequence is {last}",
        {"last_sequence": str(last)},
    )


class Holding:
    """Holds a run while the block runs; a stream that a server ended counts for a while longer.

    Args:
        run: the run.
        is_relayed: whether another router holds it for somebody. Should that one end, who reads there will be back.
    """

    def __init__(self, run: Run, *, is_relayed: bool = False) -> None:
        self._run = run
        self._is_relayed = is_relayed

    def __enter__(self) -> None:
        self._run.holders.acquire()
        self._run.held()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        by_server = self._is_relayed or (isinstance(error, DragomanError) and error.reason in _BY_SERVER)
        self._run.holders.release(by_server=by_server)
