"""Rules that every error status keeps: they look at the statuses of all other checks."""

from dragoman.conformance.check import status_check
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.statuses import is_explained

_RETRIED = {
    Reason.ADAPTER_UNAVAILABLE,
    Reason.DRAINING,
    Reason.TOO_MANY_RUNS,
    Reason.QUOTA_EXCEEDED,
    Reason.BREAKER_OPEN,
}


@status_check("errors.info")
def info(error: DragomanError) -> str:
    """Look for ErrorInfo."""
    if error.code.name in {"CANCELLED", "DEADLINE_EXCEEDED"} or is_explained(error):
        return ""
    return f"{error.code.name} without google.rpc.ErrorInfo of the domain 'dragoman': {error.message[:200]}"


@status_check("errors.retry-info")
def retry_info(error: DragomanError) -> str:
    """Look for RetryInfo where the contract says that the call may be repeated."""
    if error.reason in _RETRIED and error.retry_after_s is None:
        return f"{error.reason} without RetryInfo"
    return ""


@status_check("errors.no-internal")
def no_internal(error: DragomanError) -> str:
    """Look for statuses that mean a bug."""
    is_bug = error.code.name in {"UNKNOWN", "INTERNAL"}
    return f"{error.code.name}: {error.message[:200]}" if is_bug else ""
