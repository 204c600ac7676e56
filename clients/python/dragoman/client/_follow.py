"""Whether, and when, to go on after a stream broke. No I/O: errors in, delays out.

A stream is a view of a run, not the run: the run goes on while its `orphan_after` lasts. So whatever breaks a
stream without saying anything about the run is followed:

===========================================  =======================================================
what ended the stream                        what is done
===========================================  =======================================================
SLOW_CONSUMER, DRAINING, INTERNAL            Attach after the last sequence
ADAPTER_UNAVAILABLE                          Attach, as the router may reach the adapter again
RUN_LOG_UNAVAILABLE                          Attach, as the router may reach its run log again
no reason, but a status that hops make       Attach; Execute again before the first event
OK without a result                          Attach
any other reason or status                   raised: it is about the call
===========================================  =======================================================

Before a run is accepted a reason is a refusal, and raised. So is a first connection that cannot be made: the
address is wrong, or nobody is there. An Execute that broke before it was answered leaves in doubt whether there is a
run: the same is sent again, which starts the run or joins it, and DRAINING and RUN_LOG_UNAVAILABLE, which say nothing
about that, are waited out.

A run that was accepted, and of which no event came yet, may have reached no adapter when its router died: the router
that comes after it begins the run when the same Execute comes again, and so that is sent instead of Attach. An
adapter gets Attach: it may have begun the run, and forgets it with its process.
"""

import random
from collections.abc import Callable

import grpc
from dragoman.protocol.errors import DragomanError, Reason

_OF_THE_STREAM = frozenset(
    {
        *(Reason.SLOW_CONSUMER, Reason.DRAINING, Reason.INTERNAL),
        *(Reason.ADAPTER_UNAVAILABLE, Reason.RUN_LOG_UNAVAILABLE),
    }
)
_OF_THE_SERVER = frozenset({Reason.DRAINING, Reason.RUN_LOG_UNAVAILABLE})
# RST_STREAM, GOAWAY, a dead connection, a proxy's time limit: what hops say without a reason of ours.
_OF_A_HOP = frozenset(
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


def is_followed(error: DragomanError, *, accepted: bool, connected: bool, in_doubt: bool = False) -> bool:
    """Tell whether a broken stream says nothing about the run, so that it is worth going on.

    Args:
        error: how the stream ended.
        accepted: whether the server has said that the run exists.
        connected: whether this client ever reached the server.
        in_doubt: whether a call for the run broke before, so that it may exist though nobody has said so.
    """
    if error.reason is None:
        return connected and error.code in _OF_A_HOP
    return error.reason in _OF_THE_STREAM if accepted else in_doubt and error.reason in _OF_THE_SERVER


def is_refusal(cause: DragomanError, *, then: DragomanError) -> bool:
    """Tell whether an accepted run that is not known any more, and of which nothing came, was refused.

    Args:
        cause: what broke the stream; a reason of its own, e.g. ADAPTER_UNAVAILABLE, is why there is no run.
        then: what was answered when the run was looked for.
    """
    return then.reason is Reason.RUN_NOT_FOUND and cause.reason is not None and cause.reason not in _OF_THE_SERVER


def given_up(error: DragomanError, run_id: str, *, accepted: bool, after_s: float) -> DragomanError:
    """Return the last ``error``, with the run in its metadata and what is known of the run in its text."""
    if accepted:
        told = f"the stream of {run_id} broke and could not be followed for {after_s:g} s"
    else:
        told = (
            f"the call for {run_id} broke before it was answered, and again for {after_s:g} s; "
            "whether the run was started is not known"
        )
    error.message = f"{told}: {error.message}"
    error.metadata = {**error.metadata, "run_id": run_id}
    return error


class Patience:
    """How long to go on: delays that grow, until nothing has come for too long.

    Args:
        limit_s: seconds without progress, counted from the first break.
        now: a clock that never goes back, in seconds.
    """

    def __init__(self, limit_s: float, now: Callable[[], float]) -> None:
        self._limit = limit_s
        self._now = now
        self._deadline: float | None = None
        self._tries = 0

    def progressed(self) -> None:
        """Say that something came; the next break begins anew."""
        self._deadline = None
        self._tries = 0

    def next_delay_s(self, error: DragomanError) -> float | None:
        """Return how long to wait before the next try; ``None`` if it is time to give up.

        Args:
            error: how the stream ended; its wish when to come back is kept to.
        """
        now = self._now()
        if self._deadline is None:
            self._deadline = now + self._limit
        if now >= self._deadline:
            return None
        delay = 0.0
        if self._tries:
            delay = min(_FIRST_DELAY_S * 2 ** (self._tries - 1), _LONGEST_DELAY_S)
            # Many clients lose one server at the same moment and must not come back at the same moment.
            delay *= random.uniform(0.7, 1.3)  # noqa: S311 - spreads load; nothing secret about it
        self._tries = min(self._tries + 1, 16)
        return min(max(delay, error.retry_after_s or 0.0), self._deadline - now)
