"""The conversation, step by step: set up, prompt, end; sessions; modes and models; stopping."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.sdk import FailureInfo, Line, Withdraw, Write
from dragoman.sdk.acp import AcpOptions, Conversation, TurnEnd, opening
from dragoman.sdk.run import AttachedFile
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.sdk.acp.talking import CWD, READY, Talk, agent_text, asks, update

END = {"id": 3, "result": {"stopReason": "end_turn"}}


def offering(**able: Any) -> dict[str, Any]:
    return {"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": able}}


def error(code: int, message: str = "", data: Any = None, answers: int = 2) -> dict[str, Any]:
    return {"id": answers, "error": {"code": code, "message": message, "data": data}}


def methods(talk: Talk) -> list[str]:
    return [message["method"] for message in talk.written if "method" in message]


def test_the_first_line_says_what_is_offered() -> None:
    first = json.loads(opening(AcpOptions(), "1.2"))
    assert first["id"] == 1
    assert first["method"] == "initialize"
    assert first["params"]["protocolVersion"] == 1
    assert first["params"]["clientInfo"]["version"] == "1.2"
    assert first["params"]["clientCapabilities"] == {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
        "elicitation": {"form": {}},
    }


def test_a_turn_from_beginning_to_end() -> None:
    talk = Talk().hear(*READY, agent_text("Hello"), agent_text(" you."), END)
    new, prompt = talk.written
    assert (new["method"], new["params"]) == ("session/new", {"cwd": CWD, "mcpServers": []})
    assert prompt["params"] == {"sessionId": "s-1", "prompt": [{"type": "text", "text": "hello"}]}
    assert talk.text == talk.parser.report.summary == "Hello you."
    assert talk.closes
    report = talk.parser.report
    assert (report.session_id, report.raw_json) == ("s-1", '{"stopReason":"end_turn"}')
    assert report.terminal is not None
    assert report.terminal.succeeded


def test_servers_and_directories_are_passed_to_the_session() -> None:
    servers = (
        api.McpServer(name="words", stdio=api.McpStdio(command="words", args=["-v"], env={"KEY": "v"})),
        api.McpServer(name="far", http=api.McpHttp(url="https://mcp.example/", headers={"A": "b"})),
    )
    conversation = Conversation(CWD, "hello", additional_directories=("/more",), mcp_servers=servers)
    talk = Talk(conversation=conversation).hear(
        offering(mcpCapabilities={"http": True}, sessionCapabilities={"additionalDirectories": {}})
    )
    assert talk.of("notice") == []
    assert talk.written[0]["params"] == {
        "cwd": CWD,
        "additionalDirectories": ["/more"],
        "mcpServers": [
            {"name": "words", "command": "words", "args": ["-v"], "env": [{"name": "KEY", "value": "v"}]},
            {"type": "http", "name": "far", "url": "https://mcp.example/", "headers": [{"name": "A", "value": "b"}]},
        ],
    }


def test_what_the_agent_does_not_support_is_reported() -> None:
    servers = (api.McpServer(name="far", http=api.McpHttp(url="https://mcp.example/")),)
    conversation = Conversation(CWD, "hello", additional_directories=("/more",), mcp_servers=servers)
    talk = Talk(conversation=conversation).hear(offering())
    assert [notice.code for notice in talk.of("notice")] == ["acp_no_additional_directories", "acp_no_http_mcp"]
    assert "additionalDirectories" not in talk.written[0]["params"]


SHOT = AttachedFile("shot.png", "image/png", Path("/files/shot.png"), 3, b"png")


def test_images_go_behind_the_prompt() -> None:
    able = offering(promptCapabilities={"image": True})
    talk = Talk(conversation=Conversation(CWD, "Look.", images=(SHOT,))).hear(able, READY[1])
    assert talk.written[1]["params"]["prompt"] == [
        {"type": "text", "text": "Look."},
        {"type": "image", "mimeType": "image/png", "data": "cG5n"},
    ]


def test_an_agent_without_images_gets_no_prompt_that_needs_them() -> None:
    talk = Talk(conversation=Conversation(CWD, "Look.", images=(SHOT,))).hear(offering())
    assert talk.written == []
    terminal = talk.parser.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert (terminal.failure.kind, terminal.failure.code) == (pb.FAILURE_KIND_INVALID_CONFIG, "acp_no_images")


def test_an_adapter_may_want_to_authenticate_first() -> None:
    talk = Talk(AcpOptions(authenticate="key")).hear(offering(), {"id": 2, "result": {}})
    assert [(message["method"], message["params"].get("methodId")) for message in talk.written] == [
        ("authenticate", "key"),
        ("session/new", None),
    ]


def test_a_session_without_an_id_is_no_session() -> None:
    talk = Talk().hear(offering(), {"id": 2, "result": {}})
    assert (failure(talk).kind, failure(talk).code) == (pb.FAILURE_KIND_UNPARSEABLE_OUTPUT, "acp_no_session_id")
    assert "session/prompt" not in methods(talk)


def test_another_version_of_the_protocol_is_refused() -> None:
    talk = Talk().hear({"id": 1, "result": {"protocolVersion": 2}})
    assert (failure(talk).kind, failure(talk).code) == (pb.FAILURE_KIND_VERSION_UNSUPPORTED, "acp_version")
    assert talk.closes
    assert talk.written == []


def failure(talk: Talk) -> FailureInfo:
    terminal = talk.parser.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    return terminal.failure


# Sessions.


@pytest.mark.parametrize(
    ("able", "method"),
    [
        ({"loadSession": True}, "session/load"),
        ({"loadSession": True, "sessionCapabilities": {"resume": {}}}, "session/resume"),
        ({"sessionCapabilities": {"resume": {}}}, "session/resume"),
    ],
)
def test_a_session_is_resumed_in_the_way_that_the_agent_offers(able: dict[str, Any], method: str) -> None:
    talk = Talk(conversation=Conversation(CWD, "go on", session_id="s-1"))
    talk.hear(offering(**able), {"id": 2, "result": None})
    assert methods(talk) == [method, "session/prompt"]
    assert talk.written[0]["params"] == {"sessionId": "s-1", "cwd": CWD, "mcpServers": []}
    assert talk.written[1]["params"]["sessionId"] == talk.parser.report.session_id == "s-1"


def test_an_agent_that_cannot_resume_loses_the_session() -> None:
    talk = Talk(conversation=Conversation(CWD, "go on", session_id="s-1")).hear(offering())
    assert (failure(talk).kind, failure(talk).code) == (pb.FAILURE_KIND_SESSION_LOST, "acp_no_resume")


def test_a_session_is_copied_if_the_agent_offers_it() -> None:
    conversation = Conversation(CWD, "go on", session_id="s-0", forks=True)
    talk = Talk(conversation=conversation).hear(offering(sessionCapabilities={"fork": {}}), READY[1])
    assert methods(talk) == ["session/fork", "session/prompt"]
    assert talk.parser.report.session_id == "s-1"
    talk = Talk(conversation=conversation).hear(offering(loadSession=True))
    assert failure(talk).code == "acp_no_fork"


def test_history_is_not_emitted_again() -> None:
    talk = Talk(conversation=Conversation(CWD, "go on", session_id="s-1")).hear(
        offering(loadSession=True),
        agent_text("Said before."),
        update("user_message_chunk", content={"type": "text", "text": "before"}),
        update("tool_call", toolCallId="t", title="old", status="completed"),
        update("plan", entries=[{"content": "old"}]),
        update("current_mode_update", currentModeId="plan"),
        {"id": 2, "result": {}},
        agent_text("Said now."),
        END,
    )
    assert talk.text == talk.parser.report.summary == "Said now."
    assert [event.WhichOneof("body") for event in talk.events] == ["session", "text", "text"]
    assert talk.of("session")[0].mode == "plan"


@pytest.mark.parametrize(
    "answer",
    [
        error(-32002, "Resource not found"),
        error(-32602, "Session not found"),
        error(-32603, "Internal error", {"details": "no conversation found with session id s-1"}),
    ],
)
def test_an_unknown_session_is_lost(answer: dict[str, Any]) -> None:
    talk = Talk(conversation=Conversation(CWD, "go on", session_id="s-1")).hear(offering(loadSession=True), answer)
    assert failure(talk).kind == pb.FAILURE_KIND_SESSION_LOST


def test_an_adapter_knows_other_words_for_it() -> None:
    answer = error(-32603, "service failure", {"service": "session"})
    conversation = Conversation(CWD, "go on", session_id="s-1")
    talk = Talk(conversation=conversation).hear(offering(loadSession=True), answer)
    assert failure(talk).kind == pb.FAILURE_KIND_PROCESS_CRASHED
    options = AcpOptions(lost_session=lambda error: error.code == -32603)
    talk = Talk(options, conversation).hear(offering(loadSession=True), answer)
    assert failure(talk).kind == pb.FAILURE_KIND_SESSION_LOST
    talk = Talk(options).hear(offering(loadSession=True), answer)
    assert failure(talk).kind == pb.FAILURE_KIND_PROCESS_CRASHED, "there was no session to lose"


# Modes, models, options.

MODES = {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "code"}]}
MODELS = {"currentModelId": "m-1", "availableModels": [{"modelId": "m-1"}, {"modelId": "m-2"}]}
OPTIONS = [
    {"id": "mode", "category": "mode", "currentValue": "ask", "options": [{"value": "ask"}, {"value": "code"}]},
    {"id": "llm", "category": "model", "currentValue": "m-1", "options": [{"options": [{"value": "m-2"}]}]},
    {"id": "think", "category": "thought_level", "currentValue": "low", "options": [{"value": "high"}]},
]


def opened(options: AcpOptions | None = None, mode: str = "", model: str = "", **result: Any) -> Talk:
    talk = Talk(options or AcpOptions(), Conversation(CWD, "hello", mode=mode, model=model))
    return talk.hear(READY[0], {"id": 2, "result": {"sessionId": "s-1", **result}})


def test_mode_and_model_are_set_before_the_prompt() -> None:
    talk = opened(mode="code", model="m-2", modes=MODES, models=MODELS)
    talk.hear({"id": 3, "result": {}}, {"id": 4, "result": None})
    assert [(message["method"], message["params"]) for message in talk.written[1:3]] == [
        ("session/set_mode", {"sessionId": "s-1", "modeId": "code"}),
        ("session/set_model", {"sessionId": "s-1", "modelId": "m-2"}),
    ]
    assert methods(talk)[-1] == "session/prompt"
    assert (talk.of("session")[-1].mode, talk.of("session")[-1].model) == ("code", "m-2")


def test_config_options_are_used_where_there_are_any() -> None:
    options = AcpOptions(config_values={"thought_level": "high"})
    talk = opened(options, mode="code", model="m-2", modes=MODES, models=MODELS, configOptions=OPTIONS)
    chosen = [{**OPTIONS[0], "currentValue": "code"}, {**OPTIONS[1], "currentValue": "m-2"}, OPTIONS[2]]
    for number in (3, 4, 5):
        talk.hear({"id": number, "result": {"configOptions": chosen}})
    assert [message["params"].get("configId") for message in talk.written[1:4]] == ["mode", "llm", "think"]
    assert {message["method"] for message in talk.written[1:4]} == {"session/set_config_option"}
    assert methods(talk)[-1] == "session/prompt"
    assert talk.of("session")[-1].model == "m-2"


def test_what_is_in_force_already_is_not_set() -> None:
    assert methods(opened(mode="ask", model="m-1", modes=MODES, models=MODELS))[-1] == "session/prompt"
    assert methods(opened(AcpOptions(sets_model=False), model="m-9"))[-1] == "session/prompt"


@pytest.mark.parametrize(
    ("conversation", "kind", "code"),
    [
        ({"mode": "yolo", "modes": MODES}, pb.FAILURE_KIND_INVALID_CONFIG, "acp_not_offered"),
        ({"mode": "yolo"}, pb.FAILURE_KIND_INVALID_CONFIG, "acp_not_offered"),
        ({"model": "m-9", "models": MODELS}, pb.FAILURE_KIND_MODEL_NOT_FOUND, "acp_model_not_offered"),
        ({"model": "m-9"}, pb.FAILURE_KIND_INVALID_CONFIG, "acp_no_model_choice"),
        ({"options": AcpOptions(config_values={"x": "y"})}, pb.FAILURE_KIND_INVALID_CONFIG, "acp_not_offered"),
    ],
)
def test_what_is_not_offered_ends_the_run(conversation: dict[str, Any], kind: int, code: str) -> None:
    talk = opened(**conversation)
    assert (failure(talk).kind, failure(talk).code) == (kind, code)
    assert "session/prompt" not in methods(talk)


# The end.


def test_a_turn_without_progress_is_abandoned() -> None:
    answers = [agent_text("Half an", messageId=f"m-{number}") for number in range(9)]
    talk = Talk.ready(*answers[:8])
    assert talk.parser.report.terminal is None
    talk.hear(answers[8])
    assert failure(talk).code == "acp_no_progress"
    assert failure(talk).kind == pb.FAILURE_KIND_NO_RESULT
    assert methods(talk)[-1] == "session/cancel"
    assert talk.closes


def test_the_same_words_after_something_was_done_are_progress() -> None:
    frames = []
    for number in range(20):
        frames += [
            agent_text("Next.", messageId=f"m-{number}"),
            update("tool_call", toolCallId=f"t-{number}", title="Look"),
        ]
    assert Talk.ready(*frames).parser.report.terminal is None


@pytest.mark.parametrize(
    ("reason", "kind", "code"),
    [
        ("max_tokens", pb.FAILURE_KIND_OUTPUT_LIMIT, "acp_max_tokens"),
        ("max_turn_requests", pb.FAILURE_KIND_MAX_TURNS, "acp_max_turn_requests"),
        ("refusal", pb.FAILURE_KIND_MODEL_REFUSED, "acp_refusal"),
        ("cancelled", pb.FAILURE_KIND_PROCESS_CRASHED, "acp_cancelled"),
        ("sunset", pb.FAILURE_KIND_NO_RESULT, "acp_stop_reason"),
    ],
)
def test_a_stop_reason_that_is_no_success(reason: str, kind: int, code: str) -> None:
    talk = Talk.ready(agent_text("Hm."), {"id": 3, "result": {"stopReason": reason}})
    assert (failure(talk).kind, failure(talk).code) == (kind, code)
    assert talk.parser.report.terminal is not None
    assert talk.parser.report.terminal.subtype == reason


def test_an_empty_turn_is_no_result() -> None:
    assert failure(Talk.ready(END)).kind == pb.FAILURE_KIND_NO_RESULT
    thought = update("agent_thought_chunk", content={"type": "text", "text": "Hm."})
    assert failure(Talk.ready(thought, END)).code == "acp_empty_turn"


def test_an_adapter_reads_errors_that_come_as_text() -> None:
    def judge(end: TurnEnd) -> FailureInfo | None:
        return FailureInfo(pb.FAILURE_KIND_AUTH_REQUIRED, end.text) if end.text.startswith("Error:") else None

    assert (
        failure(Talk.ready(agent_text("Error: 401"), END, turn_failure=judge)).kind == pb.FAILURE_KIND_AUTH_REQUIRED
    )
    terminal = Talk.ready(agent_text("Fine."), END, turn_failure=judge).parser.report.terminal
    assert terminal is not None
    assert terminal.succeeded


def test_a_missing_login_is_reported_with_what_to_do() -> None:
    ways = [{"id": "l", "name": "Log in", "description": "Run `agent login`"}]
    first = {"id": 1, "result": {"protocolVersion": 1, "authMethods": ways}}
    talk = Talk().hear(first, error(-32000, "Authentication required"))
    assert failure(talk).kind == pb.FAILURE_KIND_AUTH_REQUIRED
    assert failure(talk).message == ("The agent wants you to log in. Ways that it knows: Log in: Run `agent login`.")


def test_an_error_of_the_models_service_is_classified_as_such() -> None:
    overloaded = error(-32603, "Internal error", {"details": "HTTP 429 Too Many Requests"}, answers=3)
    talk = Talk.ready(agent_text("Well"), overloaded)
    assert (failure(talk).kind, failure(talk).http_status) == (pb.FAILURE_KIND_RATE_LIMITED, 429)
    assert talk.parser.report.summary == "Well"


def test_a_status_in_place_of_an_error_code_is_one() -> None:
    talk = Talk.ready(error(429, "Try again later.", answers=3))
    assert (failure(talk).kind, failure(talk).http_status) == (pb.FAILURE_KIND_RATE_LIMITED, 429)
    assert failure(talk).code == "acp_error_429"


def test_an_error_that_says_nothing_is_a_crash() -> None:
    talk = Talk.ready(error(-32603, "Oops", answers=3))
    assert (failure(talk).kind, failure(talk).code) == (pb.FAILURE_KIND_PROCESS_CRASHED, "acp_error_-32603")
    assert failure(talk).message == "The agent answered session/prompt with an error: Oops"


def test_the_end_of_output_without_an_answer_is_no_word() -> None:
    talk = Talk.ready(agent_text("Hel"))
    talk.outputs += talk.parser.finish()
    assert talk.parser.report.terminal is None
    assert talk.parser.report.summary == "Hel"
    assert talk.of("text")[-1].WhichOneof("content") is None, "what is held back of it is let go"


# StopSequence.


def test_a_turn_is_cancelled_and_its_questions_with_it() -> None:
    permission = asks("session/request_permission", toolCall={"toolCallId": "t"}, options=[])
    form = asks("elicitation/create", 8, mode="form", message="?")
    talk = Talk.ready(update("tool_call", toolCallId="t", status="in_progress"), permission, form)
    talk.outputs += talk.parser.interrupt()
    assert talk.written[-3:] == [
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s-1"}},
        {"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "cancelled"}}},
        {"jsonrpc": "2.0", "id": 8, "result": {"action": "cancel"}},
    ]
    talk.hear({"id": 3, "result": {"stopReason": "cancelled"}})
    assert talk.of("tool_result")[0].status == pb.TOOL_STATUS_CANCELLED
    terminal = talk.parser.report.terminal
    assert terminal is not None
    assert (terminal.interrupted, terminal.failure) == (True, None)


def test_some_answer_a_cancelled_turn_with_an_error() -> None:
    talk = Talk.ready(agent_text("Hel"))
    talk.outputs += talk.parser.interrupt()
    talk.hear(error(-32603, "aborted", answers=3))
    terminal = talk.parser.report.terminal
    assert terminal is not None
    assert (terminal.interrupted, terminal.failure) == (True, None)


@pytest.mark.parametrize("speech", [(), (agent_text("Hel"),)])
def test_some_answer_a_cancelled_turn_as_if_they_had_finished(speech: tuple[dict[str, object], ...]) -> None:
    talk = Talk.ready(*speech)
    talk.outputs += talk.parser.interrupt()
    talk.hear({"id": 3, "result": {"stopReason": "end_turn"}})
    terminal = talk.parser.report.terminal
    assert terminal is not None
    assert (terminal.succeeded, terminal.interrupted, terminal.failure) == (False, True, None)


def test_stopped_before_its_session_began_nothing_more_is_begun() -> None:
    talk = Talk().hear(READY[0])
    talk.outputs += talk.parser.interrupt()
    assert talk.closes
    talk.hear(READY[1])
    assert methods(talk) == ["session/new"]


def test_a_question_is_withdrawn_when_the_agent_says_so() -> None:
    permission = asks("session/request_permission", toolCall={"toolCallId": "t"}, options=[])
    talk = Talk.ready(permission, {"method": "$/cancel_request", "params": {"requestId": 7}})
    assert [output for output in talk.outputs if isinstance(output, Withdraw)] == [Withdraw("acp-7")]
    assert talk.written[-1]["error"]["code"] == -32800
    assert list(talk.parser.interrupt()) == [
        Write(b'{"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s-1"}}\n')
    ]


# Unexpected frames.


@pytest.mark.parametrize(
    "frame",
    [
        {"id": 99, "result": {}},
        {"id": "3", "result": {"stopReason": "end_turn"}},
        {"method": "session/update", "params": {"update": {"sessionUpdate": "sunset"}}},
        {"method": "_vendor/thing", "params": {}},
    ],
)
def test_what_is_not_known_is_a_log(frame: dict[str, Any]) -> None:
    talk = Talk.ready(frame)
    assert len(talk.of("log")) == 1
    assert talk.parser.report.terminal is None


def test_a_late_answer_changes_nothing() -> None:
    talk = Talk.ready(agent_text("Hello"), END, {"id": 3, "result": {"stopReason": "refusal"}})
    assert talk.parser.report.terminal is not None
    assert talk.parser.report.terminal.succeeded
    assert len(talk.of("log")) == 1


def test_an_unknown_request_is_refused() -> None:
    talk = Talk.ready(asks("fs/read_text_file", path="/project/a"))
    assert talk.written[-1]["error"]["code"] == -32601


def test_stderr_is_a_log() -> None:
    outputs = list(Talk().parser.line("stderr", Line(b'{"id": 1, "result": {}}', 0, True)))
    assert [type(output) for output in outputs] == [pb.AgentEvent]
