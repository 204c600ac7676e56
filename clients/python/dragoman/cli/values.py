"""Values of options: ``--config k=v``, ``--env K=V``, ``--label k=v``."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click


def directory(path: str | None) -> str:
    """Return ``path`` made absolute, or the current directory if there is none.

    Raises:
        click.UsageError: the current directory is needed, and does not exist any more.
    """
    try:
        return str(Path.cwd() if path is None else Path(path).absolute())
    except OSError as error:
        raise click.UsageError(
            "the current directory does not exist any more; change to another one, or give --cwd an absolute path"
        ) from error


def config(pairs: Iterable[str], schema_json: str = "", *, option: str = "--config") -> dict[str, Any]:
    """Read ``key=value`` settings: JSON where it is JSON, text otherwise; dots in keys nest.

    Args:
        pairs: the arguments.
        schema_json: the configuration schema, if it is known: a setting that it declares as a string stays text.
        option: the option's name, for errors.

    Example: ``["maxTurns=5", "command=/opt/my agent", "limits.deep=true"]`` gives
    ``{"maxTurns": 5, "command": "/opt/my agent", "limits": {"deep": True}}``.

    Raises:
        click.BadParameter: a pair has no key, or two pairs contradict each other.
    """
    texts = _text_keys(schema_json)
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        path = key.split(".")
        if not separator or not all(path):
            raise click.BadParameter(f"{pair!r} is not key=value, e.g. maxTurns=5", param_hint=option)
        _put(settings, path, text if key in texts and not _is_quoted(text) else json_or_text(text), option)
    return settings


def _text_keys(schema_json: str) -> set[str]:
    try:
        schema = json.loads(schema_json)
    except ValueError:
        schema = None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return set()
    return {key for key, about in properties.items() if isinstance(about, dict) and about.get("type") == "string"}


def _is_quoted(text: str) -> bool:
    return isinstance(json_or_text(text), str)


def _put(settings: dict[str, Any], path: list[str], value: object, option: str) -> None:
    key = ".".join(path)
    for part in path[:-1]:
        settings = settings.setdefault(part, {})
        if not isinstance(settings, dict):
            raise click.BadParameter(f"{key}: {part} already has a value", param_hint=option)
    if path[-1] in settings:
        raise click.BadParameter(f"{key} is set twice", param_hint=option)
    settings[path[-1]] = value


def json_or_text(text: str) -> Any:
    """Return ``text`` parsed as JSON, or ``text`` itself if it is not JSON; a quoted JSON string forces text."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


def _no_constant(name: str) -> None:
    # Python's parser accepts NaN and Infinity, which are not JSON.
    raise ValueError(name)


def variables(pairs: Iterable[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Read ``K=V``, or ``K`` to copy it from the environment.

    Raises:
        click.BadParameter: a pair has no name, or the variable is not set.
    """
    env: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name:
            raise click.BadParameter(f"{pair!r} is not NAME=value or NAME", param_hint="--env")
        if not separator and name not in environ:
            raise click.BadParameter(f"{name} is not set here; give it as {name}=value", param_hint="--env")
        env[name] = value if separator else environ[name]
    return env


def labels(pairs: Iterable[str]) -> dict[str, str]:
    """Read ``key=value`` labels.

    Raises:
        click.BadParameter: a pair has no key.
    """
    labels_by_key: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"{pair!r} is not key=value", param_hint="--label")
        labels_by_key[key] = value
    return labels_by_key
