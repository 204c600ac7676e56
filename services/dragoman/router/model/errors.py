"""Errors that several packages of the router raise."""

from dragoman.protocol.errors import DragomanError, Reason

_RETRY_S = 1.0


def unknown_run(run_id: str, adapter: str = "") -> DragomanError:
    """Return the error for an unknown run, or one that is not of the adapter that was named."""
    which = f"Run {run_id!r} of adapter {adapter[:200]!r}" if adapter else f"Run {run_id!r}"
    return DragomanError(
        Reason.RUN_NOT_FOUND,
        f"{which} not found. It may have expired, or been started without this router.",
        {"run_id": run_id},
    )


def finished(run_id: str) -> DragomanError:
    """Return the error for what comes too late for a run."""
    return DragomanError(Reason.RUN_FINISHED, f"Run {run_id!r} has already finished.", {"run_id": run_id})


def elsewhere(run_id: str) -> DragomanError:
    """Return the error for a run that another router owns, or will once the last owner's lease has expired."""
    return DragomanError(
        Reason.ADAPTER_UNAVAILABLE,
        f"Run {run_id!r} is owned by another router, which is unreachable; try again. "
        "If that router was killed, 'dragoman serve' recovers the run.",
        {"run_id": run_id},
        retry_after_s=_RETRY_S,
    )


def log_unavailable(error: Exception | str) -> DragomanError:
    """Return the status for a call that needs the log."""
    return DragomanError(
        Reason.RUN_LOG_UNAVAILABLE,
        f"The run log is not readable: {str(error).rstrip('.')}. Try again.",
        retry_after_s=1.0,
    )
