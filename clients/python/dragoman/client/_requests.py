"""Requests from plain Python values."""

import math
from collections.abc import Mapping
from typing import Any

from dragoman.protocol.errors import invalid
from dragoman.protocol.limits import MOST_SECONDS
from dragoman.v1 import adapter_pb2 as pb
from google.protobuf import duration_pb2, struct_pb2


def to_struct(values: Mapping[str, Any], *, name: str = "config") -> struct_pb2.Struct:
    """Return ``values`` as a protobuf Struct.

    Args:
        values: JSON values: ``None``, booleans, numbers, strings, lists and mappings of these.
        name: the path of the values, for errors.

    Raises:
        DragomanError: another value; the error has its path.
    """
    for key, value in values.items():
        _check(value, f"{name}.{key}")
    struct = struct_pb2.Struct()
    struct.update(values)
    return struct


def _check(value: object, path: str) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check(inner, f"{path}[{index}]")
    elif isinstance(value, int | float):
        # Numbers of a Struct are doubles: a larger integer would be rounded.
        if not math.isfinite(value) or (isinstance(value, int) and abs(value) > 2**53):
            raise invalid(path, f"{value} has no exact form as a JSON number; send it as a string")
    elif value is not None and not isinstance(value, str):
        raise invalid(path, f"a {type(value).__name__} has no JSON form")


def duration(seconds: float, name: str) -> duration_pb2.Duration:
    """Return ``seconds`` as a protobuf Duration.

    Args:
        seconds: the number of seconds.
        name: the path of the value, for errors.

    Raises:
        DragomanError: not a number, or too many.
    """
    if not abs(seconds) <= MOST_SECONDS:  # also true for NaN
        raise invalid(name, f"{seconds} is not a valid number of seconds")
    message = duration_pb2.Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def to_config(values: Mapping[str, Any] | None) -> struct_pb2.Struct | None:
    """Return the ``config`` of a request; ``None`` for none, or no settings.

    Raises:
        DragomanError: a setting has no JSON form.
    """
    return to_struct(values) if values else None


def optional_duration(seconds: float | None, name: str) -> duration_pb2.Duration | None:
    """Return what `duration` does; ``None`` for none."""
    return None if seconds is None else duration(seconds, name)


def execute_request(
    adapter: str,
    prompt: str | None = None,
    *,
    cwd: str | None = None,
    model: str = "",
    config: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> pb.ExecuteRequest:
    """Return a request for one run; set further fields on it as needed.

    Args:
        adapter: the adapter's type or an alias.
        prompt: the prompt, if there is one.
        cwd: the working directory, absolute, if there is one.
        model: the model; empty for the agent's default.
        config: the adapter's settings; `Client.describe` has their schema.
        env: environment variables of the agent; pass secrets this way.

    Raises:
        DragomanError: a setting has no JSON form.

    Example::

        request = execute_request("process", config={"command": "make", "args": ["test"]}, cwd="/srv/project")
        request.permissions.interactive = True
    """
    request = pb.ExecuteRequest(adapter=adapter, model=model, env=env, config=to_config(config))
    if prompt is not None:
        request.prompt = prompt
    if cwd is not None:
        request.workspace.cwd = cwd
    return request


def update_request(run_id: str, model: str, permission_mode: str) -> pb.UpdateRunRequest:
    """Return the request that changes a run.

    Raises:
        ValueError: nothing is to change, or two things.
    """
    if bool(model) == bool(permission_mode):
        raise ValueError("give either model or permission_mode; one thing changes at a time")
    request = pb.UpdateRunRequest(run_id=run_id)
    if model:
        request.model = model
    else:
        request.permission_mode = permission_mode
    return request
