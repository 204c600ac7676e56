"""Cursor's adapter: the frames of its documentation, understood; its plans, and what it makes of failures."""

import json
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.adapters.cursor import adapter
from dragoman.adapters.cursor.adapter import BASE, allows_everything
from dragoman.adapters.cursor.parse import CursorParser
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk import Evidence, Line, Output, Plan, Report, SessionPlan
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.jobs import job_of, request_of

CHAT = "c6b62c6f-7ead-4fd6-9922-e952131177ff"
NEW = SessionPlan(pb.SESSION_DISPOSITION_NEW)
RESUMED = SessionPlan(pb.SESSION_DISPOSITION_RESUME, native_id=CHAT)


def frame(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields, "session_id": CHAT}


def assistant(words: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "text", "text": words}]}
    return frame("assistant", message=message, **fields)


def tool(subtype: str, key: str, call: dict[str, Any], call_id: str = "toolu_1") -> dict[str, Any]:
    return frame("tool_call", subtype=subtype, call_id=call_id, tool_call={key: call})


INIT = frame(
    "system", subtype="init", apiKeySource="login", cwd="/w", model="Claude 4 Sonnet", permissionMode="default"
)
END = frame(
    "result", subtype="success", duration_ms=1, duration_api_ms=1, is_error=False, result="AB", request_id="r"
)
READ = {"args": {"path": "README.md"}}
READ_DONE = {**READ, "result": {"success": {"content": "# Project", "isEmpty": False, "totalLines": 54}}}


def parse(*frames: dict[str, Any]) -> tuple[list[Output], Report]:
    parser = CursorParser()
    lines = [Line(json.dumps(item).encode(), 0, True) for item in frames]
    outputs = [output for line in lines for output in parser.line("stdout", line)]
    return [*outputs, *parser.finish()], parser.report


def of_kind(outputs: list[Output], kind: str) -> list[Any]:
    events = (output for output in outputs if isinstance(output, pb.AgentEvent))
    return [getattr(event, kind) for event in events if event.WhichOneof("body") == kind]


def shown(outputs: list[Output]) -> list[str]:
    items: dict[str, str] = {}
    for text in of_kind(outputs, "text"):
        items[text.item_id] = items.get(text.item_id, "") + text.delta
    return list(items.values())


def test_the_documented_sequence() -> None:
    outputs, report = parse(
        INIT,
        frame("user", message={"role": "user", "content": [{"type": "text", "text": "Read it"}]}),
        assistant("A"),
        tool("started", "readToolCall", READ),
        tool("completed", "readToolCall", READ_DONE),
        assistant("B"),
        END,
    )
    assert of_kind(outputs, "log") == []
    assert of_kind(outputs, "session")[0].native_id == report.session_id == CHAT
    assert shown(outputs) == ["A", "B"]
    (call,) = of_kind(outputs, "tool_call")
    assert (call.name, call.kind, call.title) == ("read", pb.TOOL_KIND_READ, "read README.md")
    (result,) = of_kind(outputs, "tool_result")
    assert (result.status, result.content) == (pb.TOOL_STATUS_COMPLETED, "# Project")
    assert report.summary == "B"
    assert report.terminal is not None
    assert report.terminal.succeeded
    assert report.usage is None


def test_pieces_and_the_whole_that_repeats_them_make_one_text() -> None:
    marked = [assistant("Hel", timestamp_ms=1), assistant("lo", timestamp_ms=2)]
    for whole in ({}, {"timestamp_ms": 3, "model_call_id": "m"}):
        assert shown(parse(INIT, *marked, assistant("Hello", **whole), END)[0]) == ["Hello"]
    unmarked = [assistant("Hel"), assistant("lo"), assistant("Hello")]
    assert shown(parse(INIT, *unmarked, END)[0]) == ["Hello"]


def test_a_piece_may_repeat_earlier_text() -> None:
    pieces = [assistant("ha", timestamp_ms=1), assistant("ha", timestamp_ms=2), assistant("haha")]
    assert shown(parse(*pieces)[0]) == ["haha"]


def test_thinking_where_it_is_reported() -> None:
    outputs, _ = parse(
        frame("thinking", subtype="delta", text="Hm"),
        frame("thinking", subtype="completed"),
        assistant("Yes", timestamp_ms=1),
    )
    assert "".join(item.delta for item in of_kind(outputs, "thinking")) == "Hm"
    assert shown(outputs) == ["Yes"]


@pytest.mark.parametrize(
    ("result", "status", "content"),
    [
        ({"success": {"exitCode": 0, "stdout": "hi\n", "stderr": ""}}, pb.TOOL_STATUS_COMPLETED, "hi"),
        ({"success": {"exitCode": 3, "stdout": "", "stderr": "no\n"}}, pb.TOOL_STATUS_FAILED, "no"),
        ({"rejected": {"reason": "denied"}}, pb.TOOL_STATUS_DENIED, "denied"),
        ({"timeout": {}}, pb.TOOL_STATUS_TIMED_OUT, ""),
        ({"error": {"error": "broken"}}, pb.TOOL_STATUS_FAILED, "broken"),
        ({}, pb.TOOL_STATUS_FAILED, ""),
        ({"isBackground": True}, pb.TOOL_STATUS_FAILED, ""),
    ],
)
def test_how_a_call_ends(result: dict[str, Any], status: int, content: str) -> None:
    (ended,) = of_kind(parse(tool("completed", "shellToolCall", {"args": {}, "result": result}))[0], "tool_result")
    assert (ended.status, ended.content) == (status, content)


