"""What an adapter declares: its name, its settings, its capabilities, and whatever of its agent is data."""

import enum
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, Final, TypedDict

from dragoman.protocol.identity import is_adapter_type
from dragoman.sdk._encoding.config import bundled_schema, common_properties, packaged_file
from dragoman.sdk._encoding.schema import ConfigSchema
from dragoman.sdk._output.tool_calls import FileTool, Kinds
from dragoman.sdk._skills.strategy import SkillStrategy
from dragoman.v1 import event_pb2
from msgspec import Meta, Struct, ValidationError, convert, field
from msgspec.structs import force_setattr

__all__ = [
    "AdapterInfo",
    "AgentSpec",
    "Documents",
    "Model",
    "SessionIds",
    "SpecError",
    "agent_spec",
    "capabilities",
    "common_properties",
    "shipped_documents",
]


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """A model that can be asked for."""

    id: Annotated[str, Meta(min_length=1)]
    label: str = ""
    is_default: bool = False


class AdapterInfo(Struct, frozen=True):
    """What an adapter is. Known without looking at the machine."""

    type: str
    """``[a-z][a-z0-9_]*``, unique across a router."""
    label: str
    """A name for people."""
    version: str
    """The adapter's own version."""
    configuration_doc: str
    """Markdown: use when, don't use when, fields; dangerous ones named as dangerous."""
    config_schema: Mapping[str, Any]
    """JSON Schema of ``config``. A property may refer to one that many adapters share, see ``common_properties``, as
    in ``{"$ref": "dragoman:common#/$defs/model"}``."""
    capabilities: event_pb2.Capabilities = field(default_factory=event_pb2.Capabilities)
    aliases: Sequence[str] = ()
    """Its names in other systems."""
    models: Sequence[Model] = ()
    """Models known without a query."""

    def __post_init__(self) -> None:
        """Replace the references of the schema by what they name.

        Raises:
            SpecError: There is no such common property.
        """
        try:
            force_setattr(self, "config_schema", bundled_schema(self.config_schema))
        except ValueError as error:
            raise SpecError(f"{self.type}: config_schema: {error}") from error

    def check_schema(self) -> None:
        """Check the rules of the schema, as one that is wrong fails each run.

        Not each start does it: what knows all rules is slow to import.

        Raises:
            SpecError: A rule is wrong; the message says where, and what.
        """
        try:
            ConfigSchema(self.config_schema).check()
        except RecursionError as error:
            raise SpecError(f"{self.type}: config_schema: it is nested too deep") from error
        except ValueError as error:
            raise SpecError(f"{self.type}: config_schema: {error}") from error

    def has(self, feature: event_pb2.Feature.ValueType) -> bool:
        """Return whether a capability is declared."""
        return any(item.feature == feature for item in self.capabilities.items)


class SessionIds(enum.Enum):
    """What an agent's session ids look like. Anything else is refused before it gets to the agent."""

    PRINTABLE = "printable"
    """At most 256 printable characters that begin with no hyphen."""
    UUID = "uuid"
    LOWER_CASE_UUID = "lower-case uuid"


