"""The policy of a router's operator: what requests may ask for at most, and what they get otherwise. Pure.

A request can only narrow it. What asks for more is refused, with all fields that do; nothing is reduced in silence.
Absent limits, and an absent model, get the policy's. ``operator_policy.schema.json`` documents the file.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from dragoman.protocol.budgets import CAPS, budget_excess, budget_problems
from dragoman.protocol.duties import LIMIT_SETTINGS, settings_of
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason
from dragoman.router.model.quotas import Quota, Quotas
from dragoman.router.model.spending import LABEL, WARN_PERCENT, LabelBudget
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, struct_pb2
from msgspec import Struct, field

_ANY: Final = "*"
_WILDCARDS: Final = frozenset("*?[")
_URL_SCHEMES: Final = frozenset({"http", "https", "ws", "wss"})
_DURATIONS: Final = ("start_up", "idle", "wall", "tool_call", "grace")
_DEFAULT_GRACE_S: Final = 15.0
"""What an absent ``limits.grace`` means."""
_DEFAULT_ANSWER_S: Final = 600.0
"""What an absent ``permissions.request_timeout`` means."""
_AMOUNT: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
"""A sum of money that a database can add up."""
_MAX_NAMED: Final = 200
"""Characters of a value that an error repeats."""


class PolicyError(ValueError):
    """A policy is invalid; the message says which key, and why."""


class OperatorPolicy(Struct, frozen=True):
    """What requests may ask for at most. ``None`` and empty mappings restrict nothing."""

    adapters: tuple[str, ...] | None = None
    denied_adapters: tuple[str, ...] = ()
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    denied_settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    denied_variables: tuple[str, ...] = ()
    directories: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    mcp_programs: bool = True
    auto_approve: bool = True
    native_modes: tuple[str, ...] | None = None
    rules: tuple[pb.PermissionRule, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    """Seconds, and bytes for ``output_bytes``, by name."""
    budget: pb.Budget = field(default_factory=pb.Budget)
    """The most that a run may use."""
    budgets: tuple[LabelBudget, ...] = ()
    """What runs may use together."""
    fallbacks: int | None = None
    fallback_after_side_effects: bool = True
    quotas: Quotas = Quotas()

    def allows_adapter(self, adapter: str) -> bool:
        """Return whether runs may use an adapter, by its type."""
        return (self.adapters is None or _matches(adapter, self.adapters)) and not _matches(
            adapter, self.denied_adapters
        )


Resolve = Callable[[str], str]
"""Returns a path without links and without ``..``: ``os.path.realpath``, where the router shares the file system."""


def parse_policy(data: bytes) -> OperatorPolicy:
    """Read a policy in TOML.

    Raises:
        PolicyError: it is invalid.
    """
    import tomllib  # noqa: PLC0415 - needed once

    try:
        content = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PolicyError(f"is not valid TOML: {error}") from error
    _check_schema(content)
    adapters, permissions = content.get("adapters", {}), content.get("permissions", {})
    rules, fallback = tuple(map(_rule, permissions.get("rules", ()))), content.get("fallback", {})
    modes, limits = permissions.get("native_modes", () if rules else None), content.get("limits", {})
    return OperatorPolicy(
        adapters=_optional_tuple(adapters.get("allow")),
        denied_adapters=tuple(adapters.get("deny", ())),
        models=_tuples(content.get("models", {})),
        denied_settings=_tuples(content.get("settings", {}).get("deny", {})),
        denied_variables=tuple(content.get("environment", {}).get("deny", ())),
        directories=_optional_tuple(content.get("directories", {}).get("allow")),
        hosts=_optional_tuple(content.get("network", {}).get("hosts")),
        mcp_programs=content.get("mcp", {}).get("programs", True),
        auto_approve=permissions.get("auto_approve", not rules),
        native_modes=_optional_tuple(modes),
        rules=rules,
        limits={name.removesuffix("_s"): value for name, value in limits.items() if name != "budget"},
        budget=_budget("limits.budget", limits.get("budget", {})),
        budgets=_budgets(content.get("budgets", ())),
        fallbacks=fallback.get("adapters"),
        fallback_after_side_effects=fallback.get("after_side_effects", True),
        quotas=_quotas(content.get("quotas", {})),
    )


def _check_schema(content: dict[str, Any]) -> None:
    import importlib.resources  # noqa: PLC0415 - needed once
    import json  # noqa: PLC0415 - as above

    import jsonschema  # noqa: PLC0415 - slow to import

    schema = json.loads(
        importlib.resources.files(__package__).joinpath("operator_policy.schema.json").read_text("utf-8")
    )
    worst = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(content))
    if worst is not None:
        where = ".".join(str(part) for part in worst.absolute_path)
        raise PolicyError(f"{where or 'the file'}: {worst.message}")


def _optional_tuple(values: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _tuples(table: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(values) for name, values in table.items()}


def _quotas(table: Mapping[str, Any]) -> Quotas:
    default = table.get("default")
    rows = {name: Quota(**row) for name, row in table.get("callers", {}).items()}
    return Quotas(None if default is None else Quota(**default), rows)


def _budget(where: str, table: Mapping[str, Any]) -> pb.Budget:
    caps = {name: value for name, value in table.items() if name in CAPS or name == "currency"}
    if caps.keys() == {"currency"}:
        raise PolicyError(f"{where}.currency: goes with cost")
    if "cost" in caps:
        caps = {"currency": "USD", **caps, "cost": str(caps["cost"])}
    budget = pb.Budget(**caps)
    if problems := budget_problems(budget):
        raise PolicyError(f"{where}.{problems[0].path.rpartition('.')[2]}: {problems[0].description}")
    return budget


def _budgets(tables: Sequence[Mapping[str, Any]]) -> tuple[LabelBudget, ...]:
    names = [table["name"] for table in tables]
    if again := sorted({name for name in names if names.count(name) > 1}):
        raise PolicyError(f"budgets: the name {again[0]!r} is given twice")
    return tuple(map(_label_budget, tables))


def _label_budget(table: Mapping[str, Any]) -> LabelBudget:
    where, label = f"budgets.{table['name']}", table.get("label")
    caps, runs = _budget(where, table), table.get("runs")
    if not caps.ByteSize() and runs is None:
        raise PolicyError(
            f"{where}: sets no cap: give cost, input_tokens, output_tokens, model_calls, tool_calls or runs"
        )
    if caps.cost and not _AMOUNT.fullmatch(caps.cost):
        raise PolicyError(f"{where}.cost: must have at most 9 digits before the point and 9 behind it")
    if table.get("value") is not None and label is None and "field" not in table:
        raise PolicyError(f"{where}.value: goes with field or label")
    return LabelBudget(
        name=table["name"],
        caps=caps,
        period=table["period"],
        runs=runs,
        field=f"{LABEL}{label}" if label is not None else table.get("field", ""),
        value=table.get("value"),
        warn_percent=table.get("warn_percent", WARN_PERCENT),
    )


def _rule(fields: Mapping[str, str]) -> pb.PermissionRule:
    rule = pb.PermissionRule(
        decision=pb.PermissionDecision.Value(f"PERMISSION_DECISION_{fields['decision'].upper()}"),
        tool_name=fields.get("tool_name", ""),
        path_glob=fields.get("path_glob", ""),
        command_prefix=fields.get("command_prefix", ""),
        host=fields.get("host", ""),
    )
    if "tool_kind" in fields:
        rule.tool_kind = pb.ToolKind.Value(f"TOOL_KIND_{fields['tool_kind'].upper()}")
    return rule


def permitted(
    policy: OperatorPolicy, request: adapter_pb2.ExecuteRequest, adapter: str, resolve: Resolve
) -> adapter_pb2.ExecuteRequest:
    """Return the request that an adapter gets, with what the policy adds.

    Args:
        policy: the operator's.
        request: the caller's, or that of an attempt.
        adapter: the type of the adapter that gets it.
        resolve: resolves paths.

    Raises:
        DragomanError: POLICY_DENIED, with all fields that ask for more than the policy allows.
    """
    violations = list(objections(policy, request, adapter, resolve))
    if violations:
        raise denied(violations)
    return _completed(policy, request, adapter)


def denied(violations: Sequence[FieldViolation]) -> DragomanError:
    """Return the error for fields that ask for more than the policy allows."""
    first = violations[0]
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    message = f"The router's policy does not allow this: {first.path}: {first.description}{more}."
    return DragomanError(Reason.POLICY_DENIED, message, violations=tuple(violations))


def objections(
    policy: OperatorPolicy, request: adapter_pb2.ExecuteRequest, adapter: str, resolve: Resolve
) -> Iterator[FieldViolation]:
    """Yield each field that asks for more than the policy allows, of what an adapter gets; see ``permitted``."""
    settings = _settings(request)
    if not policy.allows_adapter(adapter):
        yield FieldViolation("adapter", f"adapter {adapter!r} is not allowed")
    yield from _model_objections(policy, request, adapter, settings)
    for name in sorted(settings):
        if _matches(name, (*policy.denied_settings.get(_ANY, ()), *policy.denied_settings.get(adapter, ()))):
            yield FieldViolation(f"config.{name}", "this setting is not allowed")
    for path, names in (("env", request.env), ("config.env", settings.get("env", {}))):
        for name in sorted(names) if isinstance(names, Mapping) else ():
            if _matches(name, policy.denied_variables):
                yield FieldViolation(f"{path}.{name}", "this variable is not allowed")
    yield from _directory_objections(policy, request, settings, resolve)
    yield from _network_objections(policy, request, settings)
    yield from _permission_objections(policy, request.permissions)
    yield from _limit_objections(policy, request, settings)


def input_objections(
    policy: OperatorPolicy, request: adapter_pb2.SendRequest, resolve: Resolve
) -> Iterator[FieldViolation]:
    """Yield each field of an input in mid-run that asks for more than the policy allows."""
    files = adapter_pb2.ExecuteRequest(attachments=request.attachments)
    yield from _directory_objections(policy, files, {}, resolve)


def caller_objections(policy: OperatorPolicy, request: adapter_pb2.ExecuteRequest) -> Iterator[FieldViolation]:
    """Yield each field that asks for more than the policy allows, of what no adapter gets from a router."""
    yield from _too_long(policy, "orphan_after", "orphan_after", _seconds(request.orphan_after))
    if policy.fallbacks is not None and len(request.fallback.adapters) > policy.fallbacks:
        yield FieldViolation("fallback.adapters", f"at most {policy.fallbacks} are allowed")
    if request.fallback.after_side_effects and not policy.fallback_after_side_effects:
        yield FieldViolation("fallback.after_side_effects", "must be false")


def update_objections(
    policy: OperatorPolicy, request: adapter_pb2.UpdateRunRequest, adapter: str
) -> Iterator[FieldViolation]:
    """Yield the field of a change of a run that asks for more than the policy allows an adapter."""
    allowed = _allowed_models(policy, adapter)
    if request.HasField("model") and allowed is not None and not _matches(request.model, allowed):
        yield FieldViolation("model", _unlisted("model", request.model, allowed))
    modes = policy.native_modes
    if request.HasField("permission_mode") and modes is not None and not _matches(request.permission_mode, modes):
        yield FieldViolation("permission_mode", _unlisted("mode", request.permission_mode, modes))


def _unlisted(what: str, value: str, allowed: Sequence[str]) -> str:
    return f"{what} {value[:_MAX_NAMED]!r} is not allowed; allowed: {', '.join(allowed) or 'none'}"


def _settings(request: adapter_pb2.ExecuteRequest) -> dict[str, Any]:
    return {name: _plain(value) for name, value in settings_of(request).fields.items()}


def _plain(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return {name: _plain(item) for name, item in value.struct_value.fields.items()}
        case "list_value":
            return [_plain(item) for item in value.list_value.values]
        case "null_value" | None:
            return None
        case kind:
            return getattr(value, kind)


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _allowed_models(policy: OperatorPolicy, adapter: str) -> tuple[str, ...] | None:
    return policy.models.get(adapter, policy.models.get(_ANY))


def _default_model(allowed: Sequence[str]) -> str:
    return allowed[0] if allowed and not _WILDCARDS & set(allowed[0]) else ""


def _model_objections(
    policy: OperatorPolicy, request: adapter_pb2.ExecuteRequest, adapter: str, settings: Mapping[str, Any]
) -> Iterator[FieldViolation]:
    allowed = _allowed_models(policy, adapter)
    if allowed is None:
        return
    model = settings.get("model")
    for path, name in (("model", request.model), ("config.model", model)):
        if name and not (isinstance(name, str) and _matches(name, allowed)):
            yield FieldViolation(path, _unlisted("model", str(name), allowed))
    if not request.model and not model and not _default_model(allowed):
        yield FieldViolation("model", f"must name an allowed model: {', '.join(allowed) or 'none'}")


def _directory_objections(
    policy: OperatorPolicy, request: adapter_pb2.ExecuteRequest, settings: Mapping[str, Any], resolve: Resolve
) -> Iterator[FieldViolation]:
    if policy.directories is None:
        return
    paths = [
        ("workspace.cwd", request.workspace.cwd),
        ("config.cwd", str(settings.get("cwd") or "")),
        ("instructions.file", request.instructions.file),
        *(("workspace.additional_directories", path) for path in request.workspace.additional_directories),
        *(("skills.directory", skill.directory) for skill in request.skills),
        *((f"attachments[{number}].path", item.path) for number, item in enumerate(request.attachments)),
    ]
    for path, name in paths:
        if name and not _lies_in(resolve(name), policy.directories, resolve):
            allowed = ", ".join(policy.directories) or "none"
            yield FieldViolation(path, f"{name[:_MAX_NAMED]!r} is outside the allowed directories: {allowed}")


def _lies_in(path: str, directories: Iterable[str], resolve: Resolve) -> bool:
    return any(PurePosixPath(path).is_relative_to(resolve(directory)) for directory in directories)


def _network_objections(
    policy: OperatorPolicy, request: adapter_pb2.ExecuteRequest, settings: Mapping[str, Any]
) -> Iterator[FieldViolation]:
    for number, server in enumerate(request.mcp_servers):
        if server.WhichOneof("transport") == "stdio" and not policy.mcp_programs:
            yield FieldViolation(f"mcp_servers[{number}].stdio", "programs are not allowed as MCP servers")
    if policy.hosts is None:
        return
    texts = [
        ("api_url", request.api_url),
        *((f"mcp_servers[{number}].http.url", server.http.url) for number, server in enumerate(request.mcp_servers)),
        *((f"env.{name}", value) for name, value in sorted(request.env.items())),
        *_texts("config", settings),
    ]
    for path, text in texts:
        host = _host(text)
        if host is not None and not _matches(host, policy.hosts):
            allowed = ", ".join(policy.hosts) or "none"
            yield FieldViolation(path, f"host {host[:_MAX_NAMED]!r} is not allowed; allowed: {allowed}")


def _texts(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield each text in a value, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield from _texts(f"{path}.{name}", value[name])
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(f"{path}[{number}]", item)


def _host(text: str) -> str | None:
    """Return the host of a URL, lower-case and empty if it cannot be read; ``None`` if the text is no URL."""
    if text.partition("://")[0].strip().lower() not in _URL_SCHEMES:
        return None
    try:
        return urlsplit(text.strip()).hostname or ""
    except ValueError:
        return ""


def _permission_objections(policy: OperatorPolicy, permissions: pb.Permissions) -> Iterator[FieldViolation]:
    if permissions.auto_approve and not policy.auto_approve:
        yield FieldViolation("permissions.auto_approve", "must be false")
    mode, allowed = permissions.native_mode, policy.native_modes
    if mode and allowed is not None and not _matches(mode, allowed):
        yield FieldViolation("permissions.native_mode", _unlisted("mode", mode, allowed))


def _limit_objections(
    policy: OperatorPolicy, request: adapter_pb2.ExecuteRequest, settings: Mapping[str, Any]
) -> Iterator[FieldViolation]:
    limits = request.limits
    for name in _DURATIONS:
        setting = LIMIT_SETTINGS.get(name, "")
        if setting and not limits.HasField(name):
            yield from _too_long(policy, name, f"config.{setting}", _number(settings.get(setting)))
        else:
            yield from _too_long(policy, name, f"limits.{name}", _seconds(getattr(limits, name)))
    yield from _too_long(policy, "output_bytes", "limits.output_bytes", limits.output_bytes, "bytes")
    answer_s = _seconds(request.permissions.request_timeout)
    yield from _too_long(policy, "request_timeout", "permissions.request_timeout", answer_s)
    if policy.budget.ByteSize() and not budget_problems(limits.budget):
        yield from budget_excess(limits.budget, policy.budget)


def _too_long(
    policy: OperatorPolicy, name: str, path: str, value: float, unit: str = "s"
) -> Iterator[FieldViolation]:
    most = policy.limits.get(name)
    if most is not None and value > most:
        yield FieldViolation(path, f"{value:g} {unit} is more than the allowed {most:g} {unit}")


def _number(value: object) -> float:
    return value if isinstance(value, float) else 0.0


def _seconds(duration: duration_pb2.Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _completed(
    policy: OperatorPolicy, request: adapter_pb2.ExecuteRequest, adapter: str
) -> adapter_pb2.ExecuteRequest:
    """Return an allowed request with the policy's limits, rules and model where it has none of its own."""
    following = adapter_pb2.ExecuteRequest()
    following.CopyFrom(request)
    settings = _settings(request)
    allowed = _allowed_models(policy, adapter)
    if allowed is not None and not request.model and not settings.get("model"):
        following.model = _default_model(allowed)
    if policy.rules and list(request.permissions.rules[: len(policy.rules)]) != list(policy.rules):
        del following.permissions.rules[:]
        following.permissions.rules.extend((*policy.rules, *request.permissions.rules))
    _complete_limits(policy, following, settings)
    return following


def _complete_limits(
    policy: OperatorPolicy, request: adapter_pb2.ExecuteRequest, settings: Mapping[str, Any]
) -> None:
    limits, most = request.limits, policy.limits
    for name in ("start_up", "idle", "wall", "tool_call"):
        if name in most and not _seconds(getattr(limits, name)):
            setting = 0.0 if limits.HasField(name) else _number(settings.get(LIMIT_SETTINGS.get(name, "")))
            _set(getattr(limits, name), setting if setting > 0 else most[name])
    if "grace" in most and not limits.HasField("grace") and LIMIT_SETTINGS["grace"] not in settings:
        _set(limits.grace, min(most["grace"], _DEFAULT_GRACE_S))
    if "output_bytes" in most and not limits.output_bytes:
        limits.output_bytes = int(most["output_bytes"])
    if "request_timeout" in most and not request.permissions.HasField("request_timeout"):
        _set(request.permissions.request_timeout, min(most["request_timeout"], _DEFAULT_ANSWER_S))


def _set(duration: duration_pb2.Duration, seconds: float) -> None:
    duration.FromNanoseconds(int(seconds * 1e9))
