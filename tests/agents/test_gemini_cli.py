"""The Gemini CLI adapter with the real Gemini CLI, against the scripted model."""

import hashlib
import json
from typing import Any, ClassVar

import pytest
from dragoman.adapters.gemini_cli import adapter
from dragoman.client import DragomanError, Reason, RunStream
from dragoman.sdk._detection.programs import script_version
from dragoman.testkit.isolation import log_in
from dragoman.testkit.profiles.gemini import GEMINI
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import BIN, SECRET, TEST_S, Failing, Harness, Recipe, answering, when, words_server
from tests.agents.suite import ALLOWED, ASKED, RUNNING, AgentSuite, proves, resuming
from tests.agents.updating import TWO_FILES, decides_about_the_next_action

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]


OVER_ACP = {"transport": "acp"}
IN_LINES = {"transport": "stream-json"}

RECIPE = Recipe(
    make=adapter,
    family=GEMINI,
    executable="gemini",
    unknown_session="11111111-2222-4333-8444-555555555555",
    failures={
        "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "gemini_bad_request", 400),
        "CUT_END": Failing(pb.FAILURE_KIND_NETWORK, "gemini_stream_broken"),
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "gemini_auth_required", 401),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "gemini_rate_limited", 429, retries=True),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "gemini_unavailable", 500, retries=True),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "gemini_unavailable", 503, retries=True),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "gemini_stream_broken", None),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "gemini_context_overflow", 400),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "gemini_quota_exceeded", 429, retries=True),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "gemini_model_not_found", 404),
    },
    max_turns={"maxTurnsPerRun": 2},
    lacks=("usage_when_cancelled", "refusal_message"),
    cannot={
        "test_an_answer_cut_by_the_output_limit": "it does not report why its model stopped",
        "test_failing_command": "it reports neither the exit code of a command nor that it failed",
        "test_a_cut_that_passes_leaves_one_answer": "it does not try again when a connection breaks in mid-stream",
    },
    updating=OVER_ACP,
    other_model="gemini-2.5-pro",
    other_mode="autoEdit",
    skill_tool=True,
    idle_s=20,
    silent_tool_s=36,
    mcp_tool="mcp_words_count",
    unset=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GEMINI_CLI_HOME", "GOOGLE_GEMINI_BASE_URL"),
)


