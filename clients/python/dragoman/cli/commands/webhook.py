"""``dragoman webhook``: the webhooks of a router."""

from pathlib import Path

import click
from dragoman.cli.display.printing import print_lines
from dragoman.cli.display.style import Segment
from dragoman.cli.display.text import one_line
from dragoman.cli.exit_codes import EXIT_FAILED, EXIT_OK


@click.group("webhook")
def webhook_command() -> None:
    """Try the webhooks of a router."""


@webhook_command.command("test")
@click.argument("name", required=False, default="")
@click.option(
    "--webhooks",
    "file",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="DRAGOMAN_WEBHOOKS",
    show_envvar=True,
    help="The file, as for 'dragoman serve --webhooks'.",
)
def _test_command(name: str, file: Path) -> int:
    """Send an event of type test to the webhook NAME, or to all of FILE, once.

    Exit code: 0 if all took it, 1 if one did not, 2 if the file is invalid.
    """
    from dragoman.cli.connection.embedded_router import try_webhooks  # noqa: PLC0415 - the router is slow to import

    found = try_webhooks(file, name)
    print_lines([[Segment(f"{one_line(hook)}: {one_line(problem, 600) or 'taken'}")] for hook, problem in found])
    return EXIT_FAILED if any(problem for _, problem in found) else EXIT_OK
