"""Requests made of plain Python values."""

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
        values: what JSON can say: ``None``, booleans, numbers, strings, lists and mappings of these.
        name: what the values are, for the error's path.

    Raises:
        DragomanError: a value is something else; the error names its path.
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
        # A Struct's only number is a double: a larger integer would arrive as another one.
        if not math.isfinite(value) or (isinstance(value, int) and abs(value) > 2**53):
            raise invalid(path, f"{value} has no exact form as a JSON number; send it as a string")
    elif value is not None and not isinstance(value, str):
        raise invalid(path, f"a {type(value).__name__} has no JSON form")


def duration(seconds: float, name: str) -> duration_pb2.Duration:
    """Return ``seconds`` as a protobuf Duration.

    Args:
        seconds: how many.
        name: what they are, for the error's path.

    Raises:
        DragomanError: they are no number, or too many.
    """
    if not abs(seconds) <= MOST_SECONDS:  # so asked that NaN is refused as well
        raise invalid(name, f"{seconds} is no time in seconds")
    message = duration_pb2.Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def execute_request(
    adapter: str,
    prompt: str | None = None,
    *,
    cwd: str | None = None,
    model: str = "",
    config: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    labels: Mapping[str, str] | None = None,
    run_id: str = "",
) -> pb.ExecuteRequest:
    """Return a request for one run; set further fields on it as needed.

    Args:
        adapter: the adapter's type or an alias.
        prompt: what the agent is told; ``None`` leaves it out.
        cwd: where the agent works, absolute; ``None`` leaves it out.
        model: empty for the agent's default.
        config: the adapter's settings; `Client.describe` has their schema.
        env: variables for the agent; the place for secrets.
        timeout_s: the longest the run may take, in seconds; ``None`` for no limit.
        labels: your own marks, told again in ``started`` and by `Client.list_runs`.
        run_id: your id for the run; empty for a new one.

    Raises:
        DragomanError: a config value has no JSON form, or the time is none.

    Example::

        request = execute_request("process", config={"command": "make test"}, cwd="/srv/project")
        request.permissions.interactive = True
    """
    request = pb.ExecuteRequest(adapter=adapter, model=model, run_id=run_id, env=env, labels=labels)
    if prompt is not None:
        request.prompt = prompt
    if cwd is not None:
        request.workspace.cwd = cwd
    if config:
        request.config.CopyFrom(to_struct(config))
    if timeout_s is not None:
        request.limits.wall.CopyFrom(duration(timeout_s, "limits.wall"))
    return request
