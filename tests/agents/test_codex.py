"""The real Codex through its adapter: what all agents must stand, and what only it does."""

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.codex import adapter
from dragoman.testkit.model_server.script import Scenario, Tool, call, say
from dragoman.testkit.profiles.codex import CODE_MODE_MODEL, CODEX
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import (
    BIN,
    PATIENCE_S,
    SECRET,
    TEST_S,
    Failing,
    Harness,
    Recipe,
    Visit,
    answering,
    broken_server,
    words_server,
)
from tests.agents.issuer import SECRETS, Issuer, issuing
from tests.agents.suite import ALLOWED, ASKED, AgentSuite, proves, resuming

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]

REFUSED = ["-c", "model_providers.scripted.base_url=http://127.0.0.1:9/v1"]
QUESTION = {
    "id": "colour",
    "header": "Colour",
    "question": "Which colour?",
    "options": [{"label": "Red", "description": "like a fire"}, {"label": "Blue", "description": "like a lake"}],
}
ESCALATED = {"sandbox_permissions": "require_escalated", "justification": "May I?"}
DONE = say("Done: {tool_result:-1|nothing}")
SLOWER_S = 2
"""Seconds that a tool server takes to start: by itself, Codex waits for it for one."""

UNDERSTOOD = (
    *("initialize", "initialized", "thread/start", "thread/resume", "thread/fork", "thread/inject_items"),
    *("turn/start", "turn/settings/update", "targetUnavailable", "turn/interrupt", "turn/completed", "error"),
    *("skills/extraRoots/set", "skills/list"),
    *("item/started", "item/completed", "item/agentMessage/delta", "item/reasoning/summaryTextDelta"),
    *("item/commandExecution/outputDelta", "thread/tokenUsage/updated", "account/rateLimits/updated"),
    *("item/commandExecution/requestApproval", "item/fileChange/requestApproval", "serverRequest/resolved"),
    *("item/permissions/requestApproval", "item/tool/requestUserInput", "mcpServer/elicitation/request"),
    *("commandExecution", "fileChange", "mcpToolCall", "webSearch", "subAgentActivity", "codexErrorInfo"),
    *("declined", "acceptForSession", "sandboxPolicy", "dangerFullAccess", "workspaceWrite", "outputSchema"),
)


def token(claims: dict[str, Any]) -> str:
    """Return what looks like a signed token and opens nothing."""
    parts = ({"alg": "none"}, claims)
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + ".eA"
    )


FAKE_TOKEN = token({"email": "a@b.example", "exp": 4_102_444_800, "https://api.openai.com/auth": {}})
SUBSCRIPTION: dict[str, Any] = {
    "auth_mode": "chatgpt",
    "tokens": {"id_token": FAKE_TOKEN, "access_token": FAKE_TOKEN, "refresh_token": "r", "account_id": "a"},
    "last_refresh": "2099-01-01T00:00:00Z",
}
API_KEY = {"OPENAI_API_KEY": "sk-fake-0000-dragoman-testkit"}


@asynccontextmanager
async def renewing_service() -> AsyncIterator[tuple[str, list[str]]]:
    """Serve what renews a ChatGPT login; yield its address, and the refresh tokens that it was shown."""
    presented: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].split("\r\n")[0])
        shown = json.loads(await reader.readexactly(length))["refresh_token"]
        presented.append(shown)
        await asyncio.sleep(0.5)  # another one may come with the same token meanwhile
        if presented.count(shown) == 1:
            status = "200 OK"
            answer: dict[str, Any] = {**SUBSCRIPTION["tokens"], "refresh_token": f"r-{len(presented)}"}
        else:
            status, answer = "401 Unauthorized", {"error": {"code": "refresh_token_reused"}}
        body = json.dumps(answer).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/oauth/token", presented


