"""What an adapter declares in ``adapter.toml``: read strictly, as a mistake there would change what is promised."""

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any

import pytest
from dragoman.sdk import AgentAdapter, AgentSpec, CommandLineAdapter, Job, Parser, Plan
from dragoman.sdk._encoding.schema import ConfigSchema
from dragoman.sdk.parsing import FileTool
from dragoman.sdk.skills import SkillStrategy
from dragoman.sdk.spec import (
    AdapterInfo,
    Documents,
    Model,
    SessionIds,
    SpecError,
    agent_spec,
    common_properties,
    read_spec,
)
from dragoman.v1 import event_pb2 as pb

DOCUMENTS = Documents(configuration_doc="# acme", config_schema={"type": "object"})
LEAST = {"type": "acme", "label": "Acme", "version": "1"}
ENTRIES = sorted(entry_points(group="dragoman.adapters"), key=lambda entry: entry.name)

FULL = """
type = "acme"
label = "Acme"
version = "1"
aliases = ["acme_local"]
executables = ["acme"]
asks_version = false
linger_s = 3
inherit = ["ACME_API_KEY"]
skill_strategy = "prompt"
session_ids = "uuid"

[tools]
look = "read"
change = "edit"

[file_tools.change]
path = "file"
replaces = ["old", "new"]

[capabilities]
features = ["prompt", "cost"]
resume_style = "capture"
cancel_style = "native"
permission_mode = "strict"
context_window = 1000
max_concurrent_runs = 2

[capabilities.notes]
cost = "by its own prices"

[[models]]
id = "m"
label = "M"
is_default = true
"""


def read(**declared: Any) -> AgentSpec:
    return read_spec({**LEAST, **declared}, DOCUMENTS)


def test_everything_that_can_be_declared() -> None:
    spec = read_spec(tomllib.loads(FULL), DOCUMENTS)
    assert (spec.type, spec.label, spec.version, spec.aliases) == ("acme", "Acme", "1", ("acme_local",))
    assert (spec.executables, spec.asks_version, spec.linger_s) == (("acme",), False, 3.0)
    assert isinstance(spec.linger_s, float)
    assert spec.skill_strategy is SkillStrategy.PROMPT
    assert spec.session_ids is SessionIds.UUID
    assert spec.tools == {"look": pb.TOOL_KIND_READ, "change": pb.TOOL_KIND_EDIT}
    assert spec.file_tools == {"change": FileTool("file", replaces=("old", "new"))}
    assert spec.models == (Model("m", "M", is_default=True),)
    able = spec.capabilities
    assert [(item.feature, item.note) for item in able.items] == [
        (pb.FEATURE_PROMPT, ""),
        (pb.FEATURE_COST, "by its own prices"),
    ]
    assert (able.resume_style, able.cancel_style) == (pb.RESUME_STYLE_CAPTURE, pb.CANCEL_STYLE_NATIVE)
    assert able.permission_mode == pb.PERMISSION_MODE_STRICT
    assert (able.context_window_hint, able.max_concurrent_runs) == (1000, 2)
    assert (spec.configuration_doc, spec.config_schema) == ("# acme", {"type": "object"})


