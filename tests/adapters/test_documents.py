"""What every adapter of this house says of itself: found as anybody else's would be, its schema, its document."""

import importlib.util
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import jsonschema
import pytest
from dragoman.sdk import AgentAdapter

ENTRIES = sorted(entry_points(group="dragoman.adapters"), key=lambda entry: entry.name)
MADE = [entry for entry in ENTRIES if importlib.util.find_spec(f"{entry.module}.schema") is not None]
CHOOSES = {"model", "provider", "url", "headers", "authType", "authMethod", "command"}
"""Settings that decide which account is used, wherever they are."""
OF_ONE_RUN = {"args", "extraArgs", "body", "cwd", "promptTemplate", "env"}
"""Settings that callers give each run anew."""
pytestmark = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def made_by(entry: EntryPoint) -> AgentAdapter:
    adapter: AgentAdapter = entry.load()()
    return adapter


def properties(entry: EntryPoint) -> dict[str, Any]:
    found: dict[str, Any] = made_by(entry).describe().config_schema["properties"]
    return found


def item_about(document: str, key: str) -> str:
    """Return the item of a list that is about a key, continued lines too; else the first that names it."""
    items = [part.partition("\n\n")[0] for part in document.split("\n- ")[1:] if f"`{key}`" in part]
    return next((item for item in items if f"`{key}`" in item.partition(":")[0]), items[0] if items else "")


def test_it_is_found_as_anybody_elses_would_be(entry: EntryPoint) -> None:
    assert made_by(entry).describe().type == entry.name


def test_the_shipped_schema_is_the_one_that_is_made(entry: EntryPoint) -> None:
    schema = made_by(entry).describe().config_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    if entry in MADE:
        assert schema == importlib.import_module(f"{entry.module}.schema").make_schema()


def test_every_field_is_described_and_documented(entry: EntryPoint) -> None:
    document = made_by(entry).describe().configuration_doc
    for key, schema in properties(entry).items():
        assert schema["description"], key
        assert f"`{key}`" in document, key


def test_what_is_dangerous_is_called_so(entry: EntryPoint) -> None:
    document = made_by(entry).describe().configuration_doc
    dangerous = [key for key, schema in properties(entry).items() if schema.get("x-dangerous")]
    assert [key for key in dangerous if "**dangerous**" not in item_about(document, key).lower()] == []


def test_who_sets_the_command_is_warned(entry: EntryPoint) -> None:
    assert properties(entry).get("command", {"x-dangerous": True})["x-dangerous"]


def test_what_chooses_a_login_is_marked(entry: EntryPoint) -> None:
    marked = {key for key, schema in properties(entry).items() if schema.get("x-login")}
    assert properties(entry).keys() & CHOOSES <= marked
    assert not marked & OF_ONE_RUN, "no two runs would have one login"


def test_what_its_agent_inherits_is_said_to_choose_a_login(entry: EntryPoint) -> None:
    adapter = made_by(entry)
    assert set(adapter.inherit) <= set(adapter.describe().login_variables)
    assert bool(adapter.inherit) is bool(adapter.describe().login_variables)


def test_the_document_says_when_to_use_it_and_when_not(entry: EntryPoint) -> None:
    document = made_by(entry).describe().configuration_doc
    assert document.startswith("# ")
    assert 0 < document.find("\nUse when:") < document.find("\nDon't use when:")
