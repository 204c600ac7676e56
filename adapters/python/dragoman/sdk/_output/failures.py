"""What went wrong, from error texts of agents and of the services behind them.

The rules are a table, searched from top to bottom. What will not go away by itself stands before what
may: "invalid API key (status 401), retrying after rate limit" is about the key. A number counts only
where the text around it says that it is an HTTP status; a build that failed with "429 errors" is no
rate limit.

The text given must be that of an error: a terminal frame, an error event, the standard error of a
program that failed. In prose the same words mean nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from dragoman.sdk._output.failure_hint import FailureHint
from dragoman.sdk._output.outcome import Evidence, failure_from_hint
from dragoman.sdk._output.parser import FailureInfo
from dragoman.v1 import event_pb2 as pb

# The classifier is imported when first used: its patterns take long to compile, and most runs do not fail.


def unknown_session(text: str) -> bool:
    """Return whether an error says that the session to resume is not there, in any agent's wording.

    Only meaningful for a run that was to resume one, and that failed.
    """
    from dragoman.sdk._output import classifier  # noqa: PLC0415 - see the top

    return classifier.unknown_session(text)


def classify_text(text: str, now: datetime, *, status_leads: bool = False) -> FailureHint | None:
    """Return what an error text says; None if it says nothing known.

    Args:
        text: See the module: the text of an error, not prose. Of a very long one, both ends are read.
        now: The present, with a zone, for times of day and waits.
        status_leads: Whether a number at the begin of a line is an HTTP status, as in "400 Bad field x". Only for the
            errors of a client library that writes them so, never for what a program printed.
    """
    from dragoman.sdk._output import classifier  # noqa: PLC0415 - see the top

    return classifier.classify_text(text, now, status_leads=status_leads)


def classify_http(status: int, body_text: str, headers: Mapping[str, str], now: datetime) -> FailureHint | None:
    """Return what a response says; None if it is no error, or one of no known kind.

    Args:
        status: The HTTP status. It outranks the body, except where the body is more precise.
        body_text: The body; empty if there was none.
        headers: For ``Retry-After`` and its relatives, their names in any case.
        now: The present, with a zone.
    """
    from dragoman.sdk._output import classifier  # noqa: PLC0415 - see the top

    return classifier.classify_http(status, body_text, headers, now)


def failure_of_text(text: str, code: str, *, status_leads: bool = False) -> FailureInfo | None:
    """Return what an error text of an agent means; None if it says nothing known. See ``classify_text``."""
    hint = classify_text(text, datetime.now(UTC), status_leads=status_leads)
    return replace(failure_from_hint(hint, code=code), errors=(text,)) if hint is not None else None


def failure_of_evidence(evidence: Evidence, agent: str, *, status_leads: bool = False) -> FailureInfo | None:
    """Return what the agent's final error means, or else its standard error; None if it says nothing known.

    Args:
        evidence: how the attempt ended.
        agent: the agent's name, with which the codes begin.
        status_leads: see ``classify_text``.
    """
    terminal = evidence.report.terminal
    message = terminal.failure.message if terminal and terminal.failure else evidence.stderr_tail
    if evidence.resumed and unknown_session(message):
        lost = f"{agent} knows no such session."
        return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, lost, f"{agent}_session", (message,))
    return failure_of_text(message, f"{agent}_error", status_leads=status_leads)