@asynccontextmanager
async def account_service(status: str, answer: dict[str, Any]) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve a ChatGPT account with one answer; yield its address, and the paths that were asked for."""
    asked: list[str] = []
    body = json.dumps(answer).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split()[1].partition("?")[0])
        described = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{described}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


@asynccontextmanager
async def limited_account(harness: Harness) -> AsyncIterator[list[pb.RateLimit]]:
    """Log in to an account that has used a part of its plan; yield what is to be reported of it."""
    window = {
        "used_percent": 42,
        "limit_window_seconds": 18_000,
        "reset_at": 1_893_456_000,
        "reset_after_seconds": 60,
    }
    limit = {"allowed": True, "limit_reached": False, "primary_window": window}
    (harness.isolation.config / "auth.json").write_text(json.dumps(SUBSCRIPTION))
    async with account_service("200 OK", {"plan_type": "pro", "rate_limit": limit}) as (url, asked):
        (harness.isolation.config / "config.toml").write_text(f'chatgpt_base_url = "{url}/backend-api"\n')
        reported = pb.RateLimit(window="primary (300 min)", used_percent=42)
        reported.resets_at.seconds = 1_893_456_000
        yield [reported]
    assert "/backend-api/wham/usage" in asked


@asynccontextmanager
async def issuer_of(harness: Harness) -> AsyncIterator[tuple[dict[str, str], Visit]]:
    """Serve an issuer; yield the environment that leads there, and what enters the code."""
    async with issuing() as issuer:
        yield leading_to(issuer, harness), issuer.visit


def leading_to(issuer: Issuer, harness: Harness) -> dict[str, str]:
    (harness.isolation.config / "config.toml").write_text(f'chatgpt_base_url = "{issuer.url}/backend-api"\n')
    return {**harness.env, "CODEX_APP_SERVER_LOGIN_ISSUER": issuer.url}


@asynccontextmanager
async def log_in(harness: Harness, issuer: Issuer) -> AsyncIterator[AsyncGenerator[api.LoginResponse, None]]:
    """Begin a login without one; yield its steps."""
    env = leading_to(issuer, harness)
    async with aclosing(harness.client.login(harness.adapter, env=env)) as steps:
        yield steps


def programs(harness: Harness) -> list[Path]:
    """Return the processes that have this harness's home in their environment."""
    mark = f"CODEX_HOME={harness.isolation.config}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


RECIPE = Recipe(
    make=adapter,
    family=CODEX,
    executable="codex",
    unknown_session="01a201c2-76cd-7353-a002-92a69ef09150",
    lacks=["usage_when_cancelled"],
    silent_tool_s=22,
    tested=api.TEST_STATUS_PASS,
    mcp_tool="mcp__words.count",
    first_model=CODE_MODE_MODEL,
    other_model="gpt-6-astra",
    account=limited_account,
    issuer=issuer_of,
    unset=adapter().spec.inherit,
    failures={
        "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "codex_other"),
        "CUT_END": Failing(pb.FAILURE_KIND_NETWORK, "codex_other", retries=True),
        "MAX_TOKENS": Failing(pb.FAILURE_KIND_OUTPUT_LIMIT, "codex_other"),
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "codex_http_connection_failed", 401, retries=True),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "codex_response_too_many_failed_attempts", 429, retries=True),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "codex_server_overloaded"),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "codex_internal_server_error", retries=True),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "codex_other", retries=True),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "codex_context_window_exceeded"),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "codex_usage_limit_exceeded"),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "codex_model_not_found"),
    },
)