def test_a_tool_that_is_called_as_a_function() -> None:
    (call,) = of_kind(parse(tool("started", "function", {"name": "f", "arguments": "{}"}))[0], "tool_call")
    assert (call.name, call.input_json, call.kind) == ("f", "{}", pb.TOOL_KIND_OTHER)


def test_tokens_where_they_are_reported() -> None:
    usage = {"inputTokens": 5, "outputTokens": 2, "cacheReadTokens": 0}
    _, report = parse(INIT, {**END, "usage": usage})
    assert report.usage is not None
    assert (report.usage.tokens.input, report.usage.tokens.output) == (5, 2)
    assert not report.usage.tokens.HasField("cache_write")


def test_a_result_that_is_no_success() -> None:
    _, report = parse(INIT, {**END, "is_error": True, "result": "It broke"})
    assert report.terminal is not None
    assert not report.terminal.succeeded


def test_without_its_last_frame_nothing_has_succeeded() -> None:
    assert parse(INIT, assistant("A"))[1].terminal is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["message", "subtype", "call_id", "tool_call", "result", "usage", "text", "timestamp_ms", "session_id"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["system", "user", "assistant", "thinking", "tool_call", "result", "new"]),
            st.dictionaries(st.sampled_from(KEYS), values, max_size=4),
        ),
        max_size=5,
    )
)
@settings(max_examples=100)
def test_no_frame_raises(frames: list[tuple[str, dict[str, Any]]]) -> None:
    parse(*({**fields, "type": kind} for kind, fields in frames))


@given(st.binary(max_size=100))
@settings(max_examples=50)
def test_no_bytes_raise(data: bytes) -> None:
    assert CursorParser().line("stdout", Line(data, 0, True))


# What it plans.


def planned(session: SessionPlan = NEW, config: dict[str, Any] | None = None, **fields: Any) -> Plan:
    job = job_of(adapter(), request_of("/", config, **fields), session, executable="/opt/cursor-agent")
    return adapter().plan(job)


def test_the_least_command_line() -> None:
    plan = planned()
    assert plan.argv == ("/opt/cursor-agent", *BASE, "--workspace", "/")
    assert plan.stdin == b"Do it."
    assert not plan.keep_stdin_open
    assert [code for code, _ in plan.notices] == ["tools_withheld"]


def test_everything() -> None:
    plan = planned(
        RESUMED,
        {"sandbox": "enabled", "extraArgs": ["--approve-mcps"]},
        model="gpt-5",
        system_prompt="You are Ada.",
        permissions=pb.Permissions(auto_approve=True, native_mode="ask"),
    )
    options = ["--resume", CHAT, "--workspace", "/", "--model", "gpt-5", "--mode", "ask", "--sandbox", "enabled"]
    assert plan.argv == ("/opt/cursor-agent", *BASE, *options, "--force", "--approve-mcps")
    assert plan.stdin == b"You are Ada.\n\nDo it."
    assert plan.notices == ()


@pytest.mark.parametrize(
    ("permissions", "everything"),
    [
        (pb.Permissions(), False),
        (pb.Permissions(interactive=True), False),
        (pb.Permissions(auto_approve=True), True),
        (pb.Permissions(default_decision=pb.PERMISSION_DECISION_ALLOW), True),
        (
            pb.Permissions(
                default_decision=pb.PERMISSION_DECISION_ALLOW,
                rules=[pb.PermissionRule(decision=pb.PERMISSION_DECISION_DENY)],
            ),
            False,
        ),
        (pb.Permissions(rules=[pb.PermissionRule(decision=pb.PERMISSION_DECISION_ALLOW)]), False),
    ],
)
def test_it_may_do_everything_or_nothing(permissions: pb.Permissions, everything: bool) -> None:
    assert allows_everything(permissions) == everything
    assert ("--force" in planned(permissions=permissions).argv) == everything


@pytest.mark.parametrize(
    "fields", [{"prompt": " "}, {"model": "-x"}, {"permissions": pb.Permissions(native_mode="yolo")}]
)
def test_what_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DragomanError) as caught:
        planned(**fields)
    assert caught.value.reason == Reason.INVALID_REQUEST


# What it says of itself, and of failures.


