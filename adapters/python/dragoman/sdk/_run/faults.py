"""Exceptions that an adapter's own code raises, reported on the run: their type and place, never their text.

An exception's text may quote what it was given: a prompt, a token, a line of the agent.
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Final

from dragoman.protocol.logs import Logger, failure_fields
from dragoman.sdk._request.plan_error import PlanError
from dragoman.v1 import event_pb2 as pb

MOST_REPORTED: Final = 16
"""Places of one run that are reported; further ones are counted as known."""

_log = Logger("dragoman.sdk")

Notify = Callable[[pb.Severity.ValueType, str, str, str], None]


def place_of(error: BaseException, source: object) -> str:
    """Return an exception's type and where it was raised, e.g. ``KeyError at parse.py:31``. Pure.

    A `PlanError` is the only one whose text follows.

    Args:
        error: the exception.
        source: an object of the adapter's. The innermost frame in the folder of its module is the place, but not one
            of a package that is installed below that folder, as in a virtual environment beside an adapter; where no
            frame lies there, the innermost of all.
    """
    module = sys.modules.get(type(source).__module__)
    folder = PurePath(getattr(module, "__file__", None) or "/").parent
    frames = [(PurePath(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [
        one
        for one in frames
        if one[0].is_relative_to(folder) and "site-packages" not in one[0].relative_to(folder).parts
    ]
    if not frames:
        return type(error).__qualname__
    path, line = (own or frames)[-1]
    text = f": {error}" if isinstance(error, PlanError) else ""
    return f"{type(error).__qualname__} at {path.name}:{line}{text}"


class Faults:
    """The exceptions of one run's adapter; each place is reported once.

    Args:
        run_id: the run, for the log.
        notify: writes a notice: severity, code, message, hint.
    """

    def __init__(self, run_id: str, notify: Notify) -> None:
        self._run_id = run_id
        self._notify = notify
        self._reported: set[tuple[str, str]] = set()

    def report(self, error: Exception, source: object, code: str, hook: str, consequence: str) -> str:
        """Write a warning to the adapter's log and a notice to the run; return the exception's type and place.

        Args:
            error: the exception.
            source: as ``place_of`` takes it.
            code: the notice's code, e.g. ``parser_failed``.
            hook: what was called, e.g. ``parser.line``.
            consequence: what it means for the run.
        """
        fault = place_of(error, source)
        if (code, fault) in self._reported or len(self._reported) >= MOST_REPORTED:
            return fault
        self._reported.add((code, fault))
        _log.warning(code.replace("_", " "), run_id=self._run_id, place=fault, **failure_fields(error))
        hint = "This is a fault of the adapter, not of the agent; its log has the trace under this run's id."
        self._notify(pb.SEVERITY_WARNING, code, f"The adapter's {hook} raised {fault}; {consequence}.", hint)
        return fault
