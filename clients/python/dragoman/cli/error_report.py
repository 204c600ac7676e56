"""What a command reports when it ends with an error."""

import contextlib
from collections.abc import Iterator

from dragoman.cli.command_error import CommandError
from dragoman.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
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


@contextlib.contextmanager
def wrong_usage(*kinds: type[Exception]) -> Iterator[None]:
    """Report exceptions of some kinds as wrong usage, by their texts: a block, or a decorator of a command.

    Raises:
        CommandError: there was one.
    """
    try:
        yield
    except kinds as error:
        raise CommandError(ErrorReport(str(error), exit_code=EXIT_USAGE)) from error
