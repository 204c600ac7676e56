"""Whether to reconnect after a stream broke, and when. No I/O: errors in, delays out.

A stream is a view of a run: the run continues for `orphan_after` without one. So the client reconnects unless the
error is about the run:

===========================================  =======================================================
what ended the stream                        what the client does
===========================================  =======================================================
SLOW_CONSUMER, DRAINING, INTERNAL            Attach after the last sequence
ADAPTER_UNAVAILABLE                          Attach: the router may reach the adapter again
RUN_LOG_UNAVAILABLE                          Attach: the router may reach its run log again
no reason, but a status of a connection      Attach; before the run is accepted, Execute again
OK without a result                          Attach
any other reason or status                   raise
===========================================  =======================================================

Before a run is accepted a reason is a rejection, and is raised; so is a failure of the very first connection. If an
Execute broke before it was answered, the run may exist: the same request is sent again, which is idempotent, and
DRAINING and RUN_LOG_UNAVAILABLE, which do not show whether the run exists, lead to a retry. So does
ADAPTER_UNAVAILABLE with a run ID: the run exists, and its router is unreachable.

If a run was accepted and no event arrived, its router may have stopped before it dispatched the run: it is lost then,
and starts anew on the same Execute, which is therefore sent instead of Attach. An adapter gets Attach: it may have
started the run, and forgets its runs when it stops, so that Execute could run it twice.
"""

from collections.abc import Callable

import grpc
from dragoman.protocol.backoff import backoff_s
from dragoman.protocol.errors import DragomanError, Reason

_STREAM_REASONS = frozenset(
    {
        *(Reason.SLOW_CONSUMER, Reason.DRAINING, Reason.INTERNAL),
        *(Reason.ADAPTER_UNAVAILABLE, Reason.RUN_LOG_UNAVAILABLE),
    }
)
_SERVER_REASONS = frozenset({Reason.DRAINING, Reason.RUN_LOG_UNAVAILABLE})
# RST_STREAM, GOAWAY, a broken connection, a proxy's time limit: statuses without a reason of the contract.
_CONNECTION_STATUSES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0


def may_reconnect(error: DragomanError, *, accepted: bool, connected: bool, in_doubt: bool = False) -> bool:
    """Return whether the error is about the stream, and not about the run.

    Args:
        error: how the stream ended.
        accepted: whether the server has accepted the run.
        connected: whether this client ever reached the server.
        in_doubt: whether an earlier call for the run broke, so that the run may exist without its knowledge.
    """
    if error.reason is None:
        return connected and error.code in _CONNECTION_STATUSES
    if accepted:
        return error.reason in _STREAM_REASONS
    if error.reason is Reason.ADAPTER_UNAVAILABLE:
        return bool(error.metadata.get("run_id"))
    return in_doubt and error.reason in _SERVER_REASONS


def is_rejection(cause: DragomanError, *, then: DragomanError) -> bool:
    """Return whether an accepted run without events was rejected: it is no longer known.

    Args:
        cause: what broke the stream; a reason of its own, e.g. ADAPTER_UNAVAILABLE, is why the run was rejected.
        then: the error of the call that looked for the run.
    """
    return then.reason is Reason.RUN_NOT_FOUND and cause.reason is not None and cause.reason not in _SERVER_REASONS


def reconnect_failed(error: DragomanError, run_id: str, *, accepted: bool, after_s: float) -> DragomanError:
    """Return the last ``error``, with the run's ID in its metadata and the state of the run in its message."""
    if accepted:
        state = f"the stream of {run_id} broke, and reconnecting failed for {after_s:g} s"
    else:
        state = (
            f"the call for {run_id} broke before it was answered, and reconnecting failed for {after_s:g} s; "
            "the run may or may not have started"
        )
    error.message = f"{state}: {error.message}"
    error.metadata = {**error.metadata, "run_id": run_id}
    return error


class ReconnectPolicy:
    """Exponential backoff with jitter, until there was no progress for too long.

    Args:
        limit_s: seconds without progress, counted from the first break.
        now: a monotonic clock, in seconds.
    """

    def __init__(self, limit_s: float, now: Callable[[], float]) -> None:
        self._limit = limit_s
        self._now = now
        self._deadline: float | None = None
        self._tries = 0

    def progressed(self) -> None:
        """Reset the backoff: something arrived."""
        self._deadline = None
        self._tries = 0

    def next_delay_s(self, error: DragomanError) -> float | None:
        """Return the delay before the next try; ``None`` if the limit is reached.

        Args:
            error: how the stream ended; the retry delay that it asks for is respected.
        """
        now = self._now()
        if self._deadline is None:
            self._deadline = now + self._limit
        if now >= self._deadline:
            return None
        import random  # noqa: PLC0415 - few streams break

        chance = random.random()  # noqa: S311 - spreads the load of clients that lost one server together
        delay = backoff_s(self._tries, _FIRST_DELAY_S, _LONGEST_DELAY_S, chance=chance)
        self._tries += 1
        return min(max(delay, error.retry_after_s or 0.0), self._deadline - now)