class AgentSpec(AdapterInfo, frozen=True, kw_only=True):
    """What the adapter of an agent declares; ``agent_spec`` reads it from the adapter's folder."""

    executables: tuple[str, ...] = ()
    """Names to look for on PATH, best first. Empty: ``config.command`` is required."""
    tested_version: str = ""
    """The version, as ``--version`` says it, of the real program that this adapter's tests last passed with. Detect
    reports the capabilities of exactly this version as probed. Empty: no real program was tested."""
    asks_version: bool = True
    """Whether ``--version`` may be asked. Not of an arbitrary command."""
    npm_package: str = ""
    """The npm package whose command the agent is, for one that takes long to start. Detect then reads the version in
    the package and does not start the program, so that it does not notice an installation that is incomplete or too
    new for its Node.js; TestEnvironment starts it. A program that is no script of this package for Node.js, or has no
    ``node`` on its PATH, is asked. Empty: it is always asked."""
    tidy_variables: tuple[str, ...] = ()
    """Variables that lead elsewhere while it is asked, as the agent makes directories wherever they lead."""
    version_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that it gets while it is asked."""
    session_ids: SessionIds = SessionIds.PRINTABLE
    """What its session ids look like."""
    session_id_pattern: str = ""
    """A regular expression that each of them matches as a whole, beside ``session_ids``. Empty: there is none."""
    takes_blank_prompt: bool = True
    """Whether it makes anything of a prompt of blanks. If not, such a request is refused."""
    native_modes: tuple[str, ...] | None = None
    """Its modes for a run, which ``permissions.native_mode`` names. None: any that is no option."""
    tools: Kinds = field(default_factory=dict)
    """What its own tools do, by name."""
    file_tools: Mapping[str, FileTool] = field(default_factory=dict)
    """How the arguments of those that change a file say what they do."""
    native_protocol: str = ""
    """The name of the agent's wire format, for NativeFrame.protocol."""
    needs_terminal: bool = True
    """Whether the agent always says in its output how it ended. If not, exit code 0 is success."""
    linger_s: float = 5.0
    """Seconds that the agent may live on after it has reported its end."""
    unread_s: float = 120.0
    """Seconds of silence after a line that the parser failed on, after which the run fails: the agent may have asked
    something in that line. Not where the agent's standard input is closed."""
    retries_silently: bool = False
    """Whether the agent tries a call of its model again that failed, and does not always report it."""
    inherit: tuple[str, ...] = ()
    """Variables, beyond the usual ones, that are passed on from the adapter's own environment."""
    runs_on_node: bool = False
    """Whether it is a script for Node.js. It may keep compiled code for its next start, so that runs get
    ``NODE_COMPILE_CACHE``: a third of the CPU time that it takes to start."""
    strip: tuple[str, ...] = ()
    """Variables that are never passed on, e.g. those by which an agent knows that it runs inside itself."""
    api_key_variables: tuple[str, ...] = ()
    """Variables with an API key: found in the environment they are a warning, as they are billed. Those of the
    adapter's own environment are not passed on where ``auth`` finds a subscription in use."""
    config_dir_name: str = ""
    """The agent's config directory below the home directory, e.g. ``.claude``. Empty: it has none."""
    config_dir_variable: str = ""
    """The variable that moves it. Empty: there is none."""
    login_files: tuple[str, ...] = ()
    """The files below it that hold its logins, if none is elsewhere. While they stay as they are, runs do not ask
    ``auth`` again. Empty: each run asks, if a key is inherited."""
    skills_dir_name: str = ""
    """Where the agent keeps skills, below its config directory. Empty: nowhere."""
    skill_strategy: SkillStrategy | None = None
    """The way a run's skills go. None: a private directory if there is a ``skill_layout``, else the plan's way."""
    skill_layout: str = ""
    """Where a skill goes below its private directory, e.g. ``.claude/skills/{name}``."""
    login_hint: str = ""
    """How to log in, e.g. "run `claude auth login`"."""
    install_hint: str = ""
    """How to install the agent."""

    def __post_init__(self) -> None:
        """Declare what the SDK does for every such agent: further turns, and files that it gets and leaves.

        ``check_schema`` examines the rules of the schema.

        Raises:
            SpecError: The type is no adapter type, the schema is not JSON, or it refers to no common property.
        """
        if self.type and not is_adapter_type(self.type):
            rule = "[a-z][a-z0-9_]*, at most 64 characters, such as my_agent"
            raise SpecError(f"type {self.type!r} is no name for an adapter; give it one of the form {rule}")
        super().__post_init__()
        try:
            # As ``Describe`` shows it: a tuple is a list.
            force_setattr(self, "config_schema", json.loads(json.dumps(self.config_schema)))
        except RecursionError as error:
            raise SpecError(f"{self.type}: config_schema: it is nested too deep") from error
        except (TypeError, ValueError) as error:
            raise SpecError(f"{self.type}: config_schema: not JSON: {error}") from error
        needs = {feature: needed for feature, (needed, _) in _BY_SDK.items() if not self.has(feature)}
        added = [feature for feature, needed in needs.items() if all(map(self.has, needed))]
        if added:
            declared = event_pb2.Capabilities()
            declared.CopyFrom(self.capabilities)
            origin = event_pb2.CAPABILITY_ORIGIN_DECLARED
            for feature in added:
                declared.items.add(feature=feature, origin=origin, note=_BY_SDK[feature][1])
            force_setattr(self, "capabilities", declared)


