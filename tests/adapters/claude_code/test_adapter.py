"""What the adapter says of itself: schema, document, capabilities, checks, and how it is found."""

from importlib.resources import files
from typing import Any

import pytest
from dragoman.adapters.claude_code import adapter
from dragoman.adapters.claude_code.checks import set_up_checks
from dragoman.sdk._request.environment import inherited_variables
from dragoman.sdk.detection import Checks
from dragoman.v1 import event_pb2 as pb

FOLDER = files("dragoman.adapters.claude_code")
DOCUMENT = (FOLDER / "configuration.md").read_text(encoding="utf-8")
SCHEMA = adapter().describe().config_schema
INHERITED, NESTING = adapter().spec.inherit, adapter().spec.strip

SEEDS_CONFIG: dict[str, Any] = {
    "cwd": "/srv/project",
    "instructionsFilePath": "/srv/AGENTS.md",
    "model": "opus",
    "effort": "high",
    "chrome": False,
    "promptTemplate": "You are agent {{agent.id}}.",
    "bootstrapPromptTemplate": "Welcome.",
    "maxTurnsPerRun": 20,
    "dangerouslySkipPermissions": False,
    "command": "claude",
    "extraArgs": ["--verbose"],
    "env": {"A": "b"},
    "timeoutSec": 0,
    "graceSec": 20,
}


def test_paperclips_config_fits_unchanged() -> None:
    assert list(adapter().schema.validate(SEEDS_CONFIG)) == []


def test_the_dangerous_keys_are_these() -> None:
    dangerous = {key for key, value in SCHEMA["properties"].items() if value.get("x-dangerous")}
    assert dangerous == {"allowedTools", "dangerouslySkipPermissions", "command", "extraArgs", "args"}


def test_what_it_inherits_is_documented_and_passes_by_name() -> None:
    ours = dict.fromkeys([*INHERITED, *NESTING], "value-of-it")
    passed = inherited_variables(ours, strip=NESTING, allow=INHERITED)
    assert set(passed) == set(INHERITED)
    assert not set(INHERITED) & set(NESTING)
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDECODE"):
        assert f"`{name}`" in DOCUMENT


def test_capabilities() -> None:
    declared = adapter().describe().capabilities
    assert declared.resume_style == pb.RESUME_STYLE_SPECIFY
    assert declared.cancel_style == pb.CANCEL_STYLE_NATIVE
    assert declared.permission_mode == pb.PERMISSION_MODE_STRICT
    missing = set(pb.Feature.values()) - {item.feature for item in declared.items} - {pb.FEATURE_UNSPECIFIED}
    assert missing == {pb.FEATURE_TOOL_OUTPUT_DELTAS}


@pytest.mark.parametrize(
    ("text", "is_id"),
    [
        ("22222222-2222-4222-8222-222222222222", True),
        ("ABCDEF01-2222-4222-8222-222222222222", True),
        ("22222222-2222-4222-8222-22222222222", False),
        ("22222222-2222-4222-8222-222222222222\n", False),
        ("{22222222-2222-4222-8222-222222222222}", False),
        ("notes about the release", False),
        ("", False),
    ],
)
def test_a_session_id_is_a_uuid(text: str, is_id: bool) -> None:
    assert adapter().is_session_id(text) is is_id


@pytest.mark.parametrize(
    ("config", "env", "is_root", "expected"),
    [
        ({}, {}, False, {}),
        ({"dangerouslySkipPermissions": True}, {}, False, {"permissions_skipped": pb.SEVERITY_WARNING}),
        ({"dangerouslySkipPermissions": True}, {}, True, {"skip_permissions_as_root": pb.SEVERITY_ERROR}),
        (
            {"dangerouslySkipPermissions": True},
            {"IS_SANDBOX": "1"},
            True,
            {"permissions_skipped": pb.SEVERITY_WARNING},
        ),
        ({}, {"CLAUDE_CODE_USE_VERTEX": "1"}, False, {"cloud_provider": pb.SEVERITY_INFO}),
        ({}, {"ANTHROPIC_BASE_URL": "https://user:pass@gateway.example"}, False, {"base_url_set": pb.SEVERITY_INFO}),
    ],
)
def test_checks_of_a_set_up(config: Any, env: dict[str, str], is_root: bool, expected: dict[str, int]) -> None:
    checks = Checks()
    set_up_checks(config, env, checks, is_root=is_root)
    assert {check.code: check.level for check in checks.items} == expected
    assert all(check.message for check in checks.items)
    assert not any("pass@" in check.detail for check in checks.items)
