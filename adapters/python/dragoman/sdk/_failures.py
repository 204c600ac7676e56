"""What went wrong, from the words of agents and of the services behind them.

The rules are a table, searched from top to bottom. What will not go away by itself stands before what
may: "invalid API key (status 401), retrying after rate limit" is about the key. A number counts only
where the words around it say that it is an HTTP status; a build that failed with "429 errors" is no
rate limit.

The text given must be that of an error: a terminal frame, an error event, the standard error of a
program that failed. In prose these words mean nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

# The classifier is imported when first used: its patterns take long to compile, and most runs do not fail.


@dataclass(frozen=True, slots=True)
class FailureHint:
    """What an error seems to be."""

    kind: str
    """A failure kind of the protocol, without its prefix: ``RATE_LIMITED``."""

    message: str
    """The line that says so, shortened. It may hold whatever the agent wrote: redact it."""

    retry_not_before: datetime | None = None
    """In UTC. Only for what waiting can cure, and only where it was said."""

    login_url: str | None = None
    """Where to log in; https. Only for AUTH_REQUIRED. For people: nothing here opens it."""

    http_status: int | None = None


def unknown_session(text: str) -> bool:
    """Tell whether an error says that the session to resume is not there, in any agent's words.

    Only meaningful for a run that was to resume one, and that failed.
    """
    from dragoman.sdk import _classifier  # noqa: PLC0415 - see the top

    return _classifier.unknown_session(text)


def classify_text(text: str, now: datetime) -> FailureHint | None:
    """Return what an error text says; None if it says nothing known.

    Args:
        text: See the module: the text of an error, not prose. Of a very long one, both ends are read.
        now: The present, with a zone, for times of day and waits.
    """
    from dragoman.sdk import _classifier  # noqa: PLC0415 - see the top

    return _classifier.classify_text(text, now)


def classify_http(status: int, body_text: str, headers: Mapping[str, str], now: datetime) -> FailureHint | None:
    """Return what a response says; None if it is no error, or one of no known kind.

    Args:
        status: The HTTP status. It outranks the body, except where the body is more precise.
        body_text: The body; empty if there was none.
        headers: For ``Retry-After`` and its relatives, their names in any case.
        now: The present, with a zone.
    """
    from dragoman.sdk import _classifier  # noqa: PLC0415 - see the top

    return _classifier.classify_http(status, body_text, headers, now)