class TestGeminiCli(AgentSuite):
    """Everything that all agents must stand, and what only this one does."""

    recipe: ClassVar[Recipe] = RECIPE
    scenarios = (TWO_FILES,)

    async def test_another_mode_decides_about_the_next_action(self, harness: Harness) -> None:
        await decides_about_the_next_action(harness, "yolo")

    async def test_changes_are_refused_in_json_lines(self, harness: Harness) -> None:
        refused: list[Reason | None] = []

        async def act(stream: RunStream) -> None:
            with pytest.raises(DragomanError) as caught:
                await stream.update(model=RECIPE.other_model)
            refused.append(caught.value.reason)

        react = when(lambda event: event.HasField("session"), act)
        seen = await harness.run("MOCK_TEXT", config=IN_LINES, react=react)
        assert refused == [Reason.UPDATE_REFUSED]
        assert seen.of("run_updated") == []

    @proves("429 that passes")
    async def test_a_failure_that_passes(self, harness: Harness) -> None:
        """Over the protocol, nothing shows retries before it ends."""
        for config, phases in ((IN_LINES, [pb.RUN_PHASE_RETRYING, RUNNING]), (OVER_ACP, [])):
            # Scripts count attempts by the prompt.
            seen = await harness.run(f"MOCK_429_ONCE {config['transport']}", config=config)
            assert seen.text == "Recovered from the rate limit."
            assert seen.phases == [pb.RUN_PHASE_STARTING, RUNNING, *phases]

    async def test_changes_are_reported_over_the_protocol(self, harness: Harness) -> None:
        seen = await harness.run(
            "MOCK_WRITE path=notes.txt", permissions=ALLOWED, config=OVER_ACP, leaves=["notes.txt"]
        )
        (change,) = seen.of("file_change")
        assert (change.path, change.operation) == (str(harness.workspace / "notes.txt"), pb.FILE_OPERATION_CREATE)
        assert "+hello from the scripted model" in change.diff
        tool_call = next(call for call in seen.of("tool_call") if call.input_json)
        assert (tool_call.name, tool_call.kind) == ("write_file", pb.TOOL_KIND_EDIT)
        assert json.loads(tool_call.input_json)["content"] == "hello from the scripted model\n"

    async def test_json_lines_offer_nothing_that_would_need_a_permission(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_WRITE path=notes.txt", config=IN_LINES)
        assert {"tools_withheld", "permission_denied"} <= set(seen.notices)
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_DENIED]
        assert "write_file" not in harness.conversation().tools

    @pytest.mark.parametrize("config", [OVER_ACP, IN_LINES], ids=["acp", "lines"])
    async def test_caches_and_thoughts_are_counted_apart(self, harness: Harness, config: dict[str, Any]) -> None:
        first = await harness.run("MOCK_THINKING", config=config)
        handle = first.result.session.handle
        second = await harness.run("MOCK_THINKING", config=config, session=resuming(handle))
        for seen in (first, second):
            tokens = seen.result.usage.tokens
            assert (tokens.input, tokens.cache_read, tokens.output, tokens.reasoning) == (400, 800, 42, 7)
            assert [model.model for model in seen.result.usage.models] == ["gemini-2.5-flash"]

    async def test_much_in_json_lines(self, harness: Harness) -> None:
        """It ends without waiting for its output to be read: what its pipe does not hold would be lost."""
        seen = await harness.run("MOCK_LINE", config=IN_LINES)
        assert seen.text == "0123456789abcdef" * 12800
        prompt = "MOCK_ECHO " + "Grüße\u2028" * 34_000
        seen = await harness.run(prompt, config=IN_LINES)
        assert f"sha256={hashlib.sha256(prompt.encode()).hexdigest()}" in seen.text

    @pytest.mark.parametrize("permissions", [ASKED, ALLOWED], ids=["acp", "lines"])
    async def test_further_directories(self, harness: Harness, permissions: pb.Permissions) -> None:
        further = harness.make_workspace("further")
        workspace = api.Workspace(cwd=str(harness.workspace), additional_directories=[str(further)])
        await harness.run("MOCK_TEXT", permissions=permissions, workspace=workspace)
        assert f"  - {further}" in str(harness.model_requests[0].body)

    async def test_a_rule_about_commands_decides(self, harness: Harness) -> None:
        allow = pb.PermissionRule(decision=pb.PERMISSION_DECISION_ALLOW, command_prefix="touch a")
        permissions = pb.Permissions(rules=[allow])
        await harness.run('MOCK_SHELL command="touch a"', permissions=permissions, leaves=["a"])
        seen = await harness.run('MOCK_SHELL command="touch b"', permissions=permissions, leaves=["a"])
        assert seen.of("tool_result")[0].status == pb.TOOL_STATUS_DENIED

    async def test_its_own_mode(self, harness: Harness) -> None:
        permissions = pb.Permissions(native_mode="auto_edit")
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=permissions, leaves=["notes.txt"])
        assert seen.of("input_request") == []
        assert "permission_denied" not in seen.notices

    @pytest.mark.parametrize("config", [{"transport": "acp"}, {"transport": "stream-json"}], ids=["acp", "lines"])
    @pytest.mark.parametrize("begins", ["/help ", "$help ", "@README.md "])
    async def test_a_prompt_is_text(self, harness: Harness, config: dict[str, Any], begins: str) -> None:
        seen = await harness.run(f"{begins}MOCK_TEXT", config=config)
        assert seen.text == "Hello from the scripted model."
        assert begins.strip().lstrip("@") in harness.conversation().prompt
        assert "A workspace." not in str(harness.model_requests[0].body)

    @pytest.mark.parametrize(
        "ways", [("acp", "stream-json"), ("stream-json", "acp")], ids=["acp first", "lines first"]
    )
    async def test_a_session_goes_on_over_the_other_way(self, harness: Harness, ways: tuple[str, str]) -> None:
        first = await harness.run("MOCK_TEXT word=plover", config={"transport": ways[0]})
        handle = first.result.session.handle
        second = await harness.run("MOCK_RECALL", config={"transport": ways[1]}, session=resuming(handle))
        assert second.text == "prompts=2 word=plover first=[MOCK_TEXT word=plover]"
        assert second.result.session.handle.native_id == handle.native_id

    async def test_a_long_history_is_not_emitted_again(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is repeated after the answer to its loading, and takes its time where a pipe is full."""
        monkeypatch.setattr("dragoman.sdk._process.pipes.PIPE_BYTES", 4096)
        handle = (await harness.run(f"MOCK_TEXT {'x' * 300_000}", config=OVER_ACP)).result.session.handle
        seen = await harness.run("MOCK_THINKING", config=OVER_ACP, session=resuming(handle))
        assert seen.text == seen.result.summary == "A thought-out reply."

    async def test_a_lost_session_in_json_lines(self, harness: Harness) -> None:
        handle = pb.SessionHandle(adapter=harness.adapter, native_id=RECIPE.unknown_session)
        seen = await harness.run("MOCK_TEXT", config=IN_LINES, session=resuming(handle))
        (ended,) = seen.of("attempt_ended")
        assert (ended.failure.kind, ended.exit_code) == (pb.FAILURE_KIND_SESSION_LOST, 42)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED

    @pytest.mark.parametrize("config", [{"transport": "acp"}, {"transport": "stream-json"}], ids=["acp", "lines"])
    async def test_a_stream_that_ends_too_early_is_no_success(self, harness: Harness, config: dict[str, Any]) -> None:
        seen = await harness.run("MOCK_CUT_END", config=config)
        assert seen.result.outcome == pb.OUTCOME_FAILED
        assert seen.result.failure.kind == pb.FAILURE_KIND_NETWORK

    @pytest.mark.parametrize("scenario", ["401", "OVERFLOW", "NO_MODEL", "QUOTA"])
    async def test_failures_over_the_protocol(self, harness: Harness, scenario: str) -> None:
        seen = await harness.run(f"MOCK_{scenario}", config=OVER_ACP)
        expected = {**RECIPE.failures, "QUOTA": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "gemini_quota_exceeded")}
        failure = seen.result.failure
        assert (failure.kind, failure.code) == (expected[scenario].kind, expected[scenario].code)

    async def test_attempts_are_limited_and_the_users_settings_stay(self, harness: Harness) -> None:
        path = harness.isolation.config / "settings.json"
        path.write_text("// mine\n" + path.read_text())
        before = path.read_bytes()
        seen = await harness.run("MOCK_500", config={"maxAttempts": 2})
        assert seen.result.failure.kind == pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE
        assert len(harness.model_requests) == 2
        assert path.read_bytes() == before

    @pytest.mark.parametrize("permissions", [ASKED, ALLOWED], ids=["acp", "lines"])
    async def test_a_tool_server_is_really_used(self, harness: Harness, permissions: pb.Permissions) -> None:
        seen = await harness.run(
            "MOCK_COUNT",
            mcp_servers=[words_server()],
            permissions=permissions,
            react=answering("proceed_once") if permissions.interactive else None,
        )
        assert f"The first word has {len(SECRET)} letters." in seen.text

    async def test_with_no_model_named_its_router_disturbs_no_script(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_PARALLEL", permissions=ALLOWED, env={"GEMINI_MODEL": ""})
        assert "Two results: " in seen.text
        assert len(harness.requests) > len(harness.model_requests) == 2

    def test_its_package_says_its_version(self) -> None:
        program = BIN.parent / "gemini/node_modules/.bin/gemini"
        assert script_version(program, adapter().spec.npm_package, str(BIN)) == self.recipe.tested_version

    async def test_no_login(self, harness: Harness) -> None:
        env = {"GEMINI_API_KEY": ""}
        for config in (OVER_ACP, IN_LINES):
            seen = await harness.run("MOCK_TEXT", env=env, config=config)
            assert seen.result.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
            assert "GEMINI_API_KEY" in seen.result.failure.message
        (found,) = await harness.client.detect(harness.adapter, env={**harness.env, **env})
        assert found.auth == api.AUTH_STATE_MISSING

    async def test_a_login_is_seen(self, harness: Harness) -> None:
        log_in(harness.isolation)
        env = {**harness.env, "GEMINI_API_KEY": "", "GOOGLE_GENAI_USE_GCA": "true"}
        (harness.isolation.config / "settings.json").write_text("{}")
        (found,) = await harness.client.detect(harness.adapter, env=env)
        assert (found.auth, found.auth_method) == (api.AUTH_STATE_OK, "oauth-personal")

    async def test_an_argument_that_it_does_not_know(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", config={"extraArgs": ["--no-such-option"], **IN_LINES})
        assert (seen.result.failure.kind, seen.result.failure.code) == (
            pb.FAILURE_KIND_INVALID_CONFIG,
            "gemini_bad_option",
        )
