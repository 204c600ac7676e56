"""Options that several commands share, and options as fields of frozen structs."""

import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, TypeVar, get_origin, get_type_hints

import click
from click.core import ParameterSource
from dragoman.cli import values
from dragoman.protocol.limits import MOST_SECONDS
from dragoman.protocol.private import ROUTER_VARIABLE
from msgspec import Struct

_F = TypeVar("_F", bound=Callable[..., Any])
_Group = TypeVar("_Group")


class Seconds(click.FloatRange):
    """A duration in seconds. Unlike `click.FloatRange`, it refuses NaN.

    Args:
        longest: the upper bound.
    """

    name = "number of seconds"

    def __init__(self, longest: float = MOST_SECONDS) -> None:
        super().__init__(min=0, max=longest)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the argument as a number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return number


class Option(NamedTuple):
    """An option of a command, in the annotation of a field."""

    name: str
    attributes: dict[str, Any]


def option(name: str, about: str, metavar: str | None = None, **attributes: Any) -> Option:
    """Return an option. That of a ``bool`` is a flag, and that of a ``tuple`` can be repeated.

    Args:
        name: the option's name; the parameter has the name of the field.
        about: its help.
        metavar: what its value is called in the help.
        attributes: what else `click.option` takes. The help names the ``envvar``.
    """
    return Option(name, {"help": about, "metavar": metavar, "show_envvar": "envvar" in attributes, **attributes})


def text(name: str, metavar: str, about: str) -> Option:
    """Return an option that is a text: empty if the option is omitted; an explicit empty text is rejected."""
    return option(name, about, metavar, default="", callback=_not_empty)


def _not_empty(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    # An unset shell variable gives an empty text, which would count as an option that is left out.
    if value == "" and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
        raise click.BadParameter("the value is empty; leave the option out", context, parameter)
    return value


def with_options(name: str, group: type[Any]) -> Callable[[_F], _F]:
    """Return a decorator that gives a command the options of a struct, as one argument.

    Args:
        name: the command's argument.
        group: a frozen struct. Its fields are annotated with an `option`, or are such structs themselves.
    """

    def decorate(command: _F) -> _F:
        @functools.wraps(command)
        def collected(*args: Any, **kwargs: Any) -> Any:
            return command(*args, **{name: _collect(group, kwargs)}, **kwargs)

        for field, switch, attributes in reversed(list(_options(group))):
            click.option(switch, field, **attributes)(collected)
        return collected  # type: ignore[return-value]  # the same command with other keywords

    return decorate


def _options(group: type[Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each option of a struct: the field, the option's name, and the arguments of `click.option`."""
    for field, annotation in get_type_hints(group, include_extras=True).items():
        if get_origin(annotation) is not Annotated:
            yield from _options(annotation)
            continue
        name, attributes = annotation.__metadata__[0]
        if get_origin(annotation.__origin__) is tuple:
            attributes = {**attributes, "multiple": True, "help": f"{attributes['help']} Repeatable."}
        elif annotation.__origin__ is bool:
            attributes = {"is_flag": True, **attributes}
        yield field, name, attributes


def _collect(group: type[_Group], kwargs: dict[str, Any]) -> _Group:
    """Return the struct, made from the arguments of the same names, which are removed."""
    hints = get_type_hints(group, include_extras=True).items()
    return group(
        **{
            name: kwargs.pop(name) if get_origin(annotation) is Annotated else _collect(annotation, kwargs)
            for name, annotation in hints
        }
    )


class SetupOptions(Struct, frozen=True):
    """What an agent runs with."""

    cwd: Annotated[
        str | None,
        option(
            "--cwd",
            "Directory in which the agent works. Default: the current directory.",
            "DIR",
            type=click.Path(),
            callback=_not_empty,
        ),
    ]
    model: Annotated[str, text("--model", "NAME", "Model. Default: the agent's.")]
    config_pairs: Annotated[
        tuple[str, ...],
        option(
            "--config", "Set a setting of the adapter, e.g. KEY=VALUE or a.b=VALUE; JSON values allowed.", "KEY=VALUE"
        ),
    ]
    env_pairs: Annotated[
        tuple[str, ...],
        option(
            "--env",
            "Set an environment variable of the agent; without a value, it is copied from this environment. "
            "Pass secrets this way.",
            "NAME[=VALUE]",
        ),
    ]

    def config(self, schema_json: str = "") -> dict[str, Any]:
        """Return the settings; see `values.config`."""
        return values.config(self.config_pairs, schema_json)

    def env(self) -> dict[str, str]:
        """Return the environment variables."""
        return values.variables(self.env_pairs)


def router_option(*, finds_runs: bool = False) -> Callable[[_F], _F]:
    """Return ``--router ADDR``.

    Args:
        finds_runs: whether the command is about existing runs, which an embedded router finds in the user's run log.
    """
    otherwise = "this user's run log is read" if finds_runs else "a router is started inside this process"
    return click.option(
        "--router",
        metavar="ADDR",
        envvar=ROUTER_VARIABLE,
        show_envvar=True,
        help="Address of the router, or of an adapter: unix:/path or host:port. "
        f"Default: this user's router; if none is running, {otherwise}.",
    )


def adapter_option() -> Callable[[_F], _F]:
    """Return ``--adapter NAME`` for a run that the router may not know."""
    return click.option(
        "--adapter",
        default="",
        metavar="NAME",
        help="The run's adapter; needed if a router with another run log started the run.",
    )


def standard_input(name: str) -> str:
    """Return all of standard input, which stands for an argument.

    Args:
        name: the argument's, for errors.

    Raises:
        click.BadParameter: it is not UTF-8.
    """
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"standard input is not UTF-8: {error}", param_hint=name) from error


def json_option(what: str) -> Callable[[_F], _F]:
    """Return ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=what)
