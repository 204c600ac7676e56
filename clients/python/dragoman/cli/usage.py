"""Exceptions that mean that a command was called wrongly."""

import contextlib
from collections.abc import Iterator

from dragoman.cli.command_error import CommandError
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_USAGE


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
