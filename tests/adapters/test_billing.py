"""Who pays how, as each adapter concludes from the login that a run uses: also where nothing has a price."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from dragoman.sdk import AgentAdapter, Report
from dragoman.sdk._output.billing import write_billing
from dragoman.sdk.detection import Billing
from dragoman.v1 import event_pb2 as pb

API, CLOUD, PLAN = pb.BILLING_TYPE_API, pb.BILLING_TYPE_METERED_API, pb.BILLING_TYPE_SUBSCRIPTION
UNKNOWN = Billing()

CASES: list[tuple[str, Mapping[str, str], Mapping[str, Any], str, Billing]] = [
    ("acp", {"SOME_API_KEY": "k"}, {}, "", UNKNOWN),
    ("claude_code", {"ANTHROPIC_API_KEY": "k"}, {}, "", Billing(API, "anthropic")),
    ("claude_code", {"CLAUDE_CODE_USE_BEDROCK": "1"}, {}, "", Billing(CLOUD, "bedrock")),
    ("claude_code", {"CLAUDE_CODE_OAUTH_TOKEN": "t"}, {}, "", Billing(PLAN, "anthropic")),
    (
        "claude_code",
        {},
        {".claude/.credentials.json": {"claudeAiOauth": {"accessToken": "t"}}},
        "",
        Billing(PLAN, "anthropic"),
    ),
    ("claude_code", {}, {}, "", UNKNOWN),
    ("codex", {"OPENAI_API_KEY": "k"}, {}, "", Billing(API, "openai")),
    ("codex", {}, {".codex/auth.json": {"OPENAI_API_KEY": "k"}}, "", Billing(API, "openai")),
    (
        "codex",
        {"OPENAI_API_KEY": "k"},
        {".codex/auth.json": {"OPENAI_API_KEY": None, "tokens": {"access_token": "t"}}},
        "",
        Billing(PLAN, "openai"),
    ),
    ("codex", {}, {}, "", UNKNOWN),
    ("copilot", {"GH_TOKEN": "t"}, {}, "", Billing(PLAN, "github")),
    (
        "copilot",
        {"COPILOT_PROVIDER_BASE_URL": "http://x", "COPILOT_PROVIDER_API_KEY": "k"},
        {},
        "openai",
        Billing(API, "openai"),
    ),
    ("cursor", {}, {}, "", Billing(PLAN, "cursor")),
    ("cursor", {"CURSOR_API_KEY": "k"}, {}, "", Billing(biller="cursor")),
    ("gemini_cli", {"GEMINI_API_KEY": "k"}, {}, "google", Billing(API, "google")),
    (
        "gemini_cli",
        {},
        {".gemini/settings.json": {"security": {"auth": {"selectedType": "oauth-personal"}}}},
        "google",
        Billing(PLAN, "google"),
    ),
    (
        "gemini_cli",
        {},
        {".gemini/settings.json": {"security": {"auth": {"selectedType": "vertex-ai"}}}},
        "google",
        Billing(CLOUD, "vertex"),
    ),
    ("http", {}, {}, "", UNKNOWN),
    ("openclaw", {"ANTHROPIC_API_KEY": "k"}, {}, "anthropic", Billing(API, "anthropic")),
    ("opencode", {"ANTHROPIC_API_KEY": "k"}, {}, "anthropic", Billing(API, "anthropic")),
    ("opencode", {"ANTHROPIC_API_KEY": "k"}, {}, "openai", Billing(biller="openai")),
    (
        "opencode",
        {},
        {".local/share/opencode/auth.json": {"github-copilot": {"type": "oauth"}}},
        "github-copilot",
        Billing(PLAN, "github-copilot"),
    ),
    ("pi", {"OPENAI_API_KEY": "k"}, {}, "openai", Billing(API, "openai")),
    ("pi", {"ANTHROPIC_OAUTH_TOKEN": "t"}, {}, "anthropic", Billing(PLAN, "anthropic")),
    ("pi", {}, {".pi/agent/auth.json": {"openai": {"type": "oauth"}}}, "openai", Billing(PLAN, "openai")),
    ("process", {"OPENAI_API_KEY": "k"}, {}, "", UNKNOWN),
    ("qwen", {"OPENAI_API_KEY": "k"}, {}, "", Billing(API)),
    (
        "qwen",
        {},
        {
            ".qwen/settings.json": {"security": {"auth": {"selectedType": "qwen-oauth"}}},
            ".qwen/oauth_creds.json": {"access_token": "t"},
        },
        "",
        Billing(PLAN, "qwen"),
    ),
]


@pytest.mark.parametrize(("name", "env", "files", "provider", "expected"), CASES)
def test_the_login_says_who_pays_how(
    tmp_path: Path,
    name: str,
    env: Mapping[str, str],
    files: Mapping[str, Any],
    provider: str,
    expected: Billing,
) -> None:
    for place, content in files.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(json.dumps(content), encoding="utf-8")
    adapter = import_module(f"dragoman.adapters.{name}").adapter()
    assert isinstance(adapter, AgentAdapter)
    found = adapter.billing({"HOME": str(tmp_path), **env}, Report(provider=provider))
    assert found == expected


def test_it_is_reported_with_a_price_and_without_one() -> None:
    without = pb.Result()
    write_billing(without, Billing(PLAN, "github"))
    assert (without.billing_type, without.biller) == (PLAN, "github")
    assert not without.HasField("usage"), "not counted is not zero"
    priced = pb.AttemptEnded()
    priced.usage.cost.amount = "0.1"
    priced.usage.models.add(model="m")
    priced.usage.models.add(model="n").cost.CopyFrom(pb.Cost(amount="0.1", biller="bedrock", billing_type=CLOUD))
    write_billing(priced, Billing(API, "anthropic"))
    assert (priced.usage.cost.billing_type, priced.usage.cost.biller) == (API, "anthropic")
    assert not priced.usage.models[0].HasField("cost")
    assert (priced.usage.models[1].cost.billing_type, priced.usage.models[1].cost.biller) == (CLOUD, "bedrock")
