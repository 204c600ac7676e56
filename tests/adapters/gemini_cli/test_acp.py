"""What Gemini CLI leaves out of the Agent Client Protocol, and what is put in: its frames as they were seen."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from dragoman.adapters.gemini_cli.acp import ACP_OPTIONS, GeminiAcpParser
from dragoman.adapters.gemini_cli.parse import StreamParser
from dragoman.sdk import Answer, Ask, CloseInput, Line, Output, Write
from dragoman.sdk.acp import Conversation
from dragoman.sdk.parsing import NotUpdated, Update, Updated
from dragoman.v1 import event_pb2 as pb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SESSION = "43f61451-c68a-4b21-ad38-5f46efc688eb"
WRITE_ID = "write_file__call_000002_1"
SHELL_ID = "run_shell_command__call_000004_0"
OPTIONS = [
    {"optionId": "proceed_always", "name": "Allow for this session", "kind": "allow_always"},
    {"optionId": "proceed_once", "name": "Allow", "kind": "allow_once"},
    {"optionId": "cancel", "name": "Reject", "kind": "reject_once"},
]
DIFF = {"type": "diff", "path": "/ws/a.txt", "oldText": "", "newText": "hello\n", "_meta": {"kind": "add"}}
WRITE = {
    "toolCallId": WRITE_ID,
    "title": "Writing to a.txt",
    "content": [DIFF],
    "locations": [{"path": "/ws/a.txt"}],
    "kind": "edit",
}
SHELL = {"toolCallId": SHELL_ID, "title": "echo before; exit 3", "content": [], "locations": [], "kind": "execute"}
COMMANDS = {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "memory"}]}


class Talk:
    """A conversation with Gemini CLI, up to the prompt."""

    def __init__(self, session_id: str = "", mode: str = "") -> None:
        conversation = Conversation(cwd="/ws", prompt="Do it.", session_id=session_id)
        self.parser = GeminiAcpParser(conversation, ACP_OPTIONS, "1")
        self.outputs: list[Output] = []
        self.hear({"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}})
        offered = [{"id": name} for name in ("default", "autoEdit", "yolo")]
        modes = {"modes": {"currentModeId": mode, "availableModes": offered}} if mode else {}
        self.hear({"id": 2, "result": {"sessionId": SESSION, "models": {"currentModelId": "gemini-x"}, **modes}})

    def hear(self, *frames: dict[str, Any], stderr: str = "") -> list[Output]:
        heard: list[Output] = []
        for words in stderr.splitlines():
            heard += self.parser.line("stderr", Line(words.encode(), 0, True))
        for frame in frames:
            heard += self.parser.line("stdout", Line(json.dumps({"jsonrpc": "2.0", **frame}).encode(), 0, True))
        self.outputs += heard
        return heard

    def update(self, **fields: Any) -> list[Output]:
        return self.hear({"method": "session/update", "params": {"sessionId": SESSION, "update": fields}})

    def say(self, words: str, kind: str = "message") -> list[Output]:
        return self.update(sessionUpdate=f"agent_{kind}_chunk", content={"type": "text", "text": words})

    def asks(self, call: dict[str, Any]) -> Ask:
        params = {"sessionId": SESSION, "options": OPTIONS, "toolCall": {**call, "status": "pending"}}
        heard = self.hear({"id": 0, "method": "session/request_permission", "params": params})
        (ask,) = [output for output in heard if isinstance(output, Ask)]
        return ask

    def end(self, tokens: tuple[int, int] = (1200, 35), reason: str = "end_turn") -> pb.FailureKind.ValueType:
        counted = {"input_tokens": tokens[0], "output_tokens": tokens[1]}
        self.hear({"id": 3, "result": {"stopReason": reason, "_meta": {"quota": {"token_count": counted}}}})
        terminal = self.parser.report.terminal
        assert terminal is not None
        assert terminal.succeeded == (terminal.failure is None)
        return terminal.failure.kind if terminal.failure else pb.FAILURE_KIND_UNSPECIFIED


def of(outputs: Iterable[Output], kind: str) -> list[Any]:
    events = [output for output in outputs if isinstance(output, pb.AgentEvent)]
    return [getattr(event, kind) for event in events if event.WhichOneof("body") == kind]


def test_a_thought_has_no_empty_heading() -> None:
    talk = Talk()
    talk.say("****\nThe user wan", "thought")
    talk.say("****\nts it.", "thought")
    talk.say("**Subject**\nMore.", "thought")
    assert "".join(item.delta for item in of(talk.outputs, "thinking")) == "The user wants it.**Subject**\nMore."


def test_a_command_is_known_by_its_title_so_that_rules_can_decide() -> None:
    subject = Talk().asks(SHELL).request.subject
    assert (subject.command, subject.tool_name, subject.tool_kind) == (
        "echo before; exit 3",
        "run_shell_command",
        pb.TOOL_KIND_EXECUTE,
    )


def test_a_file_is_known_by_its_diff() -> None:
    talk = Talk()
    ask = talk.asks(WRITE)
    assert (ask.request.subject.tool_name, list(ask.request.subject.paths)) == ("write_file", ["/ws/a.txt"])
    ask.encode(Answer(allowed=True, option=ask.request.options[1]))
    talk.update(sessionUpdate="tool_call_update", status="completed", **WRITE)
    call, (change,) = of(talk.outputs, "tool_call")[-1], of(talk.outputs, "file_change")
    assert json.loads(call.input_json) == {"file_path": "/ws/a.txt", "content": "hello\n"}
    assert (change.operation, "+hello" in change.diff) == (pb.FILE_OPERATION_CREATE, True)


def test_another_mode_is_asked_for_by_its_name_in_the_protocol_and_announced_by_no_text() -> None:
    talk = Talk(mode="default")
    change = Update("u", permission_mode="auto_edit")
    (asked,) = talk.parser.update(change) or ()
    assert isinstance(asked, Write)
    request = json.loads(asked.data)
    params = {"sessionId": SESSION, "modeId": "autoEdit"}
    assert (request["method"], request["params"]) == ("session/set_mode", params)
    assert talk.say("[MODE_UPDATE] autoEdit") == []
    assert of(talk.say("[MODE_UPDATE] yolo"), "text"), "its model said that"
    assert Updated("u") in talk.hear({"id": request["id"], "result": {}})
    assert of(talk.outputs, "session")[-1].mode == "autoEdit"


def test_there_is_no_change_before_the_end_of_the_history() -> None:
    talk = Talk(session_id=SESSION, mode="default")
    assert talk.parser.update(Update("u", permission_mode="yolo")) is None


def test_json_lines_take_no_change() -> None:
    (output,) = StreamParser().update(Update("u", model="gemini-y"))
    assert isinstance(output, NotUpdated)


def test_a_refused_call_gets_no_further_update_so_it_ends_here() -> None:
    talk = Talk()
    ask = talk.asks(WRITE)
    assert b"cancel" in ask.encode(Answer(allowed=False, option=ask.request.options[2]))
    talk.say("Then not.")
    talk.say(" Sorry.")
    (result,) = of(talk.outputs, "tool_result")
    assert (result.tool_call_id, result.status) == (WRITE_ID, pb.TOOL_STATUS_DENIED)
    assert result.content == "It was not allowed."
    assert talk.end() == pb.FAILURE_KIND_UNSPECIFIED


def test_history_comes_after_the_session_is_loaded_and_is_not_of_this_run() -> None:
    talk = Talk(SESSION)
    assert any(isinstance(output, Write) and b"session/prompt" in output.data for output in talk.outputs)
    talk.update(sessionUpdate="user_message_chunk", content={"type": "text", "text": "Earlier."})
    talk.say("Answered earlier.")
    talk.update(**COMMANDS)
    talk.say("Now.")
    assert [item.delta for item in of(talk.outputs, "text") if item.delta] == ["Now."]
    assert of(talk.outputs, "message") == []


def asked(outputs: Iterable[Output]) -> list[str]:
    """Return the methods of what is asked."""
    return [json.loads(output.data)["method"] for output in outputs if isinstance(output, Write)]


def test_the_prompt_waits_until_no_history_is_left_wherever_that_comes() -> None:
    talk = Talk(SESSION, mode="default")
    settled = {"id": "history", "result": {}}
    assert asked(talk.outputs) == ["session/load", "session/set_mode"]
    talk.update(sessionUpdate="user_message_chunk", content={"type": "text", "text": "Earlier."})
    talk.update(**COMMANDS)
    assert asked(talk.hear(settled)) == ["session/set_mode"]
    talk.say("Answered earlier.")
    assert asked(talk.hear(settled)) == ["session/set_mode"]
    assert asked(talk.hear(settled)) == ["session/prompt"]
    talk.say("Now.")
    assert talk.hear(settled) == []
    assert [item.delta for item in of(talk.outputs, "text") if item.delta] == ["Now."]
    assert of(talk.outputs, "message") == []
    assert talk.end() == pb.FAILURE_KIND_UNSPECIFIED


def test_stopped_before_its_prompt_it_gets_none() -> None:
    talk = Talk(SESSION, mode="default")
    assert list(talk.parser.interrupt()) == [CloseInput()]
    assert talk.hear({"id": "history", "result": {}}) == []


def test_usage_is_its_own_count() -> None:
    talk = Talk()
    talk.say("Hi.")
    talk.end((1200, 35))
    usage = talk.parser.report.usage
    assert usage is not None
    assert (usage.tokens.input, usage.tokens.output) == (1200, 35)
    assert not usage.tokens.HasField("cache_read")
    assert talk.parser.report.provider == "google"


def test_a_turn_without_a_token_broke_off() -> None:
    talk = Talk()
    talk.say("Once upon")
    assert talk.end((0, 0)) == pb.FAILURE_KIND_NETWORK
    assert Talk().end((0, 0)) == pb.FAILURE_KIND_NO_RESULT


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("No previous sessions found for this project.", pb.FAILURE_KIND_SESSION_LOST),
        ('Invalid session identifier "x".', pb.FAILURE_KIND_SESSION_LOST),
    ],
)
def test_a_lost_session(message: str, kind: int) -> None:
    talk = Talk.__new__(Talk)
    talk.outputs = []
    talk.parser = GeminiAcpParser(Conversation(cwd="/ws", prompt="Do it.", session_id=SESSION), ACP_OPTIONS, "1")
    talk.hear({"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}})
    talk.hear({"id": 2, "error": {"code": -32603, "message": "Internal error", "data": {"details": message}}})
    terminal = talk.parser.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind == kind


def test_retries_that_are_reported_after_the_end_change_no_phase() -> None:
    talk = Talk()
    talk.hear(stderr="Attempt 1 failed with status 429. Retrying with backoff... _ApiError: {}")
    assert of(talk.outputs, "state") == []
    assert len(of(talk.outputs, "log")) == 1


_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KINDS = st.sampled_from(["agent_thought_chunk", "tool_call", "tool_call_update", "agent_message_chunk", "new"])
_KEYS = st.sampled_from(["toolCallId", "title", "content", "kind", "status", "locations", "rawInput"])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(_KINDS, st.dictionaries(_KEYS, _VALUES, max_size=5)), max_size=5))
def test_whatever_an_update_holds_nothing_raises(updates: list[tuple[str, dict[str, Any]]]) -> None:
    talk = Talk()
    for kind, rest in updates:
        talk.update(**{**rest, "sessionUpdate": kind})
    for event in talk.outputs:
        if isinstance(event, pb.AgentEvent):
            event.SerializeToString()


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=100))
def test_whatever_comes_nothing_raises(data: bytes) -> None:
    talk = Talk()
    for stream in ("stdout", "stderr"):
        list(talk.parser.line(stream, Line(data, 0, True)))


@pytest.mark.parametrize(
    ("counted", "tokens"),
    [
        (None, None),
        ({}, None),
        ({"input_tokens": 0, "output_tokens": 0}, None),
        ({"input_tokens": 3, "output_tokens": 0}, pb.TokenCounts(input=3, output=0)),
        ({"input_tokens": 0, "output_tokens": 2}, pb.TokenCounts(input=0, output=2)),
    ],
)
def test_what_a_turn_used(counted: dict[str, int] | None, tokens: pb.TokenCounts | None) -> None:
    assert ACP_OPTIONS.tokens is not None
    result: dict[str, Any] = {} if counted is None else {"_meta": {"quota": {"token_count": counted}}}
    assert ACP_OPTIONS.tokens(result) == tokens
