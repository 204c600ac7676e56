"""The real Claude Code through its adapter: what all agents must stand, and what only it does."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from dragoman.adapters.claude_code import adapter
from dragoman.testkit.isolation import log_in
from dragoman.testkit.model_server.script import Delivery, Hold, Reply, Scenario, Step, Text, Tool, call
from dragoman.testkit.profiles.claude import CLAUDE
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import (
    PATIENCE_S,
    SECRET,
    TEST_S,
    Failing,
    Harness,
    Recipe,
    Visit,
    answering,
    broken_server,
    processes_until,
    when,
)
from tests.agents.issuer import intercepting
from tests.agents.several import FullSuite
from tests.agents.suite import ALLOWED, ASKED, resuming

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]

HOSTS = ("api.anthropic.com", "platform.claude.com")
SECRETS = ("sk-ant-oat01-of-the-issuer", "sk-ant-ort01-of-the-issuer", "code-of-the-issuer")
"""What no event and no log may hold."""
SCOPES = ["user:inference", "user:profile"]
PROFILE = {
    "account": {"uuid": "a", "email": "a@example.test", "has_claude_max": True},
    "organization": {"uuid": "o", "name": "Org", "organization_type": "claude_max"},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/oauth/token": {
        "access_token": SECRETS[0],
        "refresh_token": SECRETS[1],
        "expires_in": 28_800,
        "scope": " ".join(SCOPES),
    },
    "/api/oauth/profile": PROFILE,
    "/api/oauth/claude_cli/roles": {"organization_role": "admin", "organization_name": "Org"},
    "/api/oauth/usage": {
        "five_hour": {"utilization": 42, "resets_at": "2030-01-01T00:00:00+00:00"},
        "seven_day": {"utilization": 7.5, "resets_at": None},
        "seven_day_opus": None,
    },
}


def answer(path: str) -> tuple[str, dict[str, Any]]:
    """Answer as Anthropic's services do."""
    found = next((ANSWERS[known] for known in ANSWERS if path.endswith(known)), None)
    return ("404 Not Found", {}) if found is None else ("200 OK", found)


@asynccontextmanager
async def subscribed(harness: Harness) -> AsyncIterator[list[pb.RateLimit]]:
    """Log in to a plan of which a part is used; yield what is to be reported of it."""
    stored = {"accessToken": SECRETS[0], "refreshToken": SECRETS[1], "expiresAt": 4_000_000_000_000}
    login = {"claudeAiOauth": {**stored, "scopes": SCOPES, "subscriptionType": "max"}}
    (harness.isolation.config / ".credentials.json").write_text(json.dumps(login))
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"):
        del harness.env[name]
    hours, week = (
        pb.RateLimit(window="five_hour", used_percent=42),
        pb.RateLimit(window="seven_day", used_percent=7.5),
    )
    hours.resets_at.seconds = 1_893_456_000
    async with intercepting(harness.root, HOSTS, answer) as leading_here:
        harness.env.update(leading_here)
        yield [hours, week]


@asynccontextmanager
async def issuer_of(harness: Harness) -> AsyncIterator[tuple[dict[str, str], Visit]]:
    """Be the issuer; yield the environment that leads there, and a browser that is led back to Claude Code."""
    async with intercepting(harness.root, HOSTS, answer) as leading_here:
        yield {**harness.env, **leading_here}, browse


def logging_in(harness: Harness, env: dict[str, str]) -> "aclosing[AsyncGenerator[api.LoginResponse, None]]":
    return aclosing(harness.client.login(harness.adapter, env=env))


async def browse(url: str) -> None:
    """Return from a page of a login with its code."""
    asked = parse_qs(urlsplit(url).query)
    back = urlsplit(asked["redirect_uri"][0])
    reader, writer = await asyncio.open_connection(back.hostname, back.port)
    path = f"{back.path}?{urlencode({'code': SECRETS[2], 'state': asked['state'][0]})}"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {back.netloc}\r\nConnection: close\r\n\r\n".encode())
    await reader.read()
    writer.close()


