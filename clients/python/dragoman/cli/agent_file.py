"""A stored agent as a file in TOML: read with errors that name its keys, and written. Pure."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from dragoman.protocol.budgets import budget_problems
from dragoman.protocol.identity import near_names
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, json_format, struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_MOST_SECONDS: Final = 315_360_000
_LARGEST: Final = 2**53
"""Of numbers in settings: JSON has no larger whole numbers."""
_KEYS: Final = {"default_decision": "default"}
"""What fields are called in a file, if not by their name; times have the suffix ``_s``."""
_SET_BY_ROUTER: Final = ("created_at", "updated_at")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


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
    _read("", content, agent)
    for wrong in budget_problems(agent.limits.budget):  # by the rule of the router, which would refuse it too
        raise AgentFileError(f"{wrong.path}: {wrong.description}")
    return agent


def _fields(message: Any) -> dict[str, FieldDescriptor]:
    """Return the fields of a message that a file may have, by their keys."""
    fields = [field for field in message.DESCRIPTOR.fields if field.name not in _SET_BY_ROUTER]
    return {
        _KEYS.get(field.name, f"{field.name}{'_s' * _is(field, duration_pb2.Duration)}"): field for field in fields
    }


def _is(field: FieldDescriptor, kind: type[Message]) -> bool:
    return field.message_type is not None and field.message_type.full_name == kind.DESCRIPTOR.full_name


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _read(path: str, table: Any, message: Message) -> None:
    keys = _fields(message)
    message.SetInParent()
    for key, value in _table(path, table).items():
        own = f"{path}.{key}" if path else key
        if key not in keys:
            near = near_names(key, keys)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the keys are {', '.join(keys)}"
            raise AgentFileError(f"{own}: no such key; {hint}")
        _put(message, keys[key], own, value)
    if isinstance(message, pb.PermissionRule) and not message.decision:
        raise AgentFileError(f"{path}: needs decision: deny, ask or allow")


def _put(message: Any, field: FieldDescriptor, path: str, value: Any) -> None:
    """Write the value of a key into a message."""
    there = getattr(message, field.name)
    if special := _SPECIAL.get(field.name) or _SPECIAL.get(
        field.message_type.full_name if field.message_type else ""
    ):
        special(there, path, value)
    elif _is_map(field):
        for name, item in _table(path, value).items():
            there[name] = _is_text(f"{path}.{name}", item)
    elif field.is_repeated:
        for number, item in enumerate(_list(path, value)):
            if field.message_type:
                _read(f"{path}[{number}]", item, there.add())
            else:
                there.append(_plain(field, f"{path}[{number}]", item))
    elif field.message_type:
        _read(path, value, there)
    else:
        setattr(message, field.name, _plain(field, path, value))


def _plain(field: FieldDescriptor, path: str, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return _is_text(path, value)
    if field.type == FieldDescriptor.TYPE_BOOL:
        if not isinstance(value, bool):
            raise AgentFileError(f"{path}: must be true or false")
        return value
    if field.enum_type:
        words = {_word(field, item.number): item.number for item in field.enum_type.values if item.number}
        if value not in list(words):
            raise AgentFileError(f"{path}: must be one of {', '.join(words)}")
        return words[value]
    most = 2**32 - 1 if field.type == FieldDescriptor.TYPE_UINT32 else 2**63 - 1
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise AgentFileError(f"{path}: must be a whole number from 0 to {most:,}")
    return value


def _word(field: FieldDescriptor, number: int) -> str:
    assert field.enum_type is not None
    names = field.enum_type.values_by_number
    return names[number].name.removeprefix(names[0].name.removesuffix("UNSPECIFIED")).lower()


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


def _absolute(path: str, value: Any) -> str:
    if not _is_text(path, value).startswith("/"):
        raise AgentFileError(f"{path}: must be an absolute path on the adapter's machine")
    return str(value)


def _put_instructions(instructions: Any, path: str, value: Any) -> None:
    if isinstance(value, str):
        instructions.text = value
    elif _table(path, value):  # an empty one is none
        if "text" in value:
            raise AgentFileError(f"{path}.text: no such key; write the text itself, or the key file")
        _read(path, value, instructions)
        _absolute(f"{path}.file", instructions.file)


def _put_skills(skills: Any, path: str, value: Any) -> None:
    for number, item in enumerate(_list(path, value)):
        directory = _absolute(f"{path}[{number}]", item).rstrip("/")
        skills.add(name=directory.rpartition("/")[2], directory=directory)


def _put_duration(duration: duration_pb2.Duration, path: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST_SECONDS:
        raise AgentFileError(f"{path}: must be a number of seconds")
    duration.FromNanoseconds(round(value * 1e9))


def _put_configs(configs: Any, path: str, value: Any) -> None:
    for name, settings in _table(path, value).items():
        _put_settings(configs[name], f"{path}.{name}", settings)


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


def _put_servers(servers: Any, path: str, value: Any) -> None:
    for name, table in _table(path, value).items():
        own, server = f"{path}.{name}", servers.add(name=name)
        is_http = "url" in _table(own, table)
        _read(own, table, server.http if is_http else server.stdio)
        if not is_http and not server.stdio.command:
            raise AgentFileError(f"{own}: needs command or url")


_SPECIAL: Final[Mapping[str, Callable[[Any, str, Any], None]]] = {
    "instructions": _put_instructions,
    "skills": _put_skills,
    "mcp_servers": _put_servers,
    "configs": _put_configs,
    "google.protobuf.Struct": _put_settings,
    "google.protobuf.Duration": _put_duration,
}
"""How fields are written that are not as their message is, by their names or types."""


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


def _content(message: Message) -> dict[str, Any]:
    keys = {field.name: key for key, field in _fields(message).items()}
    return {
        keys[field.name]: _shown(field, value)
        for field, value in message.ListFields()
        if field.name in keys and not _is_sourceless(value)
    }


def _is_sourceless(value: Any) -> bool:
    """Return whether these are instructions without any, which a file leaves out."""
    return isinstance(value, adapter_pb2.Instructions) and value.WhichOneof("source") is None


def _shown(field: FieldDescriptor, value: Any) -> Any:
    """Return the value of a field as a file has it."""
    if field.name == "instructions":
        return value.text if value.WhichOneof("source") == "text" else _content(value)
    if field.name == "skills":
        return [skill.directory for skill in value]
    if field.name == "mcp_servers":
        return {server.name: _content(getattr(server, server.WhichOneof("transport") or "stdio")) for server in value}
    if _is(field, struct_pb2.Struct):
        return _settings(value)
    if _is(field, duration_pb2.Duration):
        seconds = value.ToNanoseconds() / 1e9
        return int(seconds) if seconds.is_integer() else seconds
    if _is_map(field):
        return {name: _settings(value[name]) if field.name == "configs" else value[name] for name in sorted(value)}
    if field.is_repeated:
        return [_one(field, item) for item in value]
    return _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type:
        return _content(value)
    return _word(field, value) if field.enum_type else value


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
