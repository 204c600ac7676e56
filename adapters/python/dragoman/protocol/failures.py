"""Failure kinds: which of them may go away by trying again."""

from dragoman.v1 import event_pb2 as pb

_RETRYABLE = frozenset(
    {
        pb.FAILURE_KIND_QUOTA_EXCEEDED,
        pb.FAILURE_KIND_RATE_LIMITED,
        pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
        pb.FAILURE_KIND_NETWORK,
        pb.FAILURE_KIND_SESSION_LOST,
        pb.FAILURE_KIND_PROCESS_CRASHED,
        pb.FAILURE_KIND_NO_RESULT,
        pb.FAILURE_KIND_START_TIMEOUT,
        pb.FAILURE_KIND_IDLE_TIMEOUT,
        pb.FAILURE_KIND_TOOL_TIMEOUT,
        pb.FAILURE_KIND_ADAPTER_LOST,
    }
)


_PASSING = frozenset({pb.FAILURE_KIND_RATE_LIMITED, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, pb.FAILURE_KIND_NETWORK})


def is_passing(kind: pb.FailureKind.ValueType) -> bool:
    """Return whether it is a fault of the model's service, or of the way there, that may pass within seconds."""
    return kind in _PASSING


def is_retryable(kind: pb.FailureKind.ValueType) -> bool:
    """Return whether trying again may help by itself, as the comments of ``FailureKind`` say."""
    return kind in _RETRYABLE
