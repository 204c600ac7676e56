"""What a caller may do with a run or an adapter, at the router: the one place where calls are allowed."""

from dragoman.protocol import audit
from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.logs import bind_context
from msgspec import Struct


class RunFacts(Struct, frozen=True):
    """What decides about a call for a run."""

    run_id: str
    adapter: str
    started_by: str
    """The name of the caller who started it."""
    is_over: bool
    """Whether it has ended, as far as this router knows."""


def allow_read(run: RunFacts) -> None:
    """Allow a call that shows a run.

    Raises:
        DragomanError: NOT_PERMITTED, or TOKEN_REQUIRED: the token was for this run, which has ended.
    """
    audit.about(adapter=run.adapter, run_id=run.run_id)
    current_caller().check_read(run.started_by, run.run_id)
    _allow(run)


def allow_control(run: RunFacts) -> None:
    """Allow a call that cancels a run.

    Raises:
        DragomanError: NOT_PERMITTED.
    """
    audit.about(adapter=run.adapter, run_id=run.run_id)
    current_caller().check_control(run.started_by)
    _allow(run)


def allow_answer(run: RunFacts) -> None:
    """Allow a call that answers an input request of a run.

    Raises:
        DragomanError: NOT_PERMITTED, or TOKEN_REQUIRED: the token was for this run, which has ended.
    """
    audit.about(adapter=run.adapter, run_id=run.run_id)
    current_caller().check_answer(run.started_by, run.run_id)
    _allow(run)


def _allow(run: RunFacts) -> None:
    if current_caller().run_id and run.is_over:
        message = f"the token was for run {run.run_id!r}, and has expired with it"
        raise DragomanError(Reason.TOKEN_REQUIRED, message, {"run_id": run.run_id})
    allow(adapter=run.adapter, run_id=run.run_id)


def allow(*, adapter: str = "", run_id: str = "") -> None:
    """Write that the present call is allowed, and put what it is for into every log line of it.

    Args:
        adapter: the adapter's type.
        run_id: the run.
    """
    audit.about(adapter=adapter, run_id=run_id)
    audit.allow()
    bind_context(**{name: value for name, value in (("adapter", adapter), ("run_id", run_id)) if value})