class TestCodex(AgentSuite):
    """Everything that all agents must stand."""

    recipe = RECIPE
    scenarios = (
        Scenario("ESCALATE", "", (call(Tool("exec_command", {"cmd": "touch made.txt", **ESCALATED})), DONE)),
        Scenario(
            "TWICE",
            "",
            (
                call(Tool("exec_command", {"cmd": "touch made.txt", **ESCALATED})),
                call(Tool("exec_command", {"cmd": "touch made.txt", **ESCALATED})),
                DONE,
            ),
        ),
        Scenario("QUESTION", "", (call(Tool("request_user_input", {"questions": [QUESTION]})), DONE)),
        Scenario("OBJECT", "", (say('{"colour": "red"}'),)),
    )

    @pytest.fixture
    def has_sandbox(self, harness: Harness) -> bool:
        """Whether the kernel lets Codex have its sandbox here; containers and some distributions do not."""
        command = [str(BIN / "codex"), "sandbox", "--", "true"]
        done = subprocess.run(command, env=harness.env, check=False, capture_output=True, timeout=PATIENCE_S)
        return done.returncode == 0

    @pytest.fixture
    def in_sandbox(self, has_sandbox: bool) -> None:
        if not has_sandbox:
            pytest.skip("user namespaces are not to be had here")

    async def test_the_installed_version_is_the_tested_one(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT")
        assert seen.of("session")[0].agent_version == self.recipe.tested_version
        assert seen.of("started")[0].agent_version == self.recipe.tested_version
        assert [code for code in seen.notices if code != "codex_config_warning"] == []

    async def test_nothing_of_a_run_is_in_its_arguments(self, harness: Harness) -> None:
        seen = await harness.run(
            "MOCK_TEXT", instructions=api.Instructions(text="Be brief."), model="gpt-5.5", permissions=ASKED
        )
        assert list(seen.of("started")[0].argv)[1:] == ["app-server"]

    async def test_what_the_model_is_asked_with(self, harness: Harness) -> None:
        schema = {
            "type": "object",
            "properties": {"colour": {"type": "string"}},
            "required": ["colour"],
            "additionalProperties": False,
        }
        config = {"effort": "high", "reasoningSummary": "detailed", "search": True, "outputSchema": schema}
        seen = await harness.run("MOCK_OBJECT", model="gpt-5.5", config=config)
        body: Any = harness.model_requests[0].body
        assert body["model"] == seen.result.model == "gpt-5.5"
        assert body["reasoning"] == {"effort": "high", "summary": "detailed"}
        assert body["text"]["format"]["schema"] == schema
        (search,) = [tool for tool in body["tools"] if tool["type"] == "web_search"]
        assert search["external_web_access"] is True
        assert json.loads(seen.result.structured_output_json) == {"colour": "red"}

    async def test_a_running_command_is_heard(self, harness: Harness) -> None:
        command = "for i in 1 2 3; do echo $i; sleep 0.6; done"
        seen = await harness.run(f'MOCK_SHELL command="{command}"', permissions=ALLOWED)
        heard = "".join(piece.text for piece in seen.of("tool_output"))
        (result,) = seen.of("tool_result")
        assert (result.content, result.exit_code) == ("1\n2\n3", 0)
        assert heard
        assert heard in f"{result.content}\n", "what it prints at once comes with its result"

    # Permissions.

    @pytest.mark.usefixtures("in_sandbox")
    async def test_unasked_it_only_reads(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_READ path=README.md")
        assert seen.of("tool_result")[0].content == "A workspace."
        await harness.run(
            'MOCK_SHELL command="touch made.txt"'
        )  # which fails in the sandbox, and Codex does not report it

    async def test_what_is_allowed_runs_without_the_sandbox(self, harness: Harness) -> None:
        react = answering("allow_once")
        seen = await harness.run("MOCK_ESCALATE", permissions=ASKED, react=react, leaves=["made.txt"])
        (asked,) = seen.of("input_request")
        assert (asked.subject.command, asked.description) == ("touch made.txt", "May I?")
        assert asked.subject.tool_kind == pb.TOOL_KIND_EXECUTE

    async def test_a_rule_about_commands(self, harness: Harness) -> None:
        allow = pb.PermissionRule(decision=pb.PERMISSION_DECISION_ALLOW, command_prefix="touch")
        seen = await harness.run("MOCK_ESCALATE", permissions=pb.Permissions(rules=[allow]), leaves=["made.txt"])
        assert seen.of("input_request") == []

    async def test_allowed_for_the_run_it_is_not_asked_again(self, harness: Harness) -> None:
        react = answering("allow_always")
        seen = await harness.run("MOCK_TWICE", permissions=ASKED, react=react, leaves=["made.txt"])
        assert len(seen.of("input_request")) == 1
        assert len(seen.of("tool_result")) == 2

    async def test_where_something_is_denied_it_asks_before_it_reads(self, harness: Harness) -> None:
        deny = pb.PermissionRule(decision=pb.PERMISSION_DECISION_DENY, command_prefix="printenv")
        seen = await harness.run("MOCK_SECRET_TOOL name=HOME", permissions=pb.Permissions(rules=[deny]))
        assert seen.of("session")[0].mode == "untrusted"
        (denied,) = seen.of("tool_result")
        assert denied.status == pb.TOOL_STATUS_DENIED
        assert "permission_denied" in seen.notices

    @pytest.mark.usefixtures("in_sandbox")
    async def test_a_sandbox_round_the_workspace(self, harness: Harness) -> None:
        config = {"sandbox": "workspace-write"}
        seen = await harness.run('MOCK_SHELL command="touch made.txt"', config=config, leaves=["made.txt"])
        assert seen.of("input_request") == []
        await harness.run(f'MOCK_SHELL command="touch /opt/{harness.mark}"', config=config, leaves=["made.txt"])
        assert not Path(f"/opt/{harness.mark}").exists()

    async def test_the_bypass(self, harness: Harness) -> None:
        config = {"dangerouslyBypassApprovalsAndSandbox": True}
        seen = await harness.run("MOCK_WRITE path=notes.txt", config=config, leaves=["notes.txt"])
        assert "approvals_bypassed" in seen.notices
        assert seen.of("session")[0].mode == "never"

    async def test_its_users_settings_stay_as_they_are(self, harness: Harness) -> None:
        path = harness.isolation.config / "config.toml"
        before = path.read_bytes()
        for config in ({}, {"sandbox": "workspace-write"}, {"sandbox": "danger-full-access"}):
            seen = await harness.run("MOCK_TEXT", config=config, permissions=ALLOWED)
            assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
            assert path.read_bytes() == before, config

    # Questions.

    async def test_a_question_is_answered(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_QUESTION", permissions=ASKED, react=answering("option_2"))
        (asked,) = seen.of("input_request")
        assert (asked.kind, asked.title) == (pb.INPUT_KIND_CHOICE, "Which colour?")
        assert '"Blue"' in seen.text

    async def test_unattended(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_QUESTION")
        assert seen.of("input_request") == []
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED

    # Tool servers, skills, nested agents, code mode.

    async def test_a_tool_server_is_waited_for_and_really_used(self, harness: Harness) -> None:
        server = words_server(after_s=SLOWER_S)
        seen = await harness.run("MOCK_COUNT", mcp_servers=[server], permissions=ASKED, react=answering("allow_once"))
        (asked,) = seen.of("input_request")
        assert (asked.subject.tool_kind, asked.subject.tool_name) == (pb.TOOL_KIND_MCP, "mcp__words__count")
        assert asked.subject.tool_call_id == seen.of("tool_result")[0].tool_call_id
        assert f"The first word has {len(SECRET)} letters." in seen.text

    async def test_a_tool_server_that_may_not_be_used(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_COUNT", mcp_servers=[words_server()])
        assert "permission_denied" in seen.notices
        assert "letters" not in seen.text

    async def test_a_broken_tool_server_is_reported_and_ends_nothing(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", mcp_servers=[broken_server(after_s=SLOWER_S)])
        assert "codex_mcp_server_failed" in seen.notices
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED

    async def test_a_skill_by_its_name(self, harness: Harness) -> None:
        seen = await harness.run("$demo reply with exactly: read", skills=[skill()])
        assert "demo" in seen.of("session")[0].skills
        assert "The secret word is heliotrope." in harness.conversation_text()

    async def test_code_mode(self, harness: Harness) -> None:
        seen = await harness.run(
            "MOCK_WRITE path=notes.txt",
            model=CODE_MODE_MODEL,
            permissions=ASKED,
            react=answering("allow_once"),
            leaves=["notes.txt"],
        )
        assert harness.conversation().text_tools == ("exec",)
        assert [change.path for change in seen.of("file_change")] == [str(harness.workspace / "notes.txt")]
        seen = await harness.run("MOCK_SHELL_FAIL", model=CODE_MODE_MODEL, permissions=ALLOWED, leaves=["notes.txt"])
        (failed,) = seen.of("tool_result")
        assert (failed.status, failed.exit_code) == (pb.TOOL_STATUS_FAILED, 3)
        # It reads the command's output and its errors from two pipes, and reports them in the order it got to them.
        assert sorted(failed.content.splitlines()) == ["before", "oops"]

    async def test_a_nested_agent(self, harness: Harness) -> None:
        seen = await harness.run('MOCK_SUBAGENT task="MOCK_TEXT now"', model=CODE_MODE_MODEL)
        started, *_, ended = seen.of("subagent")
        assert (started.status, started.description) == (pb.SUBAGENT_STATUS_STARTED, "/root/helper")
        assert ended.id == started.id
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert "spawn" in next(call.name for call in seen.of("tool_call"))

    # Sessions.

    async def test_an_old_thread_gets_new_instructions_once(self, harness: Harness) -> None:
        old, new = api.Instructions(text="Old words."), api.Instructions(text="New words.")
        first = await harness.run("MOCK_TEXT", instructions=old)
        same = await harness.run("MOCK_TEXT", instructions=old, session=resuming(first.result.session.handle))
        assert harness.conversation(-1).system.count("Old words.") == 1
        await harness.run("MOCK_TEXT", instructions=new, session=resuming(same.result.session.handle))
        assert harness.conversation(-1).system.count("New words.") == 1

    async def test_a_context_that_is_shortened(self, harness: Harness) -> None:
        first = await harness.run("MOCK_TEXT")
        config = {"extraArgs": ["-c", "model_auto_compact_token_limit=1000"]}
        seen = await harness.run("MOCK_TEXT again", config=config, session=resuming(first.result.session.handle))
        assert [item.finished for item in seen.of("compaction")] == [False, True]
        assert seen.result.usage.tokens.input == 2 * 400, "one call to shorten it, one to answer"
        assert seen.text == "Hello from the scripted model."

    async def test_an_id_that_is_none_begins_no_thread_in_silence(self, harness: Harness) -> None:
        handle = pb.SessionHandle(adapter=harness.adapter, native_id="yesterday")
        seen = await harness.run("MOCK_RECALL", session=resuming(handle))
        (started,) = seen.of("started")
        assert started.session_disposition == pb.SESSION_DISPOSITION_RESUME_REFUSED
        assert "shape" in started.session_reason

    # What goes wrong.

    async def test_a_service_that_refuses_connections_ends_the_run(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", config={"extraArgs": REFUSED})
        assert seen.result.failure.kind == pb.FAILURE_KIND_NETWORK
        assert pb.RUN_PHASE_RETRYING in seen.phases

    async def test_no_key(self, harness: Harness) -> None:
        env = {"SCRIPTED_API_KEY": ""}
        seen = await harness.run("MOCK_TEXT", env=env)
        assert seen.result.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
        assert "SCRIPTED_API_KEY" in seen.result.failure.message
        (found,) = await harness.client.detect(harness.adapter, env={**harness.env, **env})
        assert found.auth == api.AUTH_STATE_MISSING

    async def test_a_used_up_plan(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_QUOTA")
        failure = seen.result.failure
        assert (failure.kind, failure.code) == (pb.FAILURE_KIND_QUOTA_EXCEEDED, "codex_usage_limit_exceeded")
        assert "try again at" in failure.message
        assert failure.retry_not_before.ToDatetime(UTC) == datetime(2100, 1, 1, tzinfo=UTC)
        assert [limit.used_percent for usage in seen.of("usage") for limit in usage.rate_limits] == [100]

    async def test_an_answer_that_is_cut_off(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_MAX_TOKENS")
        assert seen.result.outcome == pb.OUTCOME_FAILED
        assert "max_output_tokens" in seen.result.failure.message

    async def test_a_model_that_declines_is_reported_as_an_empty_answer(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_REFUSAL")
        assert (seen.result.outcome, seen.text) == (pb.OUTCOME_SUCCEEDED, "")
        assert "codex_no_answer" in seen.notices

    async def test_an_argument_that_it_does_not_know(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", config={"extraArgs": ["--no-such-option"]})
        assert seen.result.failure.kind == pb.FAILURE_KIND_INVALID_CONFIG
        assert "--no-such-option" in seen.result.failure.message

    # Looking.

    async def test_its_models(self, harness: Harness) -> None:
        listed = await harness.client.list_models(harness.adapter, env=harness.env)
        assert listed.source == api.MODEL_SOURCE_AGENT
        assert CODE_MODE_MODEL in [model.id for model in listed.models]

    @pytest.mark.parametrize("login", [SUBSCRIPTION, API_KEY], ids=["chatgpt", "api_key"])
    async def test_a_stored_login_is_found(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch, login: dict[str, Any]
    ) -> None:
        """With a subscription, a key that is only the adapter's own is not passed on."""
        (harness.isolation.config / "config.toml").unlink()
        (harness.isolation.config / "auth.json").write_text(json.dumps(login))
        monkeypatch.setenv("OPENAI_API_KEY", "sk-fake-of-the-adapter")
        (found,) = await harness.client.detect(harness.adapter, env=harness.env)
        assert found.auth == api.AUTH_STATE_OK
        withheld = "api_key_withheld" in [problem.code for problem in found.problems]
        assert (found.auth_method, withheld) == (("chatgpt", True) if "tokens" in login else ("api_key", False))

    async def test_runs_at_once_use_a_refresh_token_once(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The service gives out tokens that are good for one use, as the real one does."""
        monkeypatch.setenv("XDG_STATE_HOME", str(harness.root / "state"))
        config = harness.isolation.config / "config.toml"
        own = config.read_text().replace('env_key = "SCRIPTED_API_KEY"', "requires_openai_auth = true")
        config.write_text(own)
        expired = token({"exp": 1_000_000_000, "https://api.openai.com/auth": {"chatgpt_account_id": "a"}})
        login = {
            **SUBSCRIPTION,
            "tokens": {**SUBSCRIPTION["tokens"], "access_token": expired, "refresh_token": "r-0"},
        }
        (harness.isolation.config / "auth.json").write_text(json.dumps(login))
        async with renewing_service() as (url, presented):
            there = [harness.workspace, harness.make_workspace("second"), harness.make_workspace("third")]
            requests = [
                harness.request("MOCK_TEXT", cwd=cwd, env={"CODEX_REFRESH_TOKEN_URL_OVERRIDE": url}) for cwd in there
            ]
            runs = await asyncio.gather(*(harness.follow(request) for request in requests))
        assert [seen.result.outcome for seen in runs] == [pb.OUTCOME_SUCCEEDED] * 3
        assert presented == ["r-0"]

    @pytest.mark.parametrize("code", ["refresh_token_reused", "refresh_token_expired", "refresh_token_invalidated"])
    async def test_why_a_login_cannot_be_renewed(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch, code: str
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(harness.root / "state"))
        config = harness.isolation.config / "config.toml"
        own = config.read_text().replace('env_key = "SCRIPTED_API_KEY"', "requires_openai_auth = true")
        config.write_text(own)
        expired = token({"exp": 1_000_000_000, "https://api.openai.com/auth": {"chatgpt_account_id": "a"}})
        login = {**SUBSCRIPTION, "tokens": {**SUBSCRIPTION["tokens"], "access_token": expired}}
        (harness.isolation.config / "auth.json").write_text(json.dumps(login))
        async with account_service("401 Unauthorized", {"error": {"code": code}}) as (url, _):
            env = {"CODEX_REFRESH_TOKEN_URL_OVERRIDE": f"{url}/oauth/token"}
            seen = await harness.follow(harness.request("MOCK_401", env=env))
        assert seen.result.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
        assert seen.result.failure.code == code

    async def test_no_rate_limits_without_a_login(self, harness: Harness) -> None:
        (harness.isolation.config / "config.toml").unlink()
        response = await harness.client.get_quota(harness.adapter, env=harness.env)
        assert response.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED

    async def test_a_login_with_a_device_code(self, harness: Harness) -> None:
        async with issuing() as issuer, log_in(harness, issuer) as steps:
            prompt = (await anext(steps)).prompt
            assert (prompt.url, prompt.user_code) == (f"{issuer.url}/codex/device", "ABCD-1234")
            assert not (harness.isolation.config / "auth.json").exists()
            issuer.enter()
            rest = [step async for step in steps]
        assert rest == [api.LoginResponse(outcome=api.LoginOutcome())]
        stored = harness.isolation.config / "auth.json"
        assert SECRETS[0] in stored.read_text()
        assert stored.stat().st_mode & 0o077 == 0

    async def test_a_login_that_is_refused(self, harness: Harness) -> None:
        async with issuing() as issuer, log_in(harness, issuer) as steps:
            assert (await anext(steps)).HasField("prompt")
            issuer.status = "400 Bad Request"
            (ended,) = [step async for step in steps]
        assert ended.outcome.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
        assert "400 Bad Request" in ended.outcome.failure.message
        assert not (harness.isolation.config / "auth.json").exists()

    async def test_a_login_that_is_left_ends_its_program(self, harness: Harness) -> None:
        async with issuing() as issuer, log_in(harness, issuer) as steps:
            assert (await anext(steps)).HasField("prompt")
            await steps.aclose()
            while programs(harness):  # noqa: ASYNC110 - there is no event for that
                await asyncio.sleep(0.05)
        assert not (harness.isolation.config / "auth.json").exists()

    async def test_no_login(self, harness: Harness) -> None:
        (harness.isolation.config / "config.toml").unlink()
        (found,) = await harness.client.detect(harness.adapter, env=harness.env)
        assert found.auth == api.AUTH_STATE_MISSING

    async def test_its_skills(self, harness: Harness) -> None:
        for place in (
            harness.isolation.config / "skills" / "mine",
            harness.workspace / ".agents" / "skills" / "ours",
        ):
            place.mkdir(parents=True)
            (place / "SKILL.md").write_text(f"---\nname: {place.name}\ndescription: Known.\n---\nWords.\n")
        listed = await harness.client.list_skills(harness.adapter, env=harness.env, cwd=str(harness.workspace))
        assert {entry.name for entry in listed.skills} >= {"mine", "ours"}

    def test_it_speaks_what_this_adapter_understands(self, harness: Harness, tmp_path: Path) -> None:
        """By the schema that the installed program writes of itself."""
        command = [str(BIN / "codex"), "app-server", "generate-json-schema", "--experimental"]
        command += ["--out", str(tmp_path / "schema")]
        subprocess.run(command, env=harness.env, check=True, capture_output=True, timeout=PATIENCE_S)
        known = (tmp_path / "schema" / "codex_app_server_protocol.schemas.json").read_text()
        spoken = set(re.findall(r'"([a-z][A-Za-z_/]*)"', known))
        assert set(UNDERSTOOD) <= spoken

    @proves("TestEnvironment, quick")
    @pytest.mark.usefixtures("in_sandbox")  # without one, the test warns of that
    async def test_a_quick_test_spends_nothing_and_changes_nothing(self, harness: Harness) -> None:
        await super().test_a_quick_test_spends_nothing_and_changes_nothing(harness)

    async def test_its_sandbox_is_tried(self, harness: Harness, has_sandbox: bool) -> None:
        tested = await harness.client.test_environment(harness.adapter, env=harness.env, cwd=str(harness.workspace))
        codes = [check.code for check in tested.checks if check.code.startswith("sandbox_")]
        assert codes == (["sandbox_ok"] if has_sandbox else ["sandbox_unavailable"])

    async def test_frames_are_passed_on_if_asked_for(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", include_native=True)
        natives = [event.native for event in seen.events if event.HasField("native")]
        assert {native.protocol for native in natives} == {"codex-app-server"}
        assert {"item/agentMessage/delta", "thread/tokenUsage/updated"} <= {native.type for native in natives}


def skill() -> api.Skill:
    text = "---\nname: demo\ndescription: Knows a word.\n---\nThe secret word is heliotrope.\n"
    return api.Skill(name="demo", files=api.SkillFiles(content={"SKILL.md": text.encode()}))
