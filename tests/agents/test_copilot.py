"""The real Copilot CLI through its adapter: what all agents must stand, and what only it does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from dragoman.adapters.copilot import adapter
from dragoman.testkit.isolation import log_in
from dragoman.testkit.model_server.script import Scenario, Tool, call, say
from dragoman.testkit.profiles.copilot import COPILOT
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import TEST_S, Failing, Harness, Recipe, Visit, answering
from tests.agents.issuer import serving
from tests.agents.several import FullSuite
from tests.agents.suite import ALLOWED, ASKED, proves, resuming

# It tries five times before it gives up, with pauses of a minute in all.
pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]

TOKEN = "gho_of_the_issuer"
"""What no event and no log may hold."""
SNAPSHOTS = {
    "chat": {"entitlement": 0, "percent_remaining": 100.0, "remaining": 0, "unlimited": True},
    "premium_interactions": {"entitlement": 300, "percent_remaining": 58.0, "remaining": 174, "unlimited": False},
}


@asynccontextmanager
async def subscribed(harness: Harness) -> AsyncIterator[list[pb.RateLimit]]:
    """Log in to a plan of which a part is used; yield what is to be reported of it."""

    def answer(path: str) -> tuple[str, dict[str, Any]]:
        asked.append(path)
        return "200 OK", {"login": "tester", "copilot_plan": "individual", "quota_snapshots": SNAPSHOTS}

    asked: list[str] = []
    async with serving(answer) as url:
        user = {"host": url, "login": "tester", "kind": "proxima"}
        stored = {"authTokens": {f"{url}:tester:github": {"token": TOKEN}}, "loggedInUsers": [user]}
        (harness.isolation.config / "config.json").write_text(json.dumps({**stored, "lastLoggedInUser": user}))
        harness.env.update({"COPILOT_OFFLINE": "false", "COPILOT_PROVIDER_BASE_URL": ""})
        yield [pb.RateLimit(window="premium_interactions", used_percent=42)]
    assert "/copilot_internal/user" in asked


@asynccontextmanager
async def issuer_of(harness: Harness) -> AsyncIterator[tuple[dict[str, str], Visit]]:
    """Serve a GitHub; yield the environment that leads there, and what enters the code."""
    entered = asyncio.Event()

    def answer(path: str) -> tuple[str, dict[str, Any]]:
        if path == "/login/device/code":
            code = {"device_code": "d", "user_code": "ABCD-1234", "verification_uri": f"{url}/login/device"}
            return "200 OK", {**code, "expires_in": 900, "interval": 1}
        if path == "/login/oauth/access_token":
            waiting = {"error": "authorization_pending"}
            return "200 OK", {"access_token": TOKEN, "token_type": "bearer"} if entered.is_set() else waiting
        return ("200 OK", {"login": "tester"}) if path == "/copilot_internal/user" else ("404 Not Found", {})

    async def enter(_url: str) -> None:
        entered.set()

    (harness.isolation.config / "settings.json").write_text('{"storeTokenPlaintext": true}')
    async with serving(answer) as url:
        yield {**harness.env, "COPILOT_OFFLINE": "false", "COPILOT_GH_HOST": url}, enter


RECIPE = Recipe(
    make=adapter,
    family=COPILOT,
    executable="copilot",
    unknown_session="00000000-0000-4000-8000-000000000000",
    skill_tool=True,
    silent_tool_s=22,
    idle_s=12,  # it is silent for seconds while it starts on a busy machine
    lacks=["usage_when_cancelled"],
    mcp_tool="words-count",
    account=subscribed,
    issuer=issuer_of,
    unset=adapter().spec.inherit,
    failures={
        "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "copilot_invalid_config", 400),
        "CUT_END": Failing(pb.FAILURE_KIND_NO_RESULT, "copilot_no_result", retries=True),
        "MAX_TOKENS": Failing(pb.FAILURE_KIND_OUTPUT_LIMIT, "copilot_output_limit"),
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "copilot_auth_required", 401, retries=True),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "copilot_rate_limited", 429, retries=True),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "copilot_upstream_unavailable", 503, retries=True),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "copilot_upstream_unavailable", 500, retries=True),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "copilot_network", retries=True),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "copilot_context_overflow", 400, retries=True),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "copilot_quota_exceeded", 429, retries=True),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "copilot_model_not_found", 404),
        "REFUSAL": Failing(pb.FAILURE_KIND_MODEL_REFUSED, "copilot_model_refused"),
    },
)


class TestCopilot(FullSuite):
    """Everything that all agents must stand."""

    recipe = RECIPE
    nested_prompt = "text"
    interrupted = (0, "aborted")
    scenarios = (
        Scenario(
            "ASK_COLOUR",
            "asks its user, then reports",
            (
                call(Tool("ask_user", {"question": "Which colour?", "choices": ["Red", "Blue"]})),
                say("Heard: {tool_result:-1|nothing}"),
            ),
        ),
    )

    async def test_a_login_is_stored_and_not_reported(self, harness: Harness) -> None:
        async with issuer_of(harness) as (env, visit), aclosing(harness.client.login("copilot", env=env)) as steps:
            begun = await anext(steps)
            assert begun.prompt.user_code == "ABCD-1234"
            await visit(begun.prompt.url)
            shown = str([begun, *[step async for step in steps]])
        assert TOKEN in (harness.isolation.config / "config.json").read_text()
        assert TOKEN not in shown

    async def test_a_login_that_can_be_stored_nowhere_fails(self, harness: Harness) -> None:
        async with issuer_of(harness) as (env, visit):
            (harness.isolation.config / "settings.json").unlink()
            without_ring = {**env, "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere"}
            async with aclosing(harness.client.login("copilot", env=without_ring)) as steps:
                await visit((await anext(steps)).prompt.url)
                (ended,) = [step async for step in steps]
        assert ended.outcome.failure.code == "copilot_token_not_saved"
        assert "storeTokenPlaintext" in ended.outcome.failure.message

    async def test_no_quota_without_a_login(self, harness: Harness) -> None:
        response = await harness.client.get_quota("copilot", env=harness.env | {"COPILOT_OFFLINE": "false"})
        assert response.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED

    @proves("300 KB prompt")
    async def test_a_prompt_of_300_kb(self, harness: Harness) -> None:
        """Copilot puts the time before a prompt, and takes white space from its end."""
        prompt = f"MOCK_ECHO {'Grüße' + chr(0x2028)}" + ("Grüße" + chr(0x2028)) * 34_000 + "end"
        seen = await harness.run(prompt)
        assert harness.conversation().prompt.endswith(f"\n\n{prompt}")
        assert f"tail=[{prompt[-40:]}]" in seen.text

    async def test_the_model_and_its_effort_are_asked_for(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", model="scripted-2", config={"effort": "low"})
        assert harness.conversation().model == "scripted-2"
        assert seen.result.model == "scripted-2"

    async def test_the_output_of_a_command_is_emitted_as_it_comes(self, harness: Harness) -> None:
        seen = await harness.run('MOCK_SHELL command="echo one; sleep 1; echo two"', permissions=ALLOWED)
        assert "".join(output.text for output in seen.of("tool_output")) == "one\ntwo\n"
        assert seen.of("tool_result")[0].content == "one\ntwo"

    async def test_the_workspace_may_be_read_unless_a_rule_denies_it(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_READ path=README.md")
        assert seen.of("tool_result")[0].content.startswith("A workspace.")
        deny = pb.PermissionRule(decision=pb.PERMISSION_DECISION_DENY, path_glob="*/README.md")
        seen = await harness.run("MOCK_READ path=README.md", permissions=pb.Permissions(rules=[deny]))
        assert seen.of("tool_result")[0].status == pb.TOOL_STATUS_DENIED
        assert "permission_denied" in seen.notices

    async def test_a_file_outside_is_asked_about_once(self, harness: Harness) -> None:
        outside = harness.root / "outside"
        outside.mkdir()
        (outside / "secret.txt").write_text("Something.\n")
        prompt = f"MOCK_READ path=../{outside.name}/secret.txt"
        seen = await harness.run(prompt)
        assert seen.of("tool_result")[0].status == pb.TOOL_STATUS_DENIED
        seen = await harness.run(prompt, permissions=ASKED, react=answering("allow_once"))
        (asked,) = seen.of("input_request")
        assert asked.subject.tool_kind == pb.TOOL_KIND_READ
        assert "outside" in asked.description
        assert seen.of("tool_result")[0].content.startswith("Something.")

    async def test_a_link_does_not_lead_out_of_the_workspace(self, harness: Harness) -> None:
        (harness.root / "hidden.txt").write_text("Hidden.\n")
        (harness.workspace / "link.txt").symlink_to(harness.root / "hidden.txt")
        seen = await harness.run("MOCK_READ path=link.txt", leaves=["link.txt"])
        assert seen.of("tool_result")[0].status == pb.TOOL_STATUS_DENIED

    async def test_always_holds_for_the_session(self, harness: Harness) -> None:
        write = "MOCK_WRITE path=a.txt"
        seen = await harness.run(write, permissions=ASKED, react=answering("allow_always"), leaves=["a.txt"])
        again = await harness.run(
            "MOCK_WRITE path=b.txt",
            session=resuming(seen.result.session.handle),
            permissions=ASKED,
            react=answering("reject_once"),
            leaves=["a.txt"],
        )
        assert again.of("tool_result")[0].status == pb.TOOL_STATUS_DENIED

    async def test_a_question_is_answered(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_ASK_COLOUR", permissions=ASKED, react=answering("option_2"))
        (asked,) = seen.of("input_request")
        assert (asked.kind, asked.title) == (pb.INPUT_KIND_CHOICE, "Which colour?")
        assert seen.text == "Heard: User selected: Blue"

    async def test_unattended_the_model_is_not_offered_to_ask(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_ASK_COLOUR")
        assert "ask_user" not in harness.conversation().tools
        assert seen.of("input_request") == []

    async def test_an_argument_that_it_does_not_know(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", config={"extraArgs": ["--no-such-option"]})
        assert seen.result.outcome == pb.OUTCOME_FAILED
        assert seen.result.failure.kind == pb.FAILURE_KIND_INVALID_CONFIG

    async def test_offline_without_a_model_and_without_a_login(self, harness: Harness) -> None:
        env = {"COPILOT_PROVIDER_BASE_URL": ""}
        seen = await harness.run("MOCK_TEXT", env={**env, "COPILOT_MODEL": ""})
        assert seen.result.failure.kind == pb.FAILURE_KIND_INVALID_CONFIG
        assert "COPILOT_PROVIDER_BASE_URL" in seen.result.failure.message
        (found,) = await harness.client.detect(harness.adapter, env={**harness.env, **env})
        assert found.auth == api.AUTH_STATE_MISSING
        log_in(harness.isolation)
        (found,) = await harness.client.detect(harness.adapter, env={**harness.env, **env})
        assert (found.auth, found.auth_method) == (api.AUTH_STATE_OK, "github")

    async def test_frames_are_passed_on_if_asked_for(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", include_native=True)
        natives = [event.native for event in seen.events if event.HasField("native")]
        assert {native.protocol for native in natives} == {"copilot-session-rpc"}
        assert {"session.skills_loaded", "assistant.message_delta"} <= {native.type for native in natives}

    async def test_permission_to_do_everything_is_not_inherited(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COPILOT_ALLOW_ALL", "true")
        seen = await harness.run("MOCK_WRITE path=notes.txt")
        assert seen.of("tool_result")[0].status == pb.TOOL_STATUS_DENIED