def test_what_is_not_declared_is_as_agents_usually_are() -> None:
    spec = read()
    assert (spec.needs_terminal, spec.asks_version, spec.executables, spec.skill_strategy) == (True, True, (), None)
    assert spec.capabilities.cancel_style == pb.CANCEL_STYLE_SIGNAL
    assert not spec.capabilities.HasField("context_window_hint")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"executable": ["a"]}, "executable is not known"),
        ({"config_schema": {}}, "config_schema is not known"),
        ({"executables": "a"}, "executables: Expected `array`, got `str`"),
        ({"inherit": ["A", 1]}, r"inherit: Expected `str`, got `int` - at `\$\[1\]`"),
        ({"aliases": "a"}, "aliases: Expected `array`, got `str`"),
        ({"needs_terminal": "no"}, "needs_terminal: Expected `bool`, got `str`"),
        ({"linger_s": True}, "linger_s: Expected `float`, got `bool`"),
        ({"login_hint": 1}, "login_hint: Expected `str`, got `int`"),
        ({"version": 1}, "version: Expected `str`, got `int`"),
        ({"skill_strategy": "nowhere"}, "skill_strategy must be one of private_directory, prompt"),
        ({"models": {"id": "m"}}, "models: Expected `array`, got `object`"),
        ({"models": [{"id": "m", "name": "M"}]}, r"models: Object contains unknown field `name` - at `\$\[0\]`"),
        ({"models": [{"label": "M"}]}, r"models: Object missing required field `id` - at `\$\[0\]`"),
        ({"models": [{"id": ""}]}, "models: Expected `str` of length >= 1"),
        ({"file_tools": {"edit": {"paths": "a"}}}, "file_tools: Object contains unknown field `paths`"),
        ({"capabilities": ["prompt"]}, "capabilities: Expected `object`, got `array`"),
        ({"capabilities": {"feature": []}}, "capabilities: Object contains unknown field `feature`"),
        ({"capabilities": {"features": ["fly"]}}, "'fly' is no feature"),
        ({"capabilities": {"resume_style": "soon"}}, "'soon' is no resume style"),
        (
            {"capabilities": {"context_window": "large"}},
            r"capabilities: Expected `int \| null`, got `str` - at `\$.context_window`",
        ),
        ({"capabilities": {"features": ["prompt"], "notes": {"cost": "n"}}}, "notes.cost is about no feature"),
        (
            {"capabilities": {"features": ["cost"], "notes": {"cost": 1}}},
            r"capabilities: Expected `str`, got `int` - at `\$.notes\[...\]`",
        ),
    ],
)
def test_mistakes_are_named(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read(**declared)


def test_a_name_and_a_version_are_required() -> None:
    with pytest.raises(SpecError, match="label and version must be given"):
        read_spec({"type": "acme"}, DOCUMENTS)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_adapter_of_this_house_declares_itself_beside_its_code(entry: EntryPoint) -> None:
    adapter: AgentAdapter = entry.load()()
    assert adapter.spec is agent_spec(entry.module), "it is read once"
    declared = tomllib.loads((files(entry.module) / "adapter.toml").read_text(encoding="utf-8"))
    assert declared["type"] == entry.name == adapter.describe().type
    defaults = AgentSpec(type="", label="", version="", configuration_doc="", config_schema={})
    usual = [key for key in declared if getattr(defaults, key) == getattr(adapter.spec, key)]
    assert usual == [], "what is as usual goes without saying"


def test_a_schema_in_the_code_may_refer_to_common_properties_too() -> None:
    def spec(name: str) -> AgentSpec:
        properties = {"model": {"$ref": f"dragoman:common#/$defs/{name}"}, "anything": True}
        schema = {"type": "object", "properties": properties}
        return AgentSpec(type="acme", label="Acme", version="1", configuration_doc="", config_schema=schema)

    schema = spec("model").config_schema
    assert schema["properties"] == {**common_properties("model"), "anything": True}
    assert [problem.path for problem in ConfigSchema(schema).validate({"model": 1})] == ["config.model"]
    with pytest.raises(SpecError, match=r"acme: config_schema: .*modle: there is no such common property; known are"):
        spec("modle")


def nested(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("kind", "schema", "message"),
    [
        ("Acme Agent", {}, r"type 'Acme Agent' is no name for an adapter; give it one of the form \[a-z\]"),
        ("acme", {"enum": {"a"}}, "acme: config_schema: not JSON: Object of type set is not JSON serializable"),
        ("acme", nested(100_000), "acme: config_schema: it is nested too deep"),
    ],
    ids=["type", "set", "nested"],
)
def test_an_author_learns_of_a_wrong_declaration_before_any_run(
    kind: str, schema: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        AgentSpec(type=kind, label="", version="1", configuration_doc="", config_schema=schema)


def test_a_tuple_in_a_schema_is_a_list() -> None:
    schema = {"properties": {"size": {"enum": ("s", "m")}}, "required": ("size",)}
    spec = AgentSpec(type="acme", label="", version="1", configuration_doc="", config_schema=schema)
    assert ConfigSchema(spec.config_schema).validate({"size": "s"}) == []


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("my-agent", {"enum": ("a",)}),
        ("acme", {"properties": {"name": {"pattern": r"^\p{L}+$"}}}),
        ("acme", {"$schema": 7}),
    ],
)
def test_the_sdk_does_not_judge_an_adapter_that_is_built_without_a_spec(kind: str, schema: dict[str, object]) -> None:
    info = AdapterInfo(type=kind, label="", version="1", configuration_doc="", config_schema=schema)
    assert (info.type, info.config_schema) == (kind, schema)


def test_a_declaration_imports_no_library_for_schemas() -> None:
    """It would take a third of a sidecar's start, and of each detection."""
    schema = {"properties": {"a": {"anyOf": [{"type": ["string", "null"]}, {"$ref": "#/$defs/b"}], "format": "uri"}}}
    program = (
        "import sys; from dragoman.sdk import AgentSpec;"
        f"AgentSpec(type='acme', label='', version='1', configuration_doc='', config_schema={schema});"
        "print('jsonschema' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "False\n"


def test_an_adapter_without_a_spec_says_what_to_write() -> None:
    class BareAdapter(CommandLineAdapter):
        def plan(self, job: Job) -> Plan:
            return Plan((job.executable,))

        def parser(self, job: Job) -> Parser:
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"BareAdapter has no spec\. Write `spec = agent_spec\(__package__\)`"):
        BareAdapter()
