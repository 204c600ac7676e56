"""The commands as they are called: names, values, defaults and help of each option and argument."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from dragoman.cli.dispatch import cli

from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden" / "options.txt"


def default_of(parameter: click.Parameter) -> Any:
    """Return a default that is written in the code; releases of click differ in what stands for none."""
    default = parameter.default() if callable(parameter.default) else parameter.default
    return default if isinstance(default, str | int | float | tuple) and default else None


def described(parameter: click.Parameter) -> str:
    kind = parameter.type
    facts: dict[str, Any] = {
        "choices": [str(choice) for choice in kind.choices] if isinstance(kind, click.Choice) else None,
        "range": [kind.min, kind.max] if isinstance(kind, click.IntRange | click.FloatRange) else None,
        "type": kind.name,
        "metavar": parameter.metavar,
        "default": default_of(parameter),
        "required": parameter.required,
        "nargs": parameter.nargs if parameter.nargs != 1 else None,
    }
    if isinstance(parameter, click.Option):
        facts |= {
            "multiple": parameter.multiple,
            "flag": parameter.is_flag,
            "hidden": parameter.hidden,
            "help": words(parameter.help),
        }
    names = " ".join([*parameter.opts, *parameter.secondary_opts])
    shown = {key: value for key, value in facts.items() if value or (value == 0 and value is not False)}
    return f"  {names} {json.dumps(shown, ensure_ascii=False)}"


def words(text: str | None) -> str:
    """Return a help text without its layout: releases of Python indent docstrings differently."""
    return " ".join((text or "").split())


def lines(command: click.Command, path: str) -> Iterator[str]:
    yield f"{path}: {json.dumps([words(command.help), words(command.epilog)], ensure_ascii=False)}"
    yield from (described(parameter) for parameter in command.params if parameter.name != "version")
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from lines(inner, f"{path} {name}")


def test_options() -> None:
    assert_golden(GOLDEN, "\n".join(lines(cli, "dragoman")) + "\n")