@pytest.mark.parametrize(
    ("words", "resumed", "kind", "code"),
    [
        ("Error: 401 Unauthorized", False, pb.FAILURE_KIND_AUTH_REQUIRED, "cursor_auth_required"),
        (
            "Not logged in. Please run cursor-agent login",
            False,
            pb.FAILURE_KIND_AUTH_REQUIRED,
            "cursor_auth_required",
        ),
        ("Error: Chat 1-2 not found", True, pb.FAILURE_KIND_SESSION_LOST, "cursor_session"),
    ],
)
def test_words_on_standard_error(words: str, resumed: bool, kind: int, code: str) -> None:
    failure = adapter().classify(Evidence(Report(), exit_code=1, stderr_tail=words, resumed=resumed))
    assert failure is not None
    assert (failure.kind, failure.code) == (kind, code)


def test_unspecific_errors_and_chats_that_were_not_requested() -> None:
    assert adapter().classify(Evidence(Report(), exit_code=1, stderr_tail="Hm.")) is None
    assert adapter().classify(Evidence(Report(), exit_code=1, stderr_tail="Chat 1-2 not found")) is None


BY_SDK = {pb.FEATURE_CHANGES, pb.FEATURE_QUEUE, pb.FEATURE_ATTACHMENTS, pb.FEATURE_ARTIFACTS}


def test_it_is_found_and_names_its_sources() -> None:
    (entry,) = entry_points(group="dragoman.adapters", name="cursor")
    info = entry.load()().describe()
    assert info.type == "cursor"
    assert set(info.aliases) >= {"cursor_local", "cursor-agent"}
    of_the_agent = [item for item in info.capabilities.items if item.feature not in BY_SDK]
    assert all("documentation" in item.note for item in of_the_agent)


def test_what_a_tool_changed_is_reported(tmp_path: Path) -> None:
    parser = CursorParser([str(tmp_path)])
    events: list[Output] = []
    for key, arguments, how in (
        ("writeToolCall", {"path": "a.txt", "fileText": "hello\n"}, "success"),
        ("writeToolCall", {"path": "b.txt", "fileText": "hello\n"}, "rejected"),
        ("deleteToolCall", {"path": "a.txt"}, "success"),
    ):
        for subtype in ("started", "completed"):
            ended: dict[str, Any] = {"result": {how: {}}} if subtype == "completed" else {}
            tool_frame = tool(subtype, key, {"args": arguments, **ended}, call_id=f"{key}-{arguments['path']}")
            events += parser.line("stdout", Line(json.dumps(tool_frame).encode(), 0, True))
    created, deleted = of_kind(events, "file_change")
    assert (created.path, created.operation) == (str(tmp_path / "a.txt"), pb.FILE_OPERATION_CREATE)
    assert "+hello" in created.diff
    assert (deleted.path, deleted.operation) == (str(tmp_path / "a.txt"), pb.FILE_OPERATION_DELETE)


@pytest.mark.parametrize(
    ("out", "err", "state", "method"),
    [
        ("Logged in as a@words.example", "", api.AUTH_STATE_OK, "login"),
        ("", "Logged in", api.AUTH_STATE_OK, "login"),
        ("Not logged in", "", api.AUTH_STATE_MISSING, ""),
        ("", "You are not authenticated.", api.AUTH_STATE_MISSING, ""),
        ("", "", api.AUTH_STATE_UNKNOWN, ""),
    ],
)
async def test_its_login_is_what_it_reports(
    monkeypatch: pytest.MonkeyPatch, out: str, err: str, state: int, method: str
) -> None:
    asked: list[Any] = []

    async def probe(argv: list[str], env: dict[str, str], limit_s: float) -> Any:
        asked.append((argv, env, limit_s > 0))
        return SimpleNamespace(stdout=out, stderr=err)

    monkeypatch.setattr(import_module("dragoman.adapters.cursor.adapter"), "probe", probe)
    found = await adapter().auth("/opt/cursor", {"A": "b"})
    assert (found.state, found.method, found.subscription) == (state, method, method == "login")
    assert asked == [(["/opt/cursor", "status"], {"A": "b"}, True)]
    with_key = await adapter().auth("/opt/cursor", {"CURSOR_API_KEY": "k"})
    assert (with_key.state, with_key.method) == (api.AUTH_STATE_OK, "api_key")
    assert len(asked) == 1, "with a key it is not asked"


def test_a_key_does_not_say_who_pays() -> None:
    paid = [adapter().billing(env, Report()) for env in ({}, {"CURSOR_API_KEY": "k"})]
    assert [(each.type, each.biller) for each in paid] == [
        (pb.BILLING_TYPE_SUBSCRIPTION, "cursor"),
        (pb.BILLING_TYPE_UNSPECIFIED, "cursor"),
    ]


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        ({"path": "a", "command": "b"}, "sunset a"),
        ({"command": "ls\nrm"}, "sunset ls"),
        ({"pattern": "x*"}, "sunset x*"),
        ({"url": "u"}, "sunset u"),
        ({}, "sunset"),
        ({"path": "p" * 200}, "sunset " + "p" * 113),
    ],
)
def test_a_call_has_a_title_of_one_line(arguments: dict[str, str], title: str) -> None:
    outputs, _ = parse(tool("started", "sunsetToolCall", {"args": arguments}))
    (call,) = of_kind(outputs, "tool_call")
    assert call.title == title
