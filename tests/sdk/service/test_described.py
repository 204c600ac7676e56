"""The schema of every adapter, as programs that build forms of it read it."""

from importlib.metadata import entry_points

import jsonschema
import pytest
from dragoman.sdk import AdapterInfo, AgentAdapter
from dragoman.sdk._serving.described import described_schema, title_of
from dragoman.v1 import event_pb2 as pb

ADAPTERS = sorted(entry_points(group="dragoman.adapters"), key=lambda entry: entry.name)


@pytest.mark.parametrize("entry", ADAPTERS, ids=lambda entry: entry.name)
def test_forms_can_be_built_of_it(entry: object) -> None:
    adapter: AgentAdapter = entry.load()()  # type: ignore[attr-defined]  # an entry point
    info: AdapterInfo = adapter.describe()
    schema = described_schema(info)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == info.label
    for name, about in schema["properties"].items():
        assert about["title"], name
        assert about["description"], name
        assert about["x-group"] in {"run", "model", "program", "limits", "permissions", "agent"}, name
        assert ("headers" in name or name == "env") == about.get("x-secret", False), name
    orders = [about["x-order"] for about in schema["properties"].values()]
    assert orders == list(range(1, len(orders) + 1))
    assert schema["properties"]["timeoutSec"]["x-group"] == "limits"
    if info.has(pb.FEATURE_WORKSPACE):
        assert schema["properties"]["cwd"]["x-required-unless"] == "workspace.cwd"
        assert "cwd" not in schema.get("required", [])
    if info.models and "enum" not in schema["properties"]["model"]:
        assert schema["properties"]["model"]["examples"] == [model.id for model in info.models]
        defaults = [model for model in info.models if model.is_default]
        assert len(defaults) == (info.type != "gemini_cli"), "Gemini CLI's own choice depends on its version"
    assert "title" not in info.config_schema, "what is shipped is left alone"


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("promptTemplate", "Prompt template"),
        ("cwd", "Cwd"),
        ("apiKey", "API key"),
        ("dangerouslyBypassApprovalsAndSandbox", "Dangerously bypass approvals and sandbox"),
        ("healthUrl", "Health URL"),
        ("_", "_"),
    ],
)
def test_a_name_in_words(name: str, title: str) -> None:
    assert title_of(name) == title
