"""What a command reports when it ends with an error."""

from dragoman.cli.exit_codes import EXIT_FAILED
from msgspec import Struct, field


class ErrorReport(Struct, frozen=True):
    """An error, for people and for programs. All texts may come from a server, and so are not trusted."""

    what: str
    where: list[tuple[str, str]] = field(default_factory=list)
    """Invalid fields: path and description."""
    near: list[str] = field(default_factory=list)
    """Similar names."""
    failure: str = ""
    """The failure because of which the circuit breaker rejects the run."""
    login_url: str = ""
    """Where to log in."""
    candidates: list[str] = field(default_factory=list)
    """Adapters that are available for a fallback."""
    hint: str = ""
    reason: str = ""
    status: str = ""
    retry_after_s: float | None = None
    exit_code: int = EXIT_FAILED
