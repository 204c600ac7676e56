"""What the adapter says of itself: schema, document, capabilities, and how it is found."""

import json
from importlib.resources import files

import jsonschema
import pytest
from dragoman.adapters.acp import adapter
from dragoman.adapters.acp.schema import make_schema
from dragoman.sdk import JsonValue
from dragoman.sdk.acp import CANCEL
from dragoman.v1 import event_pb2 as pb

FOLDER = files("dragoman.adapters.acp")
DOCUMENT = (FOLDER / "configuration.md").read_text(encoding="utf-8")
SCHEMA = make_schema()


def test_the_shipped_schema_is_the_generated_one() -> None:
    assert json.loads((FOLDER / "config.schema.json").read_text(encoding="utf-8")) == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("key", SCHEMA["properties"])
def test_every_key_is_documented(key: str) -> None:
    assert f"`{key}`" in DOCUMENT
    assert SCHEMA["properties"][key]["description"]


@pytest.mark.parametrize("key", [key for key, value in SCHEMA["properties"].items() if value.get("x-dangerous")])
def test_what_is_dangerous_is_called_so(key: str) -> None:
    (line,) = [
        line for line in DOCUMENT.splitlines() if line.startswith("- ") and f"`{key}`" in line.split(":")[0] + line
    ]
    assert "**Dangerous**" in line


def test_the_document_says_when_to_use_it_and_when_not() -> None:
    assert DOCUMENT.index("Use when:") < DOCUMENT.index("Don't use when:") < DOCUMENT.index("Fields:")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"command": ""},
        {"command": "x", "fileAccess": "all"},
        {"command": "x", "dangerouslySkipPermissions": True},
    ],
)
def test_what_it_cannot_honour_is_refused(config: dict[str, JsonValue]) -> None:
    assert list(adapter().schema.validate(config))


def test_it_declares_what_depends_on_the_agent_as_such() -> None:
    able = adapter().describe().capabilities
    notes = {item.feature: item.note for item in able.items}
    for feature in (pb.FEATURE_RESUME, pb.FEATURE_FORK, pb.FEATURE_MODEL_CHOICE, pb.FEATURE_THINKING):
        assert "if the agent" in notes[feature]
    assert not {pb.FEATURE_RESUME_REJECTION, pb.FEATURE_NATIVE_SKILLS, pb.FEATURE_MAX_TURNS} & set(notes)
    assert able.permission_mode == pb.PERMISSION_MODE_NONE
    assert able.cancel_style == pb.CANCEL_STYLE_NATIVE
    assert CANCEL[0].interrupts
