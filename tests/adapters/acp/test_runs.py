"""Whole runs of the generic adapter with an agent that pretends."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.acp import adapter
from dragoman.client import Client, RunStream, execute_request
from dragoman.sdk import AdapterServer
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.acp import pretender

SCRIPT = str(Path(pretender.__file__))
LOADS = {"loadSession": True}
CALL = {"toolCallId": "t", "title": "Write a.txt", "kind": "edit", "locations": [{"path": "a.txt"}]}
OPTIONS = [
    {"optionId": "ever", "kind": "allow_always", "name": "Always"},
    {"optionId": "once", "kind": "allow_once", "name": "Once"},
    {"optionId": "no", "kind": "reject_once", "name": "No"},
]
ASK = ["call", "session/request_permission", {"toolCall": CALL, "options": OPTIONS}]
ALLOWED = pb.Permissions(auto_approve=True)
ASKED = pb.Permissions(interactive=True)

React = Callable[[pb.AgentEvent, RunStream], Awaitable[None]]


class Place:
    """The adapter, served, and a workspace."""

    def __init__(self, client: Client, workspace: Path) -> None:
        self.client = client
        self.workspace = workspace
        self.events: list[pb.AgentEvent] = []

    async def run(
        self,
        *steps: list[Any],
        setup: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        react: React | None = None,
        **fields: Any,
    ) -> pb.Result:
        """Run the pretender; what comes is in ``events``."""
        args = [SCRIPT, json.dumps(setup or {}), json.dumps(steps)]
        full = {"command": sys.executable, "args": args, **(config or {})}
        request = execute_request("acp", fields.pop("prompt", "do it"), cwd=str(self.workspace), config=full)
        request.MergeFrom(api.ExecuteRequest(**fields))
        self.events = []
        async with self.client.execute(request) as stream:
            async for event in stream:
                self.events.append(event)
                if react is not None:
                    await react(event, stream)
        check_stream(self.events)
        return self.events[-1].result

    def of(self, kind: str) -> list[Any]:
        return [getattr(event, kind) for event in self.events if event.WhichOneof("body") == kind]

    @property
    def text(self) -> str:
        return "".join(text.delta for text in self.of("text"))

    @property
    def answers(self) -> list[Any]:
        """What the agent was answered."""
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    server = AdapterServer(adapter(), ["127.0.0.1:0"], insecure_tcp_without_token=True)
    await server.start()
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    try:
        async with Client(server.addresses[0]) as client:
            yield Place(client, workspace)
    finally:
        await server.stop(0)


def when(kind: str, act: Callable[[RunStream, Any], Awaitable[Any]]) -> React:
    async def react(event: pb.AgentEvent, stream: RunStream) -> None:
        if event.WhichOneof("body") == kind:
            await act(stream, getattr(event, kind))

    return react


async def test_a_prompt_and_what_goes_before_it(place: Place) -> None:
    skill = api.Skill(name="demo", files=api.SkillFiles(content={"SKILL.md": b"The word is heliotrope."}))
    result = await place.run(
        ["echo"], prompt="do it", system_prompt="You are Ada.", instructions={"text": "Be brief."}, skills=[skill]
    )
    assert result.outcome == pb.OUTCOME_SUCCEEDED
    parts = ["You are Ada.", "Be brief.", "The word is heliotrope.", "do it"]
    places = [result.summary.index(part) for part in parts]
    assert places == sorted(places)
    (started,) = place.of("started")
    assert (started.prompt_bytes["prompt"], started.prompt_bytes["system_prompt"]) == (5, 12)
    assert (result.exit_code, result.session.handle.native_id) == (0, "pretended-1")
    assert any(notice.message.startswith("Pretender 0.1 offers only") for notice in place.of("notice"))


async def test_a_slash_reaches_the_model_unless_commands_are_allowed(place: Place) -> None:
    # Not a blank: there are agents that strip blanks, and then look for a command.
    assert (await place.run(["echo"], prompt="/quit")).summary == "\u200b/quit"
    assert (await place.run(["echo"], prompt="\n /quit")).summary == "\u200b\n /quit"
    assert (await place.run(["echo"], prompt="/quit", config={"allowSlashCommands": True})).summary == "/quit"


# Permissions.


@pytest.mark.parametrize(
    ("permissions", "option"),
    [
        (pb.Permissions(), "no"),
        (ALLOWED, "once"),
        (
            pb.Permissions(rules=[pb.PermissionRule(decision=pb.PERMISSION_DECISION_ALLOW, path_glob="*/a.txt")]),
            "once",
        ),
    ],
)
async def test_policy_answers(place: Place, permissions: pb.Permissions, option: str) -> None:
    await place.run(ASK, permissions=permissions)
    assert place.answers == [{"outcome": {"outcome": "selected", "optionId": option}}]
    denied = [notice.code for notice in place.of("notice") if notice.code == "permission_denied"]
    assert bool(denied) == (option == "no")


async def test_the_caller_answers(place: Place) -> None:
    async def act(stream: RunStream, asked: pb.InputRequest) -> None:
        assert [option.label for option in asked.options] == ["Always", "Once", "No"]
        await stream.respond(asked.id, pb.InputAnswer(option_ids=["ever"]))

    await place.run(ASK, permissions=ASKED, react=when("input_request", act))
    assert place.answers == [{"outcome": {"outcome": "selected", "optionId": "ever"}}]


async def test_a_form_is_declined_in_an_unattended_run(place: Place) -> None:
    form = ["call", "elicitation/create", {"mode": "form", "message": "How?", "requestedSchema": {"type": "object"}}]
    await place.run(form)
    assert place.answers == [{"action": "decline"}]


# Files and commands.


async def test_nothing_is_offered_by_default(place: Place) -> None:
    await place.run(
        ["call", "fs/read_text_file", {"path": "$cwd/a.txt"}],
        ["call", "terminal/create", {"command": "ls"}],
        permissions=ALLOWED,
    )
    assert [answer["code"] for answer in place.answers] == [-32601, -32601]


# Sessions.


async def test_history_is_not_emitted_again(place: Place) -> None:
    handle = pb.SessionHandle(adapter="acp", native_id="pretended-1", cwd=str(place.workspace))
    session = api.SessionSelector(handle=handle)
    setup = {"able": LOADS, "history": ["Said before."]}
    result = await place.run(["say", "Said now."], setup=setup, session=session)
    assert (place.text, result.summary) == ("Said now.", "Said now.")
    assert place.of("started")[0].session_disposition == pb.SESSION_DISPOSITION_RESUME
    assert result.session.handle.native_id == "pretended-1"


@pytest.mark.parametrize("setup", [{}, {"able": LOADS, "unknown": True}])
async def test_a_lost_session_is_begun_anew(place: Place, setup: dict[str, Any]) -> None:
    handle = pb.SessionHandle(adapter="acp", native_id="gone", cwd=str(place.workspace))
    result = await place.run(["say", "New."], setup=setup, session=api.SessionSelector(handle=handle))
    assert [ended.failure.kind for ended in place.of("attempt_ended")] == [pb.FAILURE_KIND_SESSION_LOST]
    assert (result.outcome, result.session.handle.native_id) == (pb.OUTCOME_SUCCEEDED, "pretended-1")


# Ends.


async def test_a_missing_login_is_reported_with_what_to_do(place: Place) -> None:
    result = await place.run(setup={"auth": True})
    assert result.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
    assert "Run `pretend login`" in result.failure.message


@pytest.mark.parametrize("grace_s", [5.0, 0.0])
async def test_cancelled_it_says_how_far_it_came(place: Place, grace_s: float) -> None:
    react = when("text", lambda stream, _: stream.cancel(grace_s=grace_s))
    running = ["update", "tool_call", {"toolCallId": "t", "status": "in_progress"}]
    result = await place.run(running, ["say", "I begin"], ["wait"], react=react)
    assert result.outcome == pb.OUTCOME_CANCELLED
    assert result.signal == ("" if grace_s else "SIGKILL")
    assert result.session.change == pb.SESSION_CHANGE_SET
    if grace_s:
        assert [ended.status for ended in place.of("tool_result")] == [pb.TOOL_STATUS_CANCELLED]


async def test_cancelled_while_it_asks(place: Place) -> None:
    react = when("input_request", lambda stream, _: stream.cancel(grace_s=5))
    result = await place.run(ASK, ["wait"], permissions=ASKED, react=react)
    assert (result.outcome, result.exit_code) == (pb.OUTCOME_CANCELLED, 0)
    assert place.answers == [{"outcome": {"outcome": "cancelled"}}]


async def test_an_agent_that_hears_nothing_is_killed(place: Place) -> None:
    react = when("text", lambda stream, _: stream.cancel(grace_s=0.3))
    result = await place.run(["say", "x"], ["hang"], react=react)
    assert (result.outcome, result.signal, result.tree_confirmed_dead) == (pb.OUTCOME_CANCELLED, "SIGKILL", True)


async def test_a_crash_in_the_middle(place: Place) -> None:
    result = await place.run(["say", "I begin"], ["crash", 7])
    assert (result.failure.kind, result.exit_code) == (pb.FAILURE_KIND_PROCESS_CRASHED, 7)
    assert result.summary == "I begin"


async def test_an_error_and_an_empty_turn(place: Place) -> None:
    result = await place.run(["error", -32603, "HTTP 401 Unauthorized"])
    assert (result.failure.kind, result.failure.http_status) == (pb.FAILURE_KIND_AUTH_REQUIRED, 401)
    assert (await place.run()).failure.kind == pb.FAILURE_KIND_NO_RESULT


async def test_two_runs_at_once_do_not_meet(place: Place) -> None:
    other = Place(place.client, place.workspace)
    await asyncio.gather(place.run(["echo"], prompt="one"), other.run(["echo"], prompt="two"))
    assert (place.text, other.text) == ("one", "two")


# Before a run.


async def test_detect_runs_only_commands_that_were_declared_safe(place: Place, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\necho 'trap 1.2.3'\necho x > {tmp_path}/sprung\n")
    trap.chmod(0o755)
    (found,) = await place.client.detect("acp", config={"command": str(trap)})
    assert (found.available, found.version) == (True, "")
    assert not (tmp_path / "sprung").exists()
    (found,) = await place.client.detect("acp", config={"command": str(trap), "askVersion": True})
    assert found.version == "1.2.3"
    (found,) = await place.client.detect("acp", config={"command": str(tmp_path / "no")})
    assert not found.available


async def test_a_live_test_talks_to_the_agent(place: Place) -> None:
    args = [SCRIPT, "{}", json.dumps([["echo"]])]
    config = {"command": sys.executable, "args": args}
    tested = await place.client.test_environment("acp", live=True, config=config, cwd=str(place.workspace))
    codes = {check.code for check in tested.checks}
    assert "live_ok" in codes, codes
    assert not list(place.workspace.iterdir())


async def test_only_directories_that_the_caller_names_are_missed(place: Place, tmp_path: Path) -> None:
    def missed() -> bool:
        return "acp_no_additional_directories" in [notice.code for notice in place.of("notice")]

    (tmp_path / "more").mkdir()
    attached = [api.Attachment(name="a.txt", media_type="text/plain", content=b"text")]
    await place.run(attachments=attached)
    assert not missed()
    await place.run(workspace=api.Workspace(additional_directories=[str(tmp_path / "more")]))
    assert missed()
