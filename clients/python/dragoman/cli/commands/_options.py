"""Options that several commands share."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from dragoman.protocol.limits import MOST_SECONDS

_F = TypeVar("_F", bound=Callable[..., Any])

ROUTER_VARIABLE = "DRAGOMAN_ROUTER"


class Seconds(click.FloatRange):
    """A time: a range of numbers takes some for its own that are none.

    Args:
        longest: the longest that there may be.
    """

    def __init__(self, longest: float = MOST_SECONDS) -> None:
        super().__init__(min=0, max=longest)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return what was typed as a number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return number


def text_option(name: str, metavar: str, about: str) -> Callable[[_F], _F]:
    """Return an option that is a text, and empty if it is left out."""
    return click.option(name, default="", callback=_not_empty, metavar=metavar, help=about)


def _not_empty(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Refuse an option that was given as nothing, as by a variable that is not set: it would count as left out."""
    if value == "" and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
        raise click.BadParameter("is empty; leave it out", context, option)
    return value


def router_option(*, finds_runs: bool = False) -> Callable[[_F], _F]:
    """Return ``--router ADDR``.

    Args:
        finds_runs: whether the command is about runs that others have started: a router of our own finds them in
            this user's run log.
    """
    own = " Without it runs are found by this user's run log." if finds_runs else ""
    own = own or " Without it a router is run inside this program."
    return click.option(
        "--router",
        metavar="ADDR",
        envvar=ROUTER_VARIABLE,
        show_envvar=True,
        help=f"Where the router, or an adapter, listens: unix:/path or host:port.{own}",
    )


def adapter_option() -> Callable[[_F], _F]:
    """Return ``--adapter NAME`` for a run that the router may not know."""
    return click.option(
        "--adapter",
        default="",
        metavar="NAME",
        help="The run's adapter, if a router with another log started it.",
    )


def json_option(what: str) -> Callable[[_F], _F]:
    """Return ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=what)


def config_option() -> Callable[[_F], _F]:
    """Return ``--config key=value``."""
    return click.option(
        "--config",
        "config_pairs",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting of the adapter; JSON or text, dots nest. May be repeated.",
    )


def env_option() -> Callable[[_F], _F]:
    """Return ``--env K=V``."""
    return click.option(
        "--env",
        "env_pairs",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="A variable for the agent; without a value, copied from here. The place for secrets. May be repeated.",
    )


def cwd_option() -> Callable[[_F], _F]:
    """Return ``--cwd DIR``."""
    return click.option(
        "--cwd",
        type=click.Path(),
        callback=_not_empty,
        metavar="DIR",
        help="Where the agent works. Default: the current directory.",
    )
