"""What the site's build changes in the command line's reference."""

from collections.abc import Iterator

import click
from dragoman.cli.dispatch import cli


def options_of(command: click.Command, context: click.Context) -> Iterator[click.Parameter]:
    """Yield the parameters of a command and of all below it."""
    yield from command.get_params(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from options_of(child, click.Context(child, parent=context, info_name=name))


def on_startup(**_: object) -> None:
    """Give options without a default none: click has a sentinel there, which mkdocs-click would print."""
    for option in options_of(cli, click.Context(cli, info_name="dragoman")):
        if repr(option.default) == "Sentinel.UNSET":
            option.default = None