CLAUDE_CODE = Recipe(
    make=adapter,
    family=CLAUDE,
    executable="claude",
    unknown_session="00000000-0000-4000-8000-000000000000",
    max_turns={"maxTurnsPerRun": 2},
    skill_tool=True,
    other_model="claude-haiku-4-5",
    other_mode="acceptEdits",
    own_files=[".cache/claude-cli-nodejs"],  # logs of MCP servers
    grace_s=30,  # that it is interrupted in its own way has a share of it before signals follow
    mcp_tool="mcp__words__count",
    account=subscribed,
    issuer=issuer_of,
    unset=adapter().spec.inherit,
    failures={
        "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "claude_api_error", 400),
        "CUT_END": Failing(pb.FAILURE_KIND_NETWORK, "claude_stream_broken", retries=True),
        "MAX_TOKENS": Failing(pb.FAILURE_KIND_OUTPUT_LIMIT, "claude_max_output_tokens"),
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "claude_auth_required", 401, retries=True),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "claude_rate_limited", 429, retries=True),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "claude_overloaded", 529, retries=True),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "claude_server_error", 500, retries=True),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "claude_connection_failed", retries=True),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "claude_prompt_too_long", 400),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "claude_billing_error", 400),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "claude_model_not_found", 404),
        "REFUSAL": Failing(pb.FAILURE_KIND_MODEL_REFUSED, "claude_refusal"),
    },
)


