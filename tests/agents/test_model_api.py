"""The model APIs' own loop, in both wire formats: what all agents must stand, and what only it does."""

from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.model_api import adapter
from dragoman.testkit.model_server.script import Scenario, Tool, call, say
from dragoman.testkit.profiles.model_api import MODEL_API_ANTHROPIC, MODEL_API_OPENAI
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import PATIENCE_S, SECRET, TEST_S, Ability, Failing, Harness, Recipe, answering
from tests.agents.suite import ALLOWED, ASKED, AgentSuite, resuming

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]

LACKS: tuple[Ability, ...] = ("program", "shell")
UNKNOWN = "00000000-0000-4000-8000-000000000000"

ANTHROPIC = Recipe(
    make=adapter,
    family=MODEL_API_ANTHROPIC,
    executable="",
    unknown_session=UNKNOWN,
    max_turns={"maxTurns": 2},
    lacks=LACKS,
    unset=adapter().spec.inherit,
    failures={
        "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "invalid_request_error", 400),
        "CUT_END": Failing(pb.FAILURE_KIND_NETWORK, "stream_cut", retries=True),
        "MAX_TOKENS": Failing(pb.FAILURE_KIND_OUTPUT_LIMIT, "max_tokens"),
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "authentication_error", 401),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "rate_limit_error", 429, retries=True),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "overloaded_error", 529, retries=True),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "api_error", 500, retries=True),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "connection_failed", retries=True),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "invalid_request_error", 400),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "invalid_request_error", 400),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "not_found_error", 404),
        "REFUSAL": Failing(pb.FAILURE_KIND_MODEL_REFUSED, "refusal"),
    },
)
OPENAI = Recipe(
    make=adapter,
    family=MODEL_API_OPENAI,
    executable="",
    unknown_session=UNKNOWN,
    max_turns={"maxTurns": 2},
    lacks=(*LACKS, "usage_when_cancelled"),  # this wire format reports it last
    unset=adapter().spec.inherit,
    failures={
        "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "invalid_request_error", 400),
        "CUT_END": Failing(pb.FAILURE_KIND_NETWORK, "stream_cut", retries=True),
        "MAX_TOKENS": Failing(pb.FAILURE_KIND_OUTPUT_LIMIT, "max_tokens"),
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "invalid_api_key", 401),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "rate_limit_exceeded", 429, retries=True),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "server_is_overloaded", 503, retries=True),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "server_error", 500, retries=True),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "connection_failed", retries=True),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "context_length_exceeded", 400),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "insufficient_quota", 429),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "model_not_found", 404),
        "REFUSAL": Failing(pb.FAILURE_KIND_MODEL_REFUSED, "refusal"),
    },
)


