"""What every built-in adapter says of itself: its entry point, its schema, its document."""

import json
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import jsonschema
import pytest
from dragoman.sdk import AgentAdapter

ENTRIES = sorted(entry_points(group="dragoman.adapters"), key=lambda entry: entry.name)
pytestmark = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def adapter_of(entry: EntryPoint) -> AgentAdapter:
    adapter: AgentAdapter = entry.load()()
    return adapter


def properties(entry: EntryPoint) -> dict[str, Any]:
    found: dict[str, Any] = adapter_of(entry).describe().config_schema["properties"]
    return found


def item_about(document: str, key: str) -> str:
    """Return the item of a list that is about a key, continued lines too; else the first that names it."""
    items = [part.partition("\n\n")[0] for part in document.split("\n- ")[1:] if f"`{key}`" in part]
    return next((item for item in items if f"`{key}`" in item.partition(":")[0]), items[0] if items else "")


def test_it_is_found_by_its_entry_point(entry: EntryPoint) -> None:
    assert adapter_of(entry).describe().type == entry.name


def test_the_shipped_schema_is_one_and_stands_alone(entry: EntryPoint) -> None:
    schema = adapter_of(entry).describe().config_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "$ref" not in json.dumps(schema)
    assert schema["additionalProperties"] is False


def test_every_field_is_described_and_documented(entry: EntryPoint) -> None:
    document = adapter_of(entry).describe().configuration_doc
    for key, schema in properties(entry).items():
        assert schema["description"], key
        assert schema.get("deprecated") or f"`{key}`" in document, key


def test_what_is_dangerous_is_called_so(entry: EntryPoint) -> None:
    document = adapter_of(entry).describe().configuration_doc
    dangerous = [key for key, schema in properties(entry).items() if schema.get("x-dangerous")]
    assert [key for key in dangerous if "**dangerous**" not in item_about(document, key).lower()] == []


def test_who_sets_the_command_is_warned(entry: EntryPoint) -> None:
    assert properties(entry).get("command", {"x-dangerous": True})["x-dangerous"]


def test_the_document_says_when_to_use_it_and_when_not(entry: EntryPoint) -> None:
    document = adapter_of(entry).describe().configuration_doc
    assert document.startswith("# ")
    assert 0 < document.find("\nUse when:") < document.find("\nDon't use when:")