class TestClaudeCode(FullSuite):
    """Everything that all agents must stand."""

    recipe = CLAUDE_CODE
    nested_prompt = "message"
    interrupted = (1, "error_during_execution")
    scenarios = (
        Scenario(
            "WAITS",
            "starts a command in the background that ends on request, and answers when the gate is released",
            (
                call(Tool("background", {"command": "until test -e over; do sleep 0.1; done"})),
                Step((Reply((Text("It runs."),), delivery=Delivery(hold=Hold())),)),
            ),
        ),
    )

    async def test_a_login_is_stored_and_not_reported(self, harness: Harness) -> None:
        stored = harness.isolation.config / ".credentials.json"
        async with (
            issuer_of(harness) as (env, visit),
            aclosing(harness.client.login("claude_code", env=env)) as steps,
        ):
            begun = await anext(steps)
            assert not stored.exists()
            await visit(begun.prompt.url)
            shown = str([begun, *[step async for step in steps]])
        assert SECRETS[0] in stored.read_text()
        assert stored.stat().st_mode & 0o077 == 0
        assert not any(secret in shown for secret in SECRETS)

    async def test_a_login_that_is_refused(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(ANSWERS, "/v1/oauth/token")
        async with (
            issuer_of(harness) as (env, visit),
            aclosing(harness.client.login("claude_code", env=env)) as steps,
        ):
            await visit((await anext(steps)).prompt.url)
            (ended,) = [step async for step in steps]
        assert ended.outcome.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
        assert "404" in ended.outcome.failure.message
        assert not (harness.isolation.config / ".credentials.json").exists()

    async def test_a_key_has_no_rate_limits_to_report(self, harness: Harness) -> None:
        response = await harness.client.get_quota("claude_code", env=harness.env)
        assert response.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED

    async def test_its_own_choice_of_a_model_can_be_asked_for(self, harness: Harness) -> None:
        await harness.run("MOCK_TEXT")
        first = harness.conversation().model
        await harness.run("MOCK_TEXT", model="default")
        assert [harness.conversation(number).model for number in range(len(harness.model_requests))].count(first) > 1

    async def test_the_model_is_asked_for(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", model="claude-haiku-4-5", config={"effort": "low"})
        assert harness.conversation().model.startswith("claude-haiku-4-5")
        assert seen.result.model.startswith("claude-haiku-4-5")

    async def test_an_unknown_model_has_no_price(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", model="made-up-model-1")
        assert seen.result.usage.tokens.input == 400
        assert not seen.result.usage.HasField("cost")

    async def test_a_slash_is_text(self, harness: Harness) -> None:
        seen = await harness.run("/compact MOCK_TEXT")
        assert seen.text == "Hello from the scripted model."
        assert harness.conversation().prompt.strip() == "/compact MOCK_TEXT"

    async def test_a_slash_is_a_command_where_it_may_be(self, harness: Harness) -> None:
        seen = await harness.run("/compact", config={"allowSlashCommands": True})
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert harness.model_requests == []

    async def test_always_holds_for_the_session_and_writes_no_settings(self, harness: Harness) -> None:
        seen = await harness.run(
            'MOCK_PARALLEL first="touch a.txt" second="touch a.txt"',
            permissions=ASKED,
            react=answering("allow_always"),
            leaves=["a.txt"],
        )
        assert len(seen.of("input_request")) == 1
        assert len(seen.of("tool_result")) == 2
        again = await harness.run(
            'MOCK_SHELL command="touch a.txt"',
            session=resuming(seen.result.session.handle),
            permissions=ASKED,
            react=answering("reject_once"),
            leaves=["a.txt"],
        )
        assert again.result.outcome == pb.OUTCOME_SUCCEEDED

    async def test_a_permission_is_granted_for_something_else(self, harness: Harness) -> None:
        path = str(harness.workspace / "notes.txt")
        edited = f'{{"file_path": "{path}", "content": "edited\\n"}}'
        react = answering("allow_once", updated_input_json=edited)
        await harness.run("MOCK_WRITE path=notes.txt", permissions=ASKED, react=react, leaves=["notes.txt"])
        assert (harness.workspace / "notes.txt").read_text() == "edited\n"

    async def test_a_question_is_answered(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_ASK", permissions=ASKED, react=answering("option_2"))
        (asked,) = seen.of("input_request")
        assert asked.kind == pb.INPUT_KIND_CHOICE
        assert '"Which colour?"="Blue"' in seen.text
        assert not seen.result.HasField("question")

    async def test_an_unattended_question_is_declined_and_reported_at_the_end(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_ASK", permissions=ALLOWED)
        assert "question_declined" in seen.notices
        assert "No one is there to answer." in seen.text
        assert seen.result.question.prompt == "Which colour?"

    async def test_no_task_goes_on_in_the_background(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_BACKGROUND seconds=300", permissions=ALLOWED)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED

    @pytest.mark.parametrize("ends_first", [False, True], ids=["after the answer", "before the answer"])
    async def test_background_tasks_are_waited_for_where_the_settings_say_so(
        self, harness: Harness, ends_first: bool
    ) -> None:
        async def react(event: pb.AgentEvent, stream: Any) -> None:
            del stream
            if event.HasField("tool_result"):
                await harness.model_waits()
                if ends_first:
                    (harness.workspace / "over").touch()
                    await processes_until(harness, lambda all_: not any("test -e over" in line for line in all_))
                harness.model.release()
            elif event.usage.scope == pb.USAGE_SCOPE_SESSION:  # reported for each turn
                (harness.workspace / "over").touch()

        env = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": ""}
        seen = await harness.run("MOCK_WAITS", permissions=ALLOWED, env=env, react=react, leaves=["over"])
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        # The turn that the end of the task began belongs to the run, and so does what it used.
        assert seen.result.counters.turns == 3
        assert seen.result.usage.tokens.input == 3 * 400

    async def test_the_agents_own_mode(self, harness: Harness) -> None:
        permissions = pb.Permissions(native_mode="acceptEdits")
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=permissions, leaves=["notes.txt"])
        assert seen.of("session")[0].mode == "acceptEdits"
        seen = await harness.run(
            "MOCK_WRITE path=x.txt", permissions=pb.Permissions(native_mode="dontAsk"), leaves=["notes.txt"]
        )
        assert seen.of("tool_result")[0].status == pb.TOOL_STATUS_DENIED
        assert "permission_denied" in seen.notices

    async def test_rules_of_its_own(self, harness: Harness) -> None:
        config = {"allowedTools": ["Bash(touch *)", "Edit(./*.txt)"], "disallowedTools": ["Bash(touch b*)"]}
        seen = await harness.run(
            'MOCK_PARALLEL first="touch a.txt" second="touch b.txt"', config=config, leaves=["a.txt"]
        )
        statuses = sorted(result.status for result in seen.of("tool_result"))
        assert statuses == [pb.TOOL_STATUS_COMPLETED, pb.TOOL_STATUS_DENIED]

    async def test_a_tool_servers_secrets_reach_no_event(self, harness: Harness) -> None:
        seen = await harness.run(f"MOCK_SECRET_TEXT secret={SECRET}", mcp_servers=[broken_server(DB_TOKEN=SECRET)])
        assert seen.text == "The value is [redacted], remember it."

    async def test_a_used_up_subscription_says_until_when(self, harness: Harness) -> None:
        log_in(harness.isolation)
        seen = await harness.run("MOCK_QUOTA", env={"ANTHROPIC_API_KEY": ""})
        failure = seen.result.failure
        assert (failure.kind, failure.code) == (pb.FAILURE_KIND_QUOTA_EXCEEDED, "claude_usage_limit_reached")
        assert failure.retry_not_before.ToDatetime(UTC) == datetime(2100, 1, 1, tzinfo=UTC)
        assert [limit.status for usage in seen.of("usage") for limit in usage.rate_limits] == ["rejected"]

    async def test_a_subscription_pays(self, harness: Harness) -> None:
        log_in(harness.isolation)
        seen = await harness.run("MOCK_TEXT", env={"ANTHROPIC_API_KEY": ""})
        assert seen.result.usage.cost.billing_type == pb.BILLING_TYPE_SUBSCRIPTION

    @pytest.mark.parametrize("is_logged_in", [True, False])
    async def test_a_key_of_the_adapters_own_pays_only_where_no_subscription_does(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch, is_logged_in: bool
    ) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", harness.env.pop("ANTHROPIC_API_KEY"))
        if is_logged_in:
            log_in(harness.isolation)
        seen = await harness.run("MOCK_TEXT")
        subscription = pb.BILLING_TYPE_SUBSCRIPTION
        assert (seen.result.usage.cost.billing_type == subscription) == is_logged_in
        notes = " ".join(seen.of("started")[0].notes)
        assert ("ANTHROPIC_API_KEY of the adapter's own environment is not passed on" in notes) == is_logged_in

    async def test_no_login(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", env={"ANTHROPIC_API_KEY": ""})
        assert seen.result.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
        assert "claude auth login" in seen.result.failure.message
        (found,) = await harness.client.detect(harness.adapter, env={**harness.env, "ANTHROPIC_API_KEY": ""})
        assert found.auth == api.AUTH_STATE_MISSING

    @pytest.mark.parametrize("expires_at_ms", [1000, 4_102_444_800_000], ids=["expired", "good"])
    async def test_a_login_is_seen_with_its_end(self, harness: Harness, expires_at_ms: int) -> None:
        await harness.run("MOCK_TEXT")  # leaves the settings file that makes it ask Claude Code itself
        path = log_in(harness.isolation, expires_at_ms=expires_at_ms)
        login: dict[str, Any] = json.loads(path.read_text())
        login["claudeAiOauth"]["refreshTokenExpiresAt"] = expires_at_ms
        path.write_text(json.dumps(login))
        (found,) = await harness.client.detect(harness.adapter, env={**harness.env, "ANTHROPIC_API_KEY": ""})
        assert found.auth == (api.AUTH_STATE_EXPIRED if expires_at_ms == 1000 else api.AUTH_STATE_OK)
        assert found.auth_method == "claude.ai"

    async def test_an_argument_that_it_does_not_know(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", config={"extraArgs": ["--no-such-option"]})
        assert seen.result.failure.kind == pb.FAILURE_KIND_INVALID_CONFIG
        assert seen.result.failure.code == "claude_bad_option"
        assert "--no-such-option" in seen.result.failure.message

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
    async def test_the_bypass_as_root(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", config={"dangerouslySkipPermissions": True})
        assert seen.result.failure.code == "claude_bypass_as_root"
        assert "permissions_skipped" in seen.notices

    async def test_a_tool_that_is_cancelled(self, harness: Harness) -> None:
        async def act(stream: Any) -> None:
            await processes_until(harness, lambda all_: any("sleep 300" in line for line in all_))
            await stream.cancel(grace_s=PATIENCE_S)

        react = when(lambda event: event.tool_call.status == pb.TOOL_STATUS_RUNNING, act)
        seen = await harness.run("MOCK_SLEEP", permissions=ALLOWED, react=react)
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_CANCELLED]

    async def test_a_command_that_fails(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_SHELL_FAIL", permissions=ALLOWED)
        (failed,) = seen.of("tool_result")
        assert (failed.status, failed.exit_code) == (pb.TOOL_STATUS_FAILED, 3)

    async def test_frames_are_passed_on_if_asked_for(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", include_native=True)
        natives = [event.native for event in seen.events if event.HasField("native")]
        assert {native.protocol for native in natives} == {"claude-stream-json"}
        assert {"system/init", "stream_event", "result/success"} <= {native.type for native in natives}
        assert any('"stream_event"' in native.text for native in natives)

    async def test_it_does_not_know_that_it_runs_inside_itself(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CLAUDE_CODE_SESSION_ID", "outer")
        monkeypatch.setenv("CLAUDE_CODE_MESSAGING_TOKEN", "outer-token")
        command = "echo [${CLAUDE_CODE_MESSAGING_TOKEN}] ${CLAUDE_CODE_SESSION_ID}"
        seen = await harness.run(f'MOCK_SHELL command="{command}"', permissions=ALLOWED)
        assert "outer" not in seen.of("tool_result")[0].content
