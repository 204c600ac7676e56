"""What an error seems to be."""

from dataclasses import dataclass
from datetime import datetime


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
