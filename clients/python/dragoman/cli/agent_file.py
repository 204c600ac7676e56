"""A stored agent as a file in TOML: read with errors that name its keys, and written. Pure."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from dragoman.protocol.identity import near_names
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, json_format
from google.protobuf.message import Message

_MOST_SECONDS: Final = 315_360_000
_LARGEST: Final = 2**53
"""Of numbers in settings: JSON has no larger whole numbers."""
_SECONDS: Final = ("start_up", "idle", "wall", "tool_call", "grace")
_CAPS: Final = ("input_tokens", "output_tokens", "model_calls", "tool_calls", "turns", "repeats", "warn_percent")
_DECISION: Final = "PERMISSION_DECISION_"
_TOOL_KIND: Final = "TOOL_KIND_"
_FAILURE_KIND: Final = "FAILURE_KIND_"
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")

_Put = Callable[[str, Any], None]
"""Writes the value of a key, whose path comes first, into a message."""


class AgentFileError(ValueError):
    """A file is no stored agent; the message says which key is wrong, and why."""


def parse_agent(data: bytes) -> router_pb2.StoredAgent:
    """Return the agent of a file.

    Raises:
        AgentFileError: it is invalid.
    """
    import tomllib  # noqa: PLC0415 - needed once

    try:
        content = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise AgentFileError("is not UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise AgentFileError(f"is not valid TOML: {error}") from error
    agent = router_pb2.StoredAgent()
    _read(
        "",
        content,
        {
            **{name: _text(agent, name) for name in ("name", "description", "adapter", "model", "system_prompt")},
            "version": _count(agent, "version"),
            "config": lambda path, value: _put_settings(agent.config, path, value),
            "env": lambda path, value: agent.env.update(_texts_by_name(path, value)),
            "labels": lambda path, value: agent.labels.update(_texts_by_name(path, value)),
            "instructions": lambda path, value: _put_instructions(agent.instructions, path, value),
            "skills": lambda path, value: _put_skills(agent, path, value),
            "mcp_servers": lambda path, value: _put_servers(agent, path, value),
            "limits": lambda path, value: _put_limits(agent.limits, path, value),
            "permissions": lambda path, value: _put_permissions(agent.permissions, path, value),
            "fallback": lambda path, value: _put_fallback(agent.fallback, path, value),
        },
    )
    return agent


def _read(path: str, table: Any, keys: Mapping[str, _Put]) -> None:
    for key, value in _table(path, table).items():
        own = f"{path}.{key}" if path else key
        if key not in keys:
            near = near_names(key, keys)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the keys are {', '.join(keys)}"
            raise AgentFileError(f"{own}: no such key; {hint}")
        keys[key](own, value)


def _table(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise AgentFileError(f"{path}: must be a table")
    return value


def _list(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise AgentFileError(f"{path}: must be a list")
    return value


def _is_text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise AgentFileError(f"{path}: must be a text in quotes")
    return value


def _is_count(path: str, value: Any, most: int = 2**32 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise AgentFileError(f"{path}: must be a whole number from 0 to {most:,}")
    return value


def _texts(path: str, value: Any) -> list[str]:
    return [_is_text(f"{path}[{number}]", item) for number, item in enumerate(_list(path, value))]


def _texts_by_name(path: str, value: Any) -> dict[str, str]:
    return {name: _is_text(f"{path}.{name}", item) for name, item in _table(path, value).items()}


def _text(message: Message, name: str) -> _Put:
    return lambda path, value: setattr(message, name, _is_text(path, value))


def _flag(message: Message, name: str) -> _Put:
    def put(path: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise AgentFileError(f"{path}: must be true or false")
        setattr(message, name, value)

    return put


def _count(message: Message, name: str, most: int = 2**63 - 1) -> _Put:
    return lambda path, value: setattr(message, name, _is_count(path, value, most))


def _choice(message: Message, name: str, of: Any, prefix: str) -> _Put:
    return lambda path, value: setattr(message, name, _chosen(path, value, of, prefix))


def _chosen(path: str, value: Any, of: Any, prefix: str) -> int:
    names = [name.removeprefix(prefix).lower() for name, number in of.items() if number]
    if not isinstance(value, str) or value not in names:
        raise AgentFileError(f"{path}: must be one of {', '.join(names)}")
    return int(of.Value(f"{prefix}{value.upper()}"))


def _seconds(duration: Callable[[], duration_pb2.Duration]) -> _Put:
    def put(path: str, value: Any) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= _MOST_SECONDS:
            raise AgentFileError(f"{path}: must be a number of seconds")
        duration().FromNanoseconds(round(value * 1e9))

    return put


def _put_settings(settings: Any, path: str, value: Any) -> None:
    _check_setting(path, _table(path, value))
    settings.SetInParent()
    settings.update(value)


def _check_setting(path: str, value: Any) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _check_setting(f"{path}.{name}", item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_setting(f"{path}[{number}]", item)
    elif isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        raise AgentFileError(f"{path}: must be between -2^53 and 2^53; put other numbers in quotes")
    elif isinstance(value, float) and not math.isfinite(value):
        raise AgentFileError(f"{path}: must be a number")
    elif not isinstance(value, str | int | float):
        raise AgentFileError(f"{path}: must be a text, a number, true, false, a list or a table; put dates in quotes")


def _put_instructions(instructions: adapter_pb2.Instructions, path: str, value: Any) -> None:
    if isinstance(value, str):
        instructions.text = value
    else:
        _read(path, value, {"file": lambda own, file: setattr(instructions, "file", _absolute(own, file))})


def _absolute(path: str, value: Any) -> str:
    if not _is_text(path, value).startswith("/"):
        raise AgentFileError(f"{path}: must be an absolute path on the adapter's machine")
    return str(value)


def _put_skills(agent: router_pb2.StoredAgent, path: str, value: Any) -> None:
    for number, item in enumerate(_list(path, value)):
        directory = _absolute(f"{path}[{number}]", item).rstrip("/")
        agent.skills.add(name=directory.rpartition("/")[2], directory=directory)


def _put_servers(agent: router_pb2.StoredAgent, path: str, value: Any) -> None:
    for name, table in _table(path, value).items():
        own, server = f"{path}.{name}", agent.mcp_servers.add(name=name)
        if "url" in _table(own, table):
            http = server.http
            headers = _merged(http.headers)
            _read(own, table, {"url": _text(http, "url"), "headers": headers})
            continue
        stdio = server.stdio
        stdio.SetInParent()
        _read(own, table, {"command": _text(stdio, "command"), "args": _added(stdio.args), "env": _merged(stdio.env)})
        if not stdio.command:
            raise AgentFileError(f"{own}: needs command or url")


def _merged(variables: Any) -> _Put:
    return lambda path, value: variables.update(_texts_by_name(path, value))


def _added(items: Any) -> _Put:
    return lambda path, value: items.extend(_texts(path, value))


def _put_limits(limits: pb.Limits, path: str, value: Any) -> None:
    limits.SetInParent()
    budget: Mapping[str, _Put] = {
        "cost": _text(limits.budget, "cost"),
        "currency": _text(limits.budget, "currency"),
        **{name: _count(limits.budget, name, 10**15 if "tokens" in name else 2**32 - 1) for name in _CAPS},
        "ask": _flag(limits.budget, "ask"),
    }
    keys = {f"{name}_s": _seconds(partial(getattr, limits, name)) for name in _SECONDS}
    keys["output_bytes"] = _count(limits, "output_bytes")
    keys["budget"] = lambda own, table: _read(own, table, budget)
    _read(path, value, keys)


def _put_permissions(permissions: pb.Permissions, path: str, value: Any) -> None:
    permissions.SetInParent()

    def rules(own: str, items: Any) -> None:
        for number, item in enumerate(_list(own, items)):
            rule = permissions.rules.add()
            texts = ("tool_name", "path_glob", "command_prefix", "host")
            keys = {
                "decision": _choice(rule, "decision", pb.PermissionDecision, _DECISION),
                "tool_kind": _choice(rule, "tool_kind", pb.ToolKind, _TOOL_KIND),
                **{name: _text(rule, name) for name in texts},
            }
            _read(f"{own}[{number}]", item, keys)
            if not rule.decision:
                raise AgentFileError(f"{own}[{number}]: needs decision: deny, ask or allow")

    keys: Mapping[str, _Put] = {
        "rules": rules,
        "default": _choice(permissions, "default_decision", pb.PermissionDecision, _DECISION),
        "interactive": _flag(permissions, "interactive"),
        "native_mode": _text(permissions, "native_mode"),
        "auto_approve": _flag(permissions, "auto_approve"),
        "request_timeout_s": _seconds(lambda: permissions.request_timeout),
    }
    _read(path, value, keys)


def _put_fallback(fallback: adapter_pb2.Fallback, path: str, value: Any) -> None:
    fallback.SetInParent()

    def kinds(own: str, items: Any) -> None:
        for number, item in enumerate(_list(own, items)):
            fallback.on.append(_chosen(f"{own}[{number}]", item, pb.FailureKind, _FAILURE_KIND))  # type: ignore[arg-type]  # a number of the enum

    def configs(own: str, table: Any) -> None:
        for name, settings in _table(own, table).items():
            _put_settings(fallback.configs[name], f"{own}.{name}", settings)

    keys: Mapping[str, _Put] = {
        "adapters": _added(fallback.adapters),
        "on": kinds,
        "after_side_effects": _flag(fallback, "after_side_effects"),
        "configs": configs,
    }
    _read(path, value, keys)


# And back.


def agent_text(agent: router_pb2.StoredAgent) -> str:
    """Return an agent as a file that ``parse_agent`` reads, without nulls.

    Raises:
        AgentFileError: it has a skill that a file cannot name.
    """
    for skill in agent.skills:
        if not skill.directory or skill.directory.rstrip("/").rpartition("/")[2] != skill.name:
            raise AgentFileError(f"the skill {skill.name!r} is not named by its directory")
    return "".join(f"{line}\n" for line in _lines("", _content(agent)))


def _content(agent: router_pb2.StoredAgent) -> dict[str, Any]:
    texts = ("name", "description", "adapter", "model", "system_prompt")
    content: dict[str, Any] = {name: getattr(agent, name) for name in texts}
    content["version"] = agent.version
    source = agent.instructions.WhichOneof("source")
    if source == "text":
        content["instructions"] = agent.instructions.text
    content["skills"] = [skill.directory for skill in agent.skills if skill.directory]
    content = {name: value for name, value in content.items() if value}
    if source == "file":
        content["instructions"] = {"file": agent.instructions.file}
    if agent.HasField("config"):
        content["config"] = _settings(agent.config)
    content |= {
        name: dict(sorted(getattr(agent, name).items())) for name in ("env", "labels") if getattr(agent, name)
    }
    if agent.HasField("permissions"):
        content["permissions"] = _permissions(agent.permissions)
    if agent.HasField("limits"):
        content["limits"] = _limits(agent.limits)
    if agent.HasField("fallback"):
        content["fallback"] = _fallback(agent.fallback)
    if agent.mcp_servers:
        content["mcp_servers"] = {server.name: _server(server) for server in agent.mcp_servers}
    return content


def _settings(settings: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items() if item is not None}
        if isinstance(value, list):
            return [plain(item) for item in value if item is not None]
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST
        return int(value) if is_whole and str(value) != "-0.0" else value

    values = plain(json_format.MessageToDict(settings))
    assert isinstance(values, dict)
    return values


def _number(duration: duration_pb2.Duration) -> float:
    seconds = duration.ToNanoseconds() / 1e9
    return int(seconds) if seconds.is_integer() else seconds


def _permissions(permissions: pb.Permissions) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if permissions.default_decision:
        shown["default"] = _word(pb.PermissionDecision, permissions.default_decision, _DECISION)
    shown |= {name: True for name in ("interactive", "auto_approve") if getattr(permissions, name)}
    if permissions.native_mode:
        shown["native_mode"] = permissions.native_mode
    if permissions.HasField("request_timeout"):
        shown["request_timeout_s"] = _number(permissions.request_timeout)
    if permissions.rules:
        shown["rules"] = [_rule(rule) for rule in permissions.rules]
    return shown


def _rule(rule: pb.PermissionRule) -> dict[str, str]:
    shown = {"decision": _word(pb.PermissionDecision, rule.decision, _DECISION)}
    if rule.tool_kind:
        shown["tool_kind"] = _word(pb.ToolKind, rule.tool_kind, _TOOL_KIND)
    texts = ("tool_name", "path_glob", "command_prefix", "host")
    return shown | {name: getattr(rule, name) for name in texts if getattr(rule, name)}


def _word(of: Any, number: int, prefix: str) -> str:
    return str(of.Name(number)).removeprefix(prefix).lower()


def _limits(limits: pb.Limits) -> dict[str, Any]:
    shown: dict[str, Any] = {
        f"{field.name}_s": _number(value) for field, value in limits.ListFields() if field.name in _SECONDS
    }
    if limits.output_bytes:
        shown["output_bytes"] = limits.output_bytes
    if limits.HasField("budget"):
        shown["budget"] = {field.name: value for field, value in limits.budget.ListFields()}
    return shown


def _fallback(fallback: adapter_pb2.Fallback) -> dict[str, Any]:
    shown: dict[str, Any] = {"adapters": list(fallback.adapters)}
    shown["on"] = [_word(pb.FailureKind, kind, _FAILURE_KIND) for kind in fallback.on]
    if fallback.after_side_effects:
        shown["after_side_effects"] = True
    if fallback.configs:
        shown["configs"] = {name: _settings(fallback.configs[name]) for name in sorted(fallback.configs)}
    return shown


def _server(server: adapter_pb2.McpServer) -> dict[str, Any]:
    if server.WhichOneof("transport") == "http":
        shown: dict[str, Any] = {"url": server.http.url, "headers": dict(sorted(server.http.headers.items()))}
    else:
        stdio = server.stdio
        shown = {"command": stdio.command, "args": list(stdio.args), "env": dict(sorted(stdio.env.items()))}
    return {name: value for name, value in shown.items() if value}


def _lines(path: str, table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if not isinstance(value, dict):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            own = f"{path}.{_key(key)}" if path else _key(key)
            yield ""
            yield f"[{own}]"
            yield from _lines(own, value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        # TOML takes the escapes of JSON, but no DEL and no halves of a pair.
        text = json.dumps(value, ensure_ascii=False)
        return text.replace("\x7f", "\\u007f")
    return json.dumps(value)