class LoopSuite(AgentSuite):
    """What only this loop does, in either wire format."""

    scenarios = (
        Scenario(
            "EDIT",
            "edits a file, then reports",
            (
                call(Tool("edit", {"path": "{cwd|.}/README.md", "old": "A workspace.", "new": "A place."})),
                say("Done: {tool_result:-1|nothing}"),
            ),
        ),
        Scenario(
            "WRITE_AT",
            "writes to any path, then reports",
            (call(Tool("write", {"path": "{arg:path}", "content": "x\n"})), say("Done: {tool_result:-1|nothing}")),
            {"path": "where"},
        ),
    )

    async def test_turns_are_limited(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_LOOP", permissions=ALLOWED, config={"maxTurns": 2})
        assert seen.result.failure.kind == pb.FAILURE_KIND_MAX_TURNS
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_FAILED] * 2
        assert seen.result.counters.turns == 2
        assert seen.result.usage.tokens.input == sum(usage.tokens.input for usage in seen.of("usage"))

    async def test_an_edit_is_reported_with_its_diff(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_EDIT", permissions=ALLOWED, leaves=["README.md"])
        (change,) = seen.of("file_change")
        assert change.operation == pb.FILE_OPERATION_MODIFY
        assert change.diff.endswith("@@ -1 +1 @@\n-A workspace.\n+A place.\n")
        assert (harness.workspace / "README.md").read_text() == "A place.\n"

    async def test_whole_files_only(self, harness: Harness) -> None:
        for fields in (
            {"config": {"wholeFilesOnly": True}},
            {"permissions": pb.Permissions(native_mode="wholeFiles")},
        ):
            seen = await harness.run("MOCK_EDIT", **fields)
            assert set(harness.conversation(-1).tools) == {"Read", "Write"}
            assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_FAILED]

    async def test_two_writes_are_asked_about_one_by_one(self, harness: Harness) -> None:
        react = answering("allow_always")
        leaves = ["one.txt", "two.txt"]
        seen = await harness.run("MOCK_PARALLEL_WRITE", permissions=ASKED, react=react, leaves=leaves)
        assert len(seen.of("input_request")) == 1
        assert "Two results: Created" in seen.text

    @pytest.mark.parametrize(
        "path", ["/etc/dragoman-probe", "../outside.txt", "link/outside.txt", ".git/hooks/post-commit"]
    )
    async def test_nothing_is_written_outside(self, harness: Harness, tmp_path: Path, path: str) -> None:
        (harness.workspace / ".gitignore").write_text("link\n.gitignore\n")
        (harness.workspace / "link").symlink_to(tmp_path)
        seen = await harness.run(f"MOCK_WRITE_AT path={path}", permissions=ALLOWED)
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_FAILED]
        assert not (tmp_path / "outside.txt").exists()

    async def test_reading_is_refused_by_a_rule_only(self, harness: Harness) -> None:
        (harness.workspace / "README.md").write_text("A workspace.\n")
        seen = await harness.run("MOCK_READ path=README.md")
        assert seen.text == "Done: A workspace.\n"
        deny = pb.PermissionRule(decision=pb.PERMISSION_DECISION_DENY, tool_kind=pb.TOOL_KIND_READ)
        seen = await harness.run("MOCK_READ path=README.md", permissions=pb.Permissions(rules=[deny]))
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_DENIED]

    async def test_a_kept_conversation_is_private_and_without_secrets(self, harness: Harness) -> None:
        prompt = f"MOCK_SECRET_TEXT secret={SECRET}"
        seen = await harness.run(prompt, env={"DEPLOY_TOKEN": SECRET})
        kept = harness.isolation.config / f"{seen.result.session.handle.native_id}.json"
        assert kept.stat().st_mode & 0o777 == 0o600
        assert SECRET not in kept.read_text()
        assert "[redacted]" in kept.read_text()

    async def test_a_stopped_run_can_be_gone_on_with(self, harness: Harness) -> None:
        async def act(event: pb.AgentEvent, stream: Any) -> None:
            if event.WhichOneof("body") == "input_request":
                await stream.cancel(grace_s=PATIENCE_S)

        seen = await harness.run("MOCK_WRITE path=a.txt word=plover", permissions=ASKED, react=act)
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_CANCELLED]
        again = await harness.run("MOCK_RECALL", session=resuming(seen.result.session.handle))
        assert "word=plover" in again.text

    async def test_a_long_wait_is_not_waited_for(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_429_LONG")
        assert seen.result.failure.kind == pb.FAILURE_KIND_RATE_LIMITED
        assert seen.result.failure.HasField("retry_not_before")
        assert seen.result.counters.retries == 0

    @pytest.mark.parametrize(
        ("scenario", "kind"),
        [
            ("MAX_TOKENS", pb.FAILURE_KIND_OUTPUT_LIMIT),
            ("CUT_END", pb.FAILURE_KIND_NETWORK),
            ("STREAM_ERROR", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
            ("QUOTA", pb.FAILURE_KIND_QUOTA_EXCEEDED),
            ("400", pb.FAILURE_KIND_INVALID_CONFIG),
        ],
    )
    async def test_further_ends(self, harness: Harness, scenario: str, kind: pb.FailureKind.ValueType) -> None:
        seen = await harness.run(f"MOCK_{scenario}", config={"maxRetries": 1})
        assert seen.result.failure.kind == kind
        assert seen.result.failure.errors

    async def test_without_its_package(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        seen = await harness.run("MOCK_TEXT")
        assert seen.result.failure.kind == pb.FAILURE_KIND_NOT_INSTALLED
        assert "pip install" in seen.result.failure.message
        (found,) = await harness.client.detect(harness.adapter, env=harness.env)
        assert not found.available
        assert "pip install" in found.hint

    async def test_no_key(self, harness: Harness) -> None:
        (key,) = [name for name in harness.env if name.endswith("_API_KEY")]
        del harness.env[key]
        harness.env.pop("OPENAI_BASE_URL", "")
        seen = await harness.run("MOCK_TEXT", config={"provider": key.split("_")[0].lower()})
        assert seen.result.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
        assert harness.requests == []

    async def test_our_own_key_is_not_sent_where_the_caller_says(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (key,) = [name for name in harness.env if name.endswith("_API_KEY")]
        provider = key.split("_")[0]
        monkeypatch.setenv(key, SECRET)
        monkeypatch.setenv(
            f"{provider}_CUSTOM_HEADERS", f"anthropic-ours: {SECRET}\nX-Api-Key: {SECRET}\nAuthorization: {SECRET}"
        )
        await harness.run("MOCK_TEXT")
        assert SECRET not in str([request.headers for request in harness.requests])
        del harness.env[key]
        await harness.run("MOCK_TEXT", config={"provider": provider.lower()})
        assert SECRET not in str([request.headers for request in harness.requests])

    async def test_the_models_that_the_service_lists(self, harness: Harness) -> None:
        listed = await harness.client.list_models(harness.adapter, env=harness.env)
        assert listed.source == api.MODEL_SOURCE_SERVICE
        assert [model.id for model in listed.models] == ["scripted-1", "scripted-2"]
        unknown = await harness.client.list_models(harness.adapter, env={})
        assert unknown.source == api.MODEL_SOURCE_STATIC


class TestAnthropicMessages(LoopSuite):
    """In Anthropic's words."""

    recipe = ANTHROPIC

    async def test_sonnet_unless_another_is_asked_for(self, harness: Harness) -> None:
        await harness.run("MOCK_TEXT")
        assert harness.conversation(-1).model == "claude-sonnet-5-5"
        seen = await harness.run("MOCK_TEXT", model="claude-opus-5-5")
        assert harness.conversation(-1).model == seen.result.model == "claude-opus-5-5"

    async def test_the_end_of_the_conversation_is_marked_for_the_cache(self, harness: Harness) -> None:
        await harness.run("MOCK_READ path=README.md", config={"effort": "high", "thinking": True})
        body: Any = harness.model_requests[-1].body
        assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
        assert body["output_config"] == {"effort": "high"}
        assert body["thinking"]["type"] == "adaptive"


class TestOpenAIChat(LoopSuite):
    """In OpenAI's."""

    recipe = OPENAI

    async def test_a_model_must_be_chosen(self, harness: Harness) -> None:
        del harness.env["OPENAI_MODEL"]
        seen = await harness.run("MOCK_TEXT")
        assert seen.result.failure.kind == pb.FAILURE_KIND_INVALID_CONFIG
        seen = await harness.run("MOCK_TEXT", model="scripted-2")
        assert harness.conversation(-1).model == seen.result.model == "scripted-2"

    async def test_a_server_of_ones_own_wants_no_key(self, harness: Harness) -> None:
        del harness.env["OPENAI_API_KEY"]
        seen = await harness.run("MOCK_TEXT", config={"provider": "openai"})
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        (found,) = await harness.client.detect(harness.adapter, config={"provider": "openai"}, env=harness.env)
        assert (found.available, found.auth) == (True, api.AUTH_STATE_UNKNOWN)

    async def test_the_name_it_is_called_by_says_who_is_asked(self, harness: Harness) -> None:
        harness.env["ANTHROPIC_API_KEY"] = "sk-fake"
        request = harness.request("MOCK_TEXT")
        request.adapter = "openai_api"
        seen = await harness.follow(request)
        assert seen.result.provider == "openai"
        request = harness.request("MOCK_TEXT")
        request.agent.adapter_type = "openai_api"  # all that a router leaves of it
        assert (await harness.follow(request)).result.provider == "openai"
