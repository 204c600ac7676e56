"""An agent's own retries of a call of its model: it says when it tries again, and rarely that it succeeded. Pure."""

from typing import Final

from dragoman.v1 import event_pb2 as pb

_MOST: Final = 2**32 - 1
_LONGEST_MS: Final = 10**12


class Retries:
    """Whether the agent of one attempt waits to call its model again."""

    def __init__(self) -> None:
        self.is_retrying = False

    def begin(
        self,
        reason: str = "",
        *,
        attempt: int | None = None,
        most: int | None = None,
        delay_ms: int | None = None,
        cause: pb.FailureKind.ValueType = pb.FAILURE_KIND_UNSPECIFIED,
    ) -> list[pb.AgentEvent]:
        """Return the event that the agent is about to call its model again.

        Args:
            reason: why, for people.
            attempt: which try comes next, as the agent counts.
            most: how many tries it allows.
            delay_ms: milliseconds until then.
            cause: why.
        """
        self.is_retrying = True
        state = pb.State(phase=pb.RUN_PHASE_RETRYING, reason=reason, retry_cause=cause)
        if attempt is not None and attempt <= _MOST:
            state.retry_attempt = attempt
        if most is not None and most <= _MOST:
            state.max_retries = most
        if delay_ms is not None:
            state.retry_delay.FromMilliseconds(min(delay_ms, _LONGEST_MS))
        return [pb.AgentEvent(state=state)]

    def end(self) -> list[pb.AgentEvent]:
        """Return the event that the model has answered; none if the agent was not retrying."""
        if not self.is_retrying:
            return []
        self.is_retrying = False
        return [pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RUNNING))]