_BY_SDK: Final = {
    event_pb2.FEATURE_QUEUE: ((event_pb2.FEATURE_RESUME,), "the SDK starts the agent again in its session"),
    event_pb2.FEATURE_ATTACHMENTS: (
        (event_pb2.FEATURE_PROMPT, event_pb2.FEATURE_WORKSPACE),
        "as files, which the prompt names",
    ),
    # Where the token for the caller's API gets to, the other variables of the run do.
    event_pb2.FEATURE_ARTIFACTS: (
        (event_pb2.FEATURE_WORKSPACE, event_pb2.FEATURE_AUTH_TOKEN),
        "what it leaves in the directory that PREFIX_ARTIFACTS names",
    ),
}
"""What the SDK does for an agent that has other features: those, and a note."""


class Documents(TypedDict):
    """What an adapter's folder holds for those who configure it, as ``AdapterInfo`` takes it."""

    configuration_doc: str
    config_schema: Mapping[str, Any]


def shipped_documents(package: str) -> Documents:
    """Return ``configuration.md`` and ``config.schema.json`` of a package; pass ``__package__``.

    The schema may refer to the properties that many adapters share, see ``common.schema.json`` of this package.

    Raises:
        SpecError: the schema is not JSON, or refers to a property that does not exist.
    """
    text = packaged_file(package, "config.schema.json")
    try:
        schema = bundled_schema(json.loads(text))
    except ValueError as error:
        raise SpecError(f"{package}: config.schema.json: {error}") from error
    return Documents(configuration_doc=packaged_file(package, "configuration.md"), config_schema=schema)


def capabilities(
    *features: event_pb2.Feature.ValueType,
    resume: event_pb2.ResumeStyle.ValueType = event_pb2.RESUME_STYLE_UNSPECIFIED,
    cancel: event_pb2.CancelStyle.ValueType = event_pb2.CANCEL_STYLE_SIGNAL,
    permission_mode: event_pb2.PermissionMode.ValueType = event_pb2.PERMISSION_MODE_UNSPECIFIED,
    max_concurrent_runs: int | None = None,
    notes: Mapping[event_pb2.Feature.ValueType, str] | None = None,
) -> event_pb2.Capabilities:
    """Return declared capabilities. ``max_concurrent_runs`` is what routers keep to; None: no limit known.

    With FEATURE_WORKSPACE comes FEATURE_CHANGES: the SDK compares workspaces. With FEATURE_PER_CALL_USAGE tokens are
    reported after each call of the model.
    """
    if event_pb2.FEATURE_WORKSPACE in features:
        features = (*features, event_pb2.FEATURE_CHANGES)
        notes = {event_pb2.FEATURE_CHANGES: "the SDK compares the workspace with what it was", **(notes or {})}
    declared = event_pb2.Capabilities(
        resume_style=resume,
        cancel_style=cancel,
        permission_mode=permission_mode,
        max_concurrent_runs=max_concurrent_runs,
    )
    if event_pb2.FEATURE_PER_CALL_USAGE in features:
        declared.usage_reporting = event_pb2.USAGE_REPORTING_PER_CALL
    for feature in features:
        note = (notes or {}).get(feature, "")
        declared.items.add(feature=feature, origin=event_pb2.CAPABILITY_ORIGIN_DECLARED, note=note)
    return declared


class SpecError(ValueError):
    """An ``adapter.toml`` or the schema beside it says something that no adapter can."""


@cache
def agent_spec(package: str) -> AgentSpec:
    """Return what a package's ``adapter.toml`` declares, with its documents; pass ``__package__``. It is read once.

    Its keys are the fields of ``AgentSpec``; ``models`` are tables, and the table ``capabilities`` has ``features``,
    ``notes`` by feature, ``resume_style``, ``cancel_style``, ``permission_mode``, ``usage_reporting``,
    ``context_window`` and ``max_concurrent_runs``. Features, styles, strategies and kinds are named in lower case,
    without a prefix.

    Raises:
        SpecError: a file cannot be read as what it is, a key is not known, or its value is of another type.
    """
    text = packaged_file(package, "adapter.toml")
    try:
        return read_spec(tomllib.loads(text), shipped_documents(package))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{package}: adapter.toml: {error}") from error


