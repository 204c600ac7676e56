"""What every agent adapter must stand, with the real agent: subclass `AgentSuite` and name a `Recipe`.

A test depends on what the adapter declares: what it does not declare is "not supported by the agent" in the table
of proofs, and what it declares must pass. `proves` names the scenario of the table that a test belongs to.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from dragoman.client import DragomanError, Reason
from dragoman.testkit.model_server.script import Scenario
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2

from tests.agents.choosing import scripts, why_not
from tests.agents.harness import (
    PATIENCE_S,
    SECRET,
    Ability,
    Harness,
    Recipe,
    ServedAdapter,
    answering,
    when,
    words_server,
)
from tests.agents.shared import SharedTests

ALLOWED = pb.Permissions(auto_approve=True)
ASKED = pb.Permissions(interactive=True)

RUNNING = pb.RUN_PHASE_RUNNING
MOST_ATTEMPTS = 16
"""Calls of the model that an agent may make in vain before it gives up."""
DENIALS = {"permission_denied", "tools_withheld"}
"""Codes of the notices that something is not allowed."""


def proves(scenario: str, *features: pb.Feature.ValueType, uses: tuple[Ability, ...] = ()) -> pytest.MarkDecorator:
    """Mark a test.

    Args:
        scenario: the row of the table of proofs that it belongs to; ``{name}`` stands for a parameter.
        *features: capabilities without which it means nothing.
        uses: what the agent must not lack.
    """
    return pytest.mark.proves(scenario, features=features, uses=uses)


def is_kind(kind: str) -> Any:
    return lambda event: event.WhichOneof("body") == kind


def limits(**seconds: float) -> pb.Limits:
    run_limits = pb.Limits()
    for name, value in seconds.items():
        getattr(run_limits, name).FromNanoseconds(int(value * 1e9))
    return run_limits


def resuming(handle: pb.SessionHandle, *, fork: bool = False) -> api.SessionSelector:
    return api.SessionSelector(handle=handle, fork=fork)


class AgentSuite(SharedTests):
    """The tests that all adapters share."""

    recipe: ClassVar[Recipe]
    scenarios: ClassVar[tuple[Scenario, ...]] = ()
    """Scripts besides those of the test kit, in the agent's own words."""

    @pytest.fixture(autouse=True)
    def for_this_agent(self, request: pytest.FixtureRequest) -> None:
        reason = why_not(self.recipe, request.node)
        if reason:
            pytest.skip(reason)

    @pytest.fixture
    async def served(self, for_this_agent: None, tmp_path: Path) -> AsyncIterator[ServedAdapter]:
        """Serve the adapter; an agent with a server that is slow to start shares one (`SharedAdapter`)."""
        del for_this_agent
        async with ServedAdapter.serve(self.recipe, scripts(self.recipe, self.scenarios), tmp_path) as served:
            yield served

    @pytest.fixture
    def harness(self, served: ServedAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
        for name in self.recipe.unset:
            monkeypatch.delenv(name, raising=False)
        return Harness(served, tmp_path)

    # What it says and does.

    @proves("text")
    async def test_text(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT")
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert seen.text == seen.result.summary == "Hello from the scripted model."
        if harness.has(pb.FEATURE_TEXT_DELTAS):
            assert len([text for text in seen.of("text") if text.delta]) > 1
        assert seen.result.billing_type == self.recipe.billing
        if not harness.lacks("usage"):
            assert seen.result.usage.tokens.input
            assert seen.result.usage.tokens.output
        if not harness.lacks("program"):
            assert seen.result.exit_code == 0
            assert any(state.pid for state in seen.of("state"))
        if harness.has(pb.FEATURE_RESUME):
            assert seen.of("session")[0].native_id == seen.result.session.handle.native_id
            assert seen.result.session.change == pb.SESSION_CHANGE_SET

    @proves("thinking", pb.FEATURE_THINKING)
    async def test_thinking(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_THINKING")
        assert seen.thinking == "The user wants a short answer."
        assert seen.text == "A thought-out reply."

    @proves("beyond ASCII, U+2028")
    async def test_characters_beyond_ascii(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_UNICODE")
        assert seen.text == "Grüße, 世界 \U0001f980 line\u2028separator \u00a0 end"

    @proves("write, allowed", pb.FEATURE_WORKSPACE, uses=("tools",))
    async def test_write(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=ALLOWED, leaves=["notes.txt"])
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert "hello from the scripted model" in (harness.workspace / "notes.txt").read_text()
        call = next(call for call in seen.of("tool_call") if call.input_json)
        assert call.kind == pb.TOOL_KIND_EDIT
        assert "hello from the scripted model" in call.input_json
        statuses = seen.statuses(call.id)
        assert statuses[-1] == pb.TOOL_STATUS_COMPLETED
        if harness.has(pb.FEATURE_TOOL_START):
            assert statuses[0] in {pb.TOOL_STATUS_PENDING, pb.TOOL_STATUS_RUNNING}
        if harness.has(pb.FEATURE_FILE_CHANGES):
            (change,) = seen.of("file_change")
            assert change.path == str(harness.workspace / "notes.txt")
            # Concluded from a call, it is not reported where the file was read too late.
            if change.operation != pb.FILE_OPERATION_UNSPECIFIED or change.provenance == pb.PROVENANCE_NATIVE:
                assert change.operation == pb.FILE_OPERATION_CREATE
            assert not change.diff or "+hello from the scripted model" in change.diff

    @proves("failing tool", uses=("tools",))
    async def test_failing_tool(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TOOL_FAIL", permissions=ALLOWED)
        (failed,) = seen.of("tool_result")
        assert failed.status == pb.TOOL_STATUS_FAILED
        assert failed.is_error
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert seen.result.counters.failed_tool_calls == 1
        assert seen.text.startswith("That failed: ")

    @proves("failing command", uses=("shell",))
    async def test_failing_command(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_SHELL_FAIL", permissions=ALLOWED)
        (ended,) = seen.of("tool_result")
        # Not every agent calls that a failure, nor gives the exit code by itself.
        assert ended.exit_code == 3 or (not ended.HasField("exit_code") and "3" in ended.content)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED

    @proves("two tools", uses=("shell",))
    async def test_parallel_tools(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_PARALLEL", permissions=ALLOWED)
        results = {result.tool_call_id: result.content for result in seen.of("tool_result")}
        first, second = sorted(results.values())
        assert ("first" in first, "second" in second) == (True, True)
        assert set(results) == {call.id for call in seen.of("tool_call")}
        assert "Two results: " in seen.text

    @proves("200 KB line")
    async def test_a_line_of_200_kb(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_LINE")
        assert seen.text == "0123456789abcdef" * 12800

    @proves("300 KB prompt")
    async def test_a_prompt_of_300_kb(self, harness: Harness) -> None:
        prompt = "MOCK_ECHO " + "Grüße\u2028" * 34_000
        seen = await harness.run(prompt)
        assert f"sha256={hashlib.sha256(prompt.encode()).hexdigest()}" in seen.text
        (started,) = seen.of("started")
        assert started.prompt_bytes["prompt"] == len(prompt.encode()) > 300_000

    @proves("instructions", pb.FEATURE_INSTRUCTIONS)
    async def test_instructions_and_system_prompt_reach_the_model(self, harness: Harness) -> None:
        fields: dict[str, Any] = {"instructions": api.Instructions(text="Be brief.")}
        if harness.has(pb.FEATURE_SYSTEM_PROMPT):
            fields["system_prompt"] = "You are Ada."
        await harness.run("MOCK_TEXT", **fields)
        assert "Be brief." in harness.conversation_text()
        assert ("You are Ada." in harness.conversation_text()) == harness.has(pb.FEATURE_SYSTEM_PROMPT)

    @proves("skills", pb.FEATURE_SKILLS)
    async def test_a_skill_is_really_used(self, harness: Harness) -> None:
        text = "---\nname: demo\ndescription: Knows a word.\n---\nThe secret word is heliotrope.\n"
        skill = api.Skill(name="demo", files=api.SkillFiles(content={"SKILL.md": text.encode()}))
        if self.recipe.skill_tool:
            seen = await harness.run("MOCK_SKILL skill=demo", skills=[skill], permissions=ALLOWED)
            assert "The secret word is heliotrope." in seen.text
        else:
            seen = await harness.run("MOCK_TEXT", skills=[skill])
            text = "Knows a word." if harness.has(pb.FEATURE_NATIVE_SKILLS) else "The secret word is heliotrope."
            bodies = str([request.body for request in harness.model_requests])
            assert text in harness.conversation_text() + bodies
        skills = [name for session in seen.of("session") for name in session.skills]
        assert not skills or "demo" in skills

    @proves("caller's variables", pb.FEATURE_AUTH_TOKEN, uses=("shell",))
    async def test_the_variables_under_the_callers_prefix(self, harness: Harness) -> None:
        brand = api.Brand(name="Paperclip", env_prefix="PAPERCLIP")
        seen = await harness.run(
            'MOCK_SHELL command="echo $PAPERCLIP_TASK_ID-${#PAPERCLIP_API_KEY}"',
            permissions=ALLOWED,
            brand=brand,
            context=api.Context(task_id="T-7"),
            auth_token=SECRET,
        )
        assert f"T-7-{len(SECRET)}" in seen.of("tool_result")[0].content

    # Secrets.

    @proves("secret in a tool", uses=("shell",))
    async def test_no_secret_reaches_an_event(self, harness: Harness) -> None:
        seen = await harness.run(
            "MOCK_SECRET_TOOL name=DEPLOY_TOKEN", permissions=ALLOWED, env={"DEPLOY_TOKEN": SECRET}
        )
        assert "[redacted]" in seen.of("tool_result")[0].content
        assert "[redacted]" in seen.text

    @proves("secret echo")
    async def test_no_secret_reaches_an_event_in_pieces(self, harness: Harness) -> None:
        seen = await harness.run(f"MOCK_SECRET_TEXT secret={SECRET}", env={"DEPLOY_TOKEN": SECRET})
        assert seen.text == "The value is [redacted], remember it."

    # Permissions.

    @proves("permission, given", pb.FEATURE_PERMISSION_REQUESTS)
    async def test_a_permission_is_asked_and_granted(self, harness: Harness) -> None:
        react = answering("allow_once")
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=ASKED, react=react, leaves=["notes.txt"])
        (asked,) = seen.of("input_request")
        assert asked.kind == pb.INPUT_KIND_PERMISSION
        assert list(asked.subject.paths) == [str(harness.workspace / "notes.txt")]
        assert asked.default_answer.option_ids
        assert seen.statuses(asked.subject.tool_call_id)[-3:] == [
            pb.TOOL_STATUS_AWAITING_PERMISSION,
            pb.TOOL_STATUS_RUNNING,
            pb.TOOL_STATUS_COMPLETED,
        ]
        assert pb.RUN_PHASE_WAITING_FOR_INPUT in seen.phases

    @proves("permission, refused", pb.FEATURE_PERMISSION_REQUESTS)
    async def test_a_permission_is_asked_and_refused(self, harness: Harness) -> None:
        react = answering("reject_once", message="Not in this workspace.")
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=ASKED, react=react)
        assert len(seen.of("input_request")) == 1
        (refused,) = seen.of("tool_result")
        assert refused.status == pb.TOOL_STATUS_DENIED
        assert harness.lacks("refusal_message") or "Not in this workspace." in refused.content
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert seen.result.counters.denied_tool_calls == 1

    @proves("write, denied unattended", pb.FEATURE_WORKSPACE, uses=("tools", "denial"))
    async def test_an_unattended_write_is_a_refusal_and_a_notice(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_WRITE path=notes.txt")
        assert not (harness.workspace / "notes.txt").exists()
        assert DENIALS & set(seen.notices)
        assert seen.of("input_request") == []
        assert pb.TOOL_STATUS_COMPLETED not in [result.status for result in seen.of("tool_result")]
        if harness.has(pb.FEATURE_PERMISSION_REQUESTS):
            assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_DENIED]

    @proves("permission by rule", pb.FEATURE_PERMISSION_REQUESTS)
    async def test_a_rule_decides(self, harness: Harness) -> None:
        allow = pb.PermissionRule(
            decision=pb.PERMISSION_DECISION_ALLOW, tool_kind=pb.TOOL_KIND_EDIT, path_glob=f"{harness.workspace}/*.txt"
        )
        seen = await harness.run(
            "MOCK_WRITE path=notes.txt", permissions=pb.Permissions(rules=[allow]), leaves=["notes.txt"]
        )
        assert seen.of("input_request") == []
        seen = await harness.run(
            "MOCK_WRITE path=notes.md", permissions=pb.Permissions(rules=[allow]), leaves=["notes.txt"]
        )
        assert seen.of("tool_result")[0].status == pb.TOOL_STATUS_DENIED

    @proves("MCP denied by rule", pb.FEATURE_MCP_SERVERS, pb.FEATURE_PERMISSION_REQUESTS)
    async def test_a_rule_against_tools_of_mcp_servers_holds(self, harness: Harness) -> None:
        deny = pb.PermissionRule(decision=pb.PERMISSION_DECISION_DENY, tool_kind=pb.TOOL_KIND_MCP)
        rules = pb.Permissions(default_decision=pb.PERMISSION_DECISION_ALLOW, rules=[deny])
        seen = await harness.run("MOCK_COUNT", mcp_servers=[words_server(after_s=3)], permissions=rules)
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_DENIED]
        assert seen.of("tool_call")[-1].kind == pb.TOOL_KIND_MCP
        assert seen.of("tool_call")[-1].mcp_server == "words"
        assert "permission_denied" in seen.notices
        assert f"{len(SECRET)} letters" not in str([request.body for request in harness.model_requests])

    # Sessions.

    @proves("resume with recall", pb.FEATURE_RESUME)
    async def test_a_session_goes_on(self, harness: Harness) -> None:
        first = await harness.run("MOCK_TEXT word=plover")
        handle = first.result.session.handle
        second = await harness.run("MOCK_RECALL", session=resuming(handle))
        assert "word=plover" in second.text
        assert second.of("started")[0].session_disposition == pb.SESSION_DISPOSITION_RESUME
        assert second.result.session.handle.native_id == handle.native_id
        # What this run used, not what the session did.
        assert second.result.usage.tokens.input == first.result.usage.tokens.input
        assert second.result.usage.cost.amount == first.result.usage.cost.amount

    @proves("session copied", pb.FEATURE_FORK)
    async def test_a_session_is_copied(self, harness: Harness) -> None:
        handle = (await harness.run("MOCK_TEXT word=plover")).result.session.handle
        copied = await harness.run("MOCK_RECALL", session=resuming(handle, fork=True))
        assert "word=plover" in copied.text
        assert copied.of("started")[0].session_disposition == pb.SESSION_DISPOSITION_FORK
        assert copied.result.session.handle.native_id != handle.native_id

    @proves("unknown session", pb.FEATURE_RESUME_REJECTION)
    async def test_a_lost_session_is_begun_anew(self, harness: Harness) -> None:
        handle = pb.SessionHandle(adapter=harness.adapter, native_id=self.recipe.unknown_session)
        seen = await harness.run("MOCK_RECALL", session=resuming(handle))
        first, second = seen.of("started")
        assert first.session_disposition == pb.SESSION_DISPOSITION_RESUME
        assert second.session_disposition == pb.SESSION_DISPOSITION_RESUME_REFUSED
        (ended,) = seen.of("attempt_ended")
        assert ended.failure.kind == pb.FAILURE_KIND_SESSION_LOST
        assert ended.session.change == pb.SESSION_CHANGE_CLEAR
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert seen.result.session.handle.native_id != self.recipe.unknown_session

    @proves("unknown session", pb.FEATURE_RESUME_REJECTION)
    async def test_a_lost_session_whose_fresh_start_fails_is_forgotten(self, harness: Harness) -> None:
        handle = pb.SessionHandle(adapter=harness.adapter, native_id=self.recipe.unknown_session)
        seen = await harness.run("MOCK_401", session=resuming(handle))
        assert len(seen.of("started")) == 2
        assert seen.result.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
        assert seen.result.session.change == pb.SESSION_CHANGE_CLEAR

    @proves("one run per session", pb.FEATURE_RESUME)
    async def test_a_session_has_one_run_at_a_time(self, harness: Harness) -> None:
        handle = (await harness.run("MOCK_TEXT word=plover")).result.session.handle

        async def act(stream: Any) -> None:
            await harness.model_waits()
            with pytest.raises(DragomanError) as caught:
                await harness.follow(harness.request("MOCK_RECALL", session=resuming(handle)))
            assert caught.value.reason == Reason.SESSION_BUSY
            if harness.has(pb.FEATURE_FORK):
                copied = await harness.follow(harness.request("MOCK_RECALL", session=resuming(handle, fork=True)))
                assert "word=plover" in copied.text
            await stream.cancel(grace_s=self.recipe.grace_s)

        react = when(lambda event: event.state.phase == RUNNING, act)
        seen = await harness.run("MOCK_STALL_MID", session=resuming(handle), react=react)
        assert seen.result.outcome == pb.OUTCOME_CANCELLED

    @proves("session of another directory", pb.FEATURE_RESUME, pb.FEATURE_WORKSPACE)
    async def test_a_session_of_another_directory_is_not_resumed(self, harness: Harness) -> None:
        handle = (await harness.run("MOCK_TEXT word=plover")).result.session.handle
        elsewhere = harness.make_workspace("elsewhere")
        seen = await harness.run("MOCK_RECALL", session=resuming(handle), cwd=elsewhere)
        (started,) = seen.of("started")
        assert started.session_disposition == pb.SESSION_DISPOSITION_RESUME_REFUSED
        assert str(harness.workspace) in started.session_reason
        assert "word=unknown" in seen.text

    # What goes wrong.

    @proves("{scenario}")
    @pytest.mark.parametrize("scenario", ["400", "401", "429", "500", "CUT"])
    async def test_a_failure_of_the_models_service(self, harness: Harness, scenario: str) -> None:
        await self.expect_failure(harness, scenario)

    @proves("no finish reason")
    async def test_a_stream_without_a_finish_reason_is_no_success(self, harness: Harness) -> None:
        await self.expect_failure(harness, "CUT_END")
        assert len(harness.model_requests) <= MOST_ATTEMPTS

    @proves("cut by the output limit")
    async def test_an_answer_cut_by_the_output_limit(self, harness: Harness) -> None:
        await self.expect_failure(harness, "MAX_TOKENS")

    @proves("further failures")
    @pytest.mark.parametrize("scenario", ["529", "OVERFLOW", "NO_CREDIT", "NO_MODEL", "REFUSAL"])
    async def test_a_failure_that_only_some_agents_report(self, harness: Harness, scenario: str) -> None:
        if scenario not in self.recipe.failures:
            pytest.skip("not supported by the agent: it has no word of its own for it")
        await self.expect_failure(harness, scenario)

    async def expect_failure(self, harness: Harness, scenario: str) -> None:
        """Run into a scripted failure, and check that it is reported as the recipe says."""
        failing = self.recipe.failures[scenario]
        allowed: dict[str, Any] = {} if harness.lacks("tools") else {"permissions": ALLOWED}
        seen = await harness.run(f"MOCK_{scenario}", **allowed)
        failure = seen.result.failure
        assert seen.result.outcome == pb.OUTCOME_FAILED
        assert (failure.kind, failure.code) == (failing.kind, failing.code)
        assert (failure.http_status if failure.HasField("http_status") else None) == failing.http_status
        assert failure.message
        assert failure.errors
        retries = [state for state in seen.of("state") if state.phase == pb.RUN_PHASE_RETRYING]
        assert bool(retries) == failing.retries
        assert all(state.retry_attempt for state in retries)
        assert seen.result.counters.retries == len(retries)
        silently = self.recipe.retries_silently(failing.kind)
        assert failure.agent_retried == (failing.retries or silently), "or a router multiplies tries"

    @proves("429 that passes")
    async def test_a_failure_that_passes(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_429_ONCE")
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert seen.text.endswith("Recovered from the rate limit.")
        if self.recipe.failures["429"].retries and not self.recipe.failures["429"].first_unseen:
            retrying = pb.RUN_PHASE_RETRYING
            assert seen.phases == [pb.RUN_PHASE_STARTING, RUNNING, retrying, RUNNING]
            (state,) = [state for state in seen.of("state") if state.phase == retrying]
            assert state.retry_cause in {pb.FAILURE_KIND_RATE_LIMITED, pb.FAILURE_KIND_UNSPECIFIED}

    @proves("cut that passes")
    async def test_a_cut_that_passes_leaves_one_answer(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_CUT_ONCE")
        assert seen.text == seen.result.summary == "Recovered from the cut."

    @proves("turn limit", pb.FEATURE_MAX_TURNS, uses=("shell",))
    async def test_the_turn_limit(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_LOOP", permissions=ALLOWED, config=self.recipe.max_turns)
        assert seen.result.outcome == pb.OUTCOME_FAILED
        assert seen.result.failure.kind == pb.FAILURE_KIND_MAX_TURNS
        assert len(seen.of("tool_result")) == 2
        assert seen.result.usage.tokens.input

    @proves("stall, idle limit")
    async def test_silence_ends_by_the_idle_limit(self, harness: Harness) -> None:
        for idle_s in (self.recipe.idle_s, PATIENCE_S):
            seen = await harness.run("MOCK_STALL_MID", limits=limits(idle=idle_s, grace=8))
            assert seen.result.outcome == pb.OUTCOME_TIMED_OUT
            assert seen.result.failure.kind == pb.FAILURE_KIND_IDLE_TIMEOUT
            if harness.model_requests:  # else its start was silent for longer: the machine is busy
                break
        assert harness.model_requests, "it was not the model that was silent"

    @proves("wall limit")
    async def test_a_run_that_takes_too_long(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_SLOW", limits=limits(wall=self.recipe.wall_s, grace=8))
        assert seen.result.outcome == pb.OUTCOME_TIMED_OUT
        assert seen.result.failure.kind == pb.FAILURE_KIND_WALL_TIMEOUT

    @proves("not installed", uses=("program",))
    async def test_an_agent_that_is_not_installed(self, harness: Harness) -> None:
        env = {"PATH": "/usr/bin:/bin"}
        seen = await harness.run("MOCK_TEXT", env=env)
        assert len(seen.of("started")) == 1
        assert seen.result.failure.kind == pb.FAILURE_KIND_NOT_INSTALLED
        (found,) = await harness.client.detect(harness.adapter, env={**harness.env, **env})
        assert not found.available
        assert found.hint

    # Stopping.

    @proves("cancel while streaming")
    async def test_cancel_while_it_speaks(self, harness: Harness) -> None:
        async def act(stream: Any) -> None:
            await harness.model_waits()
            await stream.cancel(grace_s=PATIENCE_S if says_usage else self.recipe.grace_s, reason="enough")

        says_usage = not harness.lacks("usage_when_cancelled") and not harness.lacks("usage")
        streams = harness.has(pb.FEATURE_TEXT_DELTAS)
        react = when(lambda event: bool(event.text.delta) if streams else event.state.phase == RUNNING, act)
        seen = await harness.run("MOCK_STALL_MID", react=react)
        assert seen.result.outcome == pb.OUTCOME_CANCELLED
        assert seen.result.tree_confirmed_dead
        if says_usage:
            assert seen.result.usage.tokens.input, "what was used is lost"
        if harness.has(pb.FEATURE_RESUME):
            assert seen.result.session.change == pb.SESSION_CHANGE_SET

    @proves("cancel while streaming")
    async def test_cancel_before_its_first_word(self, harness: Harness) -> None:
        async def act(stream: Any) -> None:
            await harness.model_waits()
            await stream.cancel(grace_s=self.recipe.grace_s)

        seen = await harness.run("MOCK_STALL", react=when(lambda event: event.state.phase == RUNNING, act))
        assert seen.result.outcome == pb.OUTCOME_CANCELLED

    @proves("cancel at once")
    async def test_cancel_at_the_very_beginning(self, harness: Harness) -> None:
        react = when(is_kind("started"), lambda stream: stream.cancel(grace_s=self.recipe.grace_s))
        seen = await harness.run("MOCK_STALL", react=react)  # what is stalled cannot be done by then
        assert seen.result.outcome == pb.OUTCOME_CANCELLED

    @proves("cancel while it asks", pb.FEATURE_PERMISSION_REQUESTS)
    async def test_cancel_while_it_waits_for_an_answer(self, harness: Harness) -> None:
        react = when(is_kind("input_request"), lambda stream: stream.cancel(grace_s=self.recipe.grace_s))
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=ASKED, react=react)
        assert seen.result.outcome == pb.OUTCOME_CANCELLED
        assert [end.resolution for end in seen.of("input_resolved")] == [pb.INPUT_RESOLUTION_DROPPED]

    # Several.

    @proves("parallel runs")
    async def test_two_runs_at_once(self, harness: Harness) -> None:
        there = harness.make_workspace("second")
        one = harness.request("MOCK_SECRET_TEXT secret=one")
        two = harness.request("MOCK_SECRET_TEXT secret=two", cwd=there)
        first, second = await asyncio.gather(harness.follow(one), harness.follow(two))
        assert ("one" in first.text, "two" in second.text) == (True, True)
        if harness.has(pb.FEATURE_RESUME):
            assert first.result.session.handle.native_id != second.result.session.handle.native_id
        assert harness.processes() == []

    # Before a run.

    @proves("Detect")
    async def test_detect(self, harness: Harness) -> None:
        (found,) = await harness.client.detect(harness.adapter, env=harness.env)
        assert found.available
        assert found.version or harness.lacks("program")
        if not harness.lacks("program"):
            assert found.confidence == api.DETECTION_CONFIDENCE_CONFIDENT
        assert found.auth == self.recipe.auth
        origin = pb.CAPABILITY_ORIGIN_PROBED if self.recipe.tested_version else pb.CAPABILITY_ORIGIN_DECLARED
        assert {item.origin for item in found.capabilities.items} == {origin}

    @proves("TestEnvironment, quick")
    async def test_a_quick_test_spends_nothing_and_changes_nothing(self, harness: Harness) -> None:
        before = sorted(harness.isolation.home.rglob("*"))
        tested = await harness.client.test_environment(
            harness.adapter, config=harness.config, env=harness.env, cwd=str(harness.workspace)
        )
        assert tested.status == self.recipe.tested
        assert harness.requests == []
        assert sorted(harness.isolation.home.rglob("*")) == before
        assert harness.changed(harness.workspace) == []

    @proves("TestEnvironment, live")
    async def test_a_live_test_echoes_its_nonce(self, harness: Harness) -> None:
        tested = await harness.client.test_environment(
            harness.adapter,
            live=True,
            config=harness.config,
            env=harness.env,
            cwd=str(harness.workspace),
            request=api.TestEnvironmentRequest(timeout=duration_pb2.Duration(seconds=int(PATIENCE_S))),
        )
        codes = {check.code: check.level for check in tested.checks}
        assert codes["live_ok"] == pb.SEVERITY_INFO
        assert "dragoman-" in harness.conversation_text()
        assert harness.changed(harness.workspace) == []
        assert harness.processes() == []


class SharedAdapter:
    """Mixed in before `AgentSuite`: all tests of the class share one served adapter, home and model server."""

    recipe: ClassVar[Recipe]
    scenarios: ClassVar[tuple[Scenario, ...]] = ()

    @pytest.fixture(scope="class")
    @classmethod
    async def served(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedAdapter]:
        root = tmp_path_factory.mktemp("shared")
        async with ServedAdapter.serve(cls.recipe, scripts(cls.recipe, cls.scenarios), root) as served:
            yield served