def read_spec(declared: Mapping[str, Any], documents: Documents) -> AgentSpec:
    """Return what an ``adapter.toml`` declares. See ``agent_spec``."""
    unset = AgentSpec(type="", label="", version="", **documents)
    values: dict[str, Any] = dict(documents)
    for key, value in {"capabilities": {}, **declared}.items():
        if key not in unset.__struct_fields__ or key in values:
            raise SpecError(f"adapter.toml: {key} is not known")
        reader = _READERS.get(key)
        values[key] = reader(value) if reader is not None else _read(key, value, type(getattr(unset, key)))
    missing = [key for key in ("type", "label", "version") if key not in values]
    if missing:
        raise SpecError(f"adapter.toml: {' and '.join(missing)} must be given")
    return AgentSpec(**values)


def _read(key: str, value: Any, kind: Any) -> Any:
    try:
        return convert(value, tuple[str, ...] if kind is tuple else kind)
    except ValidationError as error:
        raise SpecError(f"adapter.toml: {key}: {error}") from error


def _member(kind: type[enum.Enum], key: str, value: Any) -> Any:
    named = {member.name.lower(): member for member in kind}
    if not isinstance(value, str) or value not in named:
        raise SpecError(f"adapter.toml: {key} must be one of {', '.join(named)}")
    return named[value]


def _tools(value: Any) -> Kinds:
    kinds: dict[str, str] = _read("tools", value, dict[str, str])
    return {name: _named(event_pb2.ToolKind, "TOOL_KIND", kind) for name, kind in kinds.items()}


class _Capabilities(Struct, forbid_unknown_fields=True):
    """The table ``capabilities``."""

    features: tuple[str, ...] = ()
    notes: dict[str, str] = {}
    resume_style: str = "unspecified"
    cancel_style: str = "signal"
    permission_mode: str = "unspecified"
    usage_reporting: str = ""
    context_window: int | None = None
    max_concurrent_runs: int | None = None


def _capabilities(value: Any) -> event_pb2.Capabilities:
    table: _Capabilities = _read("capabilities", value, _Capabilities)
    undeclared = sorted(table.notes.keys() - set(table.features))
    if undeclared:
        raise SpecError(f"adapter.toml: capabilities.notes.{undeclared[0]} is about no feature")
    declared = capabilities(
        *(_named(event_pb2.Feature, "FEATURE", name) for name in table.features),
        resume=_named(event_pb2.ResumeStyle, "RESUME_STYLE", table.resume_style),
        cancel=_named(event_pb2.CancelStyle, "CANCEL_STYLE", table.cancel_style),
        permission_mode=_named(event_pb2.PermissionMode, "PERMISSION_MODE", table.permission_mode),
        max_concurrent_runs=table.max_concurrent_runs,
        notes={_named(event_pb2.Feature, "FEATURE", name): note for name, note in table.notes.items()},
    )
    if table.usage_reporting:
        declared.usage_reporting = _named(event_pb2.UsageReporting, "USAGE_REPORTING", table.usage_reporting)
    if table.context_window is not None:
        declared.context_window_hint = table.context_window
    return declared


def _named(kind: Any, prefix: str, name: str) -> Any:
    try:
        return kind.Value(f"{prefix}_{name.upper()}")
    except ValueError as error:
        raise SpecError(f"adapter.toml: {name!r} is no {prefix.lower().replace('_', ' ')}") from error


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "native_modes": lambda value: _read("native_modes", value, tuple[str, ...]),
    "models": lambda value: _read("models", value, tuple[Model, ...]),
    "session_ids": partial(_member, SessionIds, "session_ids"),
    "tools": _tools,
    "file_tools": lambda value: _read("file_tools", value, dict[str, FileTool]),
    "skill_strategy": partial(_member, SkillStrategy, "skill_strategy"),
    "capabilities": _capabilities,
}
