"""One renderer for all agents: events in, styled text out."""

import itertools

import pytest
from dragoman.cli.display.renderer import Renderer
from dragoman.cli.display.style import Segment, Style, coloured, plain
from dragoman.testkit.fakes.adapter import EventFactory
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

SECOND = duration_pb2.Duration(seconds=1)
AGENT = pb.Capabilities(items=[pb.Capability(feature=pb.FEATURE_TEXT_DELTAS)])


def shown(*events: pb.AgentEvent, debug: bool = False) -> str:
    renderer = Renderer(debug=debug)
    segments = [segment for event in events for segment in renderer.render(event)]
    return plain([*segments, *renderer.break_line()])


def body(**fields: Message) -> pb.AgentEvent:
    return EventFactory("run-1").event(**fields)


def text(delta: str, offset: int = 0, item: str = "i") -> pb.AgentEvent:
    return body(text=pb.Text(item_id=item, offset=offset, delta=delta))


def whole(content: str, item: str = "i") -> pb.AgentEvent:
    return body(text=pb.Text(item_id=item, whole=content))


TABLE: list[tuple[str, pb.AgentEvent, str, Style]] = [
    ("text", text("hello"), "hello\n", Style.ASSISTANT),
    ("thinking", body(thinking=pb.Thinking(item_id="t", delta="hm")), "hm\n", Style.FAINT),
    ("output", body(tool_output=pb.ToolOutput(tool_call_id="c", text="a\nb\n")), "  │ a\n  │ b\n", Style.TOOL),
    (
        "started",
        body(started=pb.Started(adapter="claude_code", agent_version="2.1.330", cwd="/srv")),
        "▶ claude_code 2.1.330 in /srv\n",
        Style.SYSTEM,
    ),
    (
        "resume",
        body(
            started=pb.Started(
                adapter="a", session_disposition=pb.SESSION_DISPOSITION_RESUME, native_session_id="s-1"
            )
        ),
        "▶ a\n  resumes session s-1\n",
        Style.SYSTEM,
    ),
    (
        "resume refused",
        body(
            started=pb.Started(
                adapter="a",
                session_disposition=pb.SESSION_DISPOSITION_RESUME_REFUSED,
                session_reason="other directory",
            )
        ),
        "▶ a\n  new session: other directory\n",
        Style.SYSTEM,
    ),
    (
        "retrying",
        body(
            state=pb.State(
                phase=pb.RUN_PHASE_RETRYING,
                retry_attempt=2,
                max_retries=10,
                retry_delay=SECOND,
                reason="overloaded",
            )
        ),
        "… retrying, try 2 of 10, in 1.0 s: overloaded\n",
        Style.SYSTEM,
    ),
    (
        "a slow start",
        body(state=pb.State(phase=pb.RUN_PHASE_STARTING, reason="waiting for its gateway (5 s)")),
        "… starting: waiting for its gateway (5 s)\n",
        Style.SYSTEM,
    ),
    (
        "session",
        body(session=pb.Session(native_id="s-1", model="sonnet")),
        "  session s-1 · model sonnet\n",
        Style.SYSTEM,
    ),
    (
        "message",
        body(message=pb.Message(role=pb.MESSAGE_ROLE_USER, text="do\nit")),
        "user: do it\n",
        Style.SYSTEM,
    ),
    (
        "tool call, by its title",
        body(tool_call=pb.ToolCall(id="c", name="Write", title="Write src/main.py", input_json="{}")),
        "● Write src/main.py\n",
        Style.TOOL,
    ),
    (
        "tool call, by its input",
        body(tool_call=pb.ToolCall(id="c", name="Bash", input_json='{"description": "d", "command": "ls -l"}')),
        "● Bash ls -l\n",
        Style.TOOL,
    ),
    (
        "tool call, by an input of its own kind",
        body(tool_call=pb.ToolCall(id="c", name="X", input_json='{"n": 1}')),
        '● X {"n": 1}\n',
        Style.TOOL,
    ),
    (
        "tool result",
        body(tool_result=pb.ToolResult(status=pb.TOOL_STATUS_COMPLETED, exit_code=0, duration=SECOND, content="ok")),
        "  ✓ exit code 0, 1.0 s\n  │ ok\n",
        Style.TOOL,
    ),
    (
        "failed tool",
        body(tool_result=pb.ToolResult(status=pb.TOOL_STATUS_FAILED, content="no")),
        "  ✗ failed\n  │ no\n",
        Style.ERROR,
    ),
    (
        "tool with an error that it completed",
        body(tool_result=pb.ToolResult(status=pb.TOOL_STATUS_COMPLETED, is_error=True)),
        "  ✗\n",
        Style.ERROR,
    ),
    (
        "file change",
        body(file_change=pb.FileChange(operation=pb.FILE_OPERATION_RENAME, old_path="/a", path="/b", diff="-x")),
        "  ± rename /a → /b\n  │ -x\n",
        Style.TOOL,
    ),
    (
        "file change of an unknown kind",
        body(file_change=pb.FileChange(path="/a")),
        "  ± /a\n",
        Style.TOOL,
    ),
    (
        "artifact",
        body(artifact=pb.Artifact(name="a\x1b[2J.txt", media_type="text/plain", size=12_345)),
        "  + artifact a␛[2J.txt (12,345 bytes)\n",
        Style.TOOL,
    ),
    (
        "plan",
        body(
            plan=pb.Plan(
                entries=[
                    pb.PlanEntry(content="one", status=pb.PLAN_ENTRY_STATUS_COMPLETED),
                    pb.PlanEntry(content="two", status=pb.PLAN_ENTRY_STATUS_IN_PROGRESS),
                    pb.PlanEntry(content="three"),
                ]
            )
        ),
        "plan\n  ☑ one\n  ▸ two\n  ☐ three\n",
        Style.SYSTEM,
    ),
    (
        "subagent",
        body(subagent=pb.Subagent(id="s", type="researcher", status=pb.SUBAGENT_STATUS_STARTED, description="look")),
        "  ⤷ researcher started: look\n",
        Style.SYSTEM,
    ),
    (
        "compaction",
        body(compaction=pb.Compaction(tokens_before=180_000, finished=True)),
        "… context compacted from 180,000 to ? tokens\n",
        Style.SYSTEM,
    ),
    (
        "question",
        body(
            input_request=pb.InputRequest(
                id="r",
                title="May I run this?",
                subject=pb.InputSubject(command="rm x"),
                options=[pb.InputOption(id="y", label="Allow", description="just\nonce"), pb.InputOption(id="n")],
            )
        ),
        "? May I run this?\n  rm x\n  1) Allow  just once\n  2) n\n",
        Style.STRONG,
    ),
    (
        "answer",
        body(
            input_resolved=pb.InputResolved(
                resolution=pb.INPUT_RESOLUTION_ANSWERED, answer=pb.InputAnswer(option_ids=["y"]), responder="me"
            )
        ),
        "  answered by me: y\n",
        Style.SYSTEM,
    ),
    (
        "input",
        body(input_accepted=pb.InputAccepted(input_id="i", text="and\nthat", mode=pb.INPUT_MODE_QUEUE, sender="me")),
        "+ input from me for the next turn: and that\n",
        Style.SYSTEM,
    ),
    (
        "input for this turn",
        body(
            input_accepted=pb.InputAccepted(
                input_id="i", text="stop", mode=pb.INPUT_MODE_STEER, attachments=["a.txt", "b\n.png"]
            )
        ),
        "+ input for this turn: stop (with a.txt, b .png)\n",
        Style.SYSTEM,
    ),
    (
        "dropped input",
        body(input_dropped=pb.InputDropped(input_id="i", reason="run_ended", message="The run ended first.")),
        "! warning: the input i was dropped: The run ended first.\n",
        Style.STRONG,
    ),
    (
        "changed model",
        body(run_updated=pb.RunUpdated(model="m\n1", sender="me")),
        "+ changed by me: model: m 1\n",
        Style.SYSTEM,
    ),
    (
        "changed mode",
        body(run_updated=pb.RunUpdated(permission_mode="plan")),
        "+ changed: permission mode: plan\n",
        Style.SYSTEM,
    ),
    (
        "warning",
        body(notice=pb.Notice(severity=pb.SEVERITY_WARNING, code="c", message="odd", hint="update it")),
        "! warning: odd\n  update it\n",
        Style.STRONG,
    ),
    ("notice", body(notice=pb.Notice(message="so")), "! so\n", Style.SYSTEM),
    (
        "another attempt",
        body(
            attempt_ended=pb.AttemptEnded(
                failure=pb.Failure(kind=pb.FAILURE_KIND_SESSION_LOST, message="unknown session"),
                reason="afresh",
                next_adapter="b",
            )
        ),
        "✗ unknown session (session lost)\n… trying again with b: afresh\n",
        Style.ERROR,
    ),
    (
        "gap",
        body(gap=pb.Gap(from_sequence=3, to_sequence=9, reason=pb.GAP_REASON_EVICTED)),
        "… events 3 to 9 are missing (evicted)\n",
        Style.ERROR,
    ),
    (
        "failure",
        body(
            result=pb.Result(
                outcome=pb.OUTCOME_FAILED,
                exit_code=1,
                failure=pb.Failure(
                    kind=pb.FAILURE_KIND_AUTH_REQUIRED,
                    message="not logged in",
                    errors=["401", "not logged in"],
                    login_url="https://login.example",
                    retry_not_before=timestamp_pb2.Timestamp(seconds=0),
                ),
            )
        ),
        "✗ not logged in (auth required)\n  401\n  log in at https://login.example\n"
        "  retry after 1970-01-01 00:00:00 UTC\n  exit code 1\n",
        Style.ERROR,
    ),
    (
        "question at the end",
        body(result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED, question=pb.Question(prompt="Which?", choices=["a"]))),
        "? Which?\n  - a\n",
        Style.STRONG,
    ),
]


@pytest.mark.parametrize(("event", "text", "style"), [pytest.param(*row[1:], id=row[0]) for row in TABLE])
def test_what_each_event_looks_like(event: pb.AgentEvent, text: str, style: Style) -> None:
    assert shown(event) == text
    first = next(segment for segment in Renderer().render(event) if segment.text.strip())
    assert first.style is style


def test_what_is_known_of_the_session_is_shown_once() -> None:
    renderer = Renderer()

    def shown(native_id: str, model: str = "", title: str = "") -> str:
        session = pb.Session(native_id=native_id, model=model, title=title)
        return "".join(segment.text for segment in renderer.render(body(session=session)))

    assert shown("s-1") == "  session s-1\n"
    assert shown("s-1") == ""
    assert shown("s-1", "sonnet") == "  model sonnet\n"
    assert shown("s-1", "sonnet", "a title") == ""
    assert shown("s-2", "sonnet") == "  session s-2\n"
    again = body(session=pb.Session(native_id="s-1"))
    again.attempt = 9
    assert "".join(segment.text for segment in renderer.render(again)) == "  session s-1\n"


QUIET = [
    body(state=pb.State(phase=pb.RUN_PHASE_STARTING)),
    body(state=pb.State(phase=pb.RUN_PHASE_RUNNING, pid=7)),
    body(usage=pb.Usage(scope=pb.USAGE_SCOPE_CALL, tokens=pb.TokenCounts(input=1, output=2))),
    body(heartbeat=pb.Heartbeat(idle=SECOND)),
    body(subagent=pb.Subagent(id="s", status=pb.SUBAGENT_STATUS_RUNNING)),
    body(tool_call=pb.ToolCall(id="c", name="Bash", status=pb.TOOL_STATUS_PENDING)),
    pb.AgentEvent(sequence=4),
]


@pytest.mark.parametrize("event", QUIET)
def test_what_only_debugging_needs_is_not_shown(event: pb.AgentEvent) -> None:
    assert shown(event) == ""


def test_debug_shows_the_command_line_once() -> None:
    started = pb.Started(adapter="a", command="/bin/cat", argv=["/bin/cat", "-n"])
    assert '  /bin/cat "-n"\n' in shown(body(started=started), debug=True)


def test_debug_shows_it_in_grey() -> None:
    assert "pid 7" in shown(QUIET[1], debug=True)
    assert "usage of this call: 1 in / 2 out" in shown(QUIET[2], debug=True)
    assert "silent for 1.0 s" in shown(QUIET[3], debug=True)
    assert "later revision, sequence 4" in shown(QUIET[6], debug=True)
    [segment, _newline] = Renderer(debug=True).render(body(log=pb.Log(stream=pb.OUTPUT_STREAM_STDERR, text="odd")))
    assert segment == Segment("stderr │ odd", Style.FAINT)


def test_every_kind_of_event_is_known() -> None:
    for kind in KINDS:
        event = pb.AgentEvent(sequence=1)
        getattr(event, kind).SetInParent()
        assert "later revision" not in shown(event, debug=True), kind


def test_text_flows_and_lines_begin_on_their_own() -> None:
    assert shown(text("hel"), text("lo", 3), body(notice=pb.Notice(message="n")), text(" you", 5)) == (
        "hello\n! n\n you\n"
    )


def test_another_item_begins_a_new_line() -> None:
    assert shown(text("one"), text("two", item="j"), body(thinking=pb.Thinking(item_id="i", delta="hm"))) == (
        "one\ntwo\nhm\n"
    )


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([text("hel"), whole("hello")], "hello\n"),
        ([text("hello"), whole("hello")], "hello\n"),
        ([whole("hello"), text(" you", 5)], "hello you\n"),
        ([text("hello"), whole("other")], "hello\nother\n"),
        ([text("hello"), whole("hell")], "hello\nhell\n"),
        ([text("hello"), text("lo you", 3)], "hello you\n"),
        ([text("hello"), text("el", 1)], "hello\n"),
        ([text("a"), text("z", 9), text("y", 10)], "a…zy\n"),
        ([text("middle", 9)], "…middle\n"),
        ([text("middle", 9), whole("beginning middle")], "…middle\nbeginning middle\n"),
        ([text("ä"), text("b", 2)], "äb\n"),
    ],
)
def test_no_piece_is_shown_twice_and_none_is_lost(events: list[pb.AgentEvent], expected: str) -> None:
    assert shown(*events) == expected


@given(st.text(alphabet="aäb\n👩", max_size=30), st.lists(st.integers(0, 30)))
def test_any_split_of_a_text_looks_the_same(content: str, cuts: list[int]) -> None:
    places = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    pieces = [content[a:b] for a, b in itertools.pairwise(places)]
    events = [text(piece, len("".join(pieces[:number]).encode())) for number, piece in enumerate(pieces)]
    assert shown(*events, whole(content)) == shown(whole(content))


def test_a_tool_is_named_once_it_is_known_what_it_does() -> None:
    def call(**fields: object) -> pb.AgentEvent:
        return body(tool_call=pb.ToolCall(id="c", **fields))  # type: ignore[arg-type] # fields are the test's own

    events = [
        call(name="Bash", status=pb.TOOL_STATUS_PENDING),
        call(name="Bash", input_json='{"command": "ls"}', status=pb.TOOL_STATUS_PENDING),
        call(status=pb.TOOL_STATUS_RUNNING),
        body(tool_output=pb.ToolOutput(tool_call_id="c", text="a.txt\n")),
        body(tool_result=pb.ToolResult(tool_call_id="c", status=pb.TOOL_STATUS_COMPLETED, content="a.txt")),
    ]
    assert shown(*events) == "● Bash ls\n  │ a.txt\n  ✓ Bash\n"


def test_items_and_tools_of_the_next_attempt_are_others_though_they_are_called_the_same() -> None:
    def of_attempt(number: int, content: str) -> list[pb.AgentEvent]:
        events = [
            text(content),
            body(tool_call=pb.ToolCall(id="c", name="Bash", input_json='{"command": "ls"}')),
            body(tool_output=pb.ToolOutput(tool_call_id="c", text="a.txt\n")),
        ]
        for event in events:
            event.attempt = number
        return events

    once = "\n● Bash ls\n  │ a.txt\n"
    assert shown(*of_attempt(1, "one"), *of_attempt(2, "another")) == f"one{once}another{once}"


def test_a_long_tool_result_is_cut_unless_debugging() -> None:
    content = "\n".join(str(number) for number in range(100))
    event = body(tool_result=pb.ToolResult(status=pb.TOOL_STATUS_COMPLETED, content=content))
    assert shown(event).endswith("  │ 7\n  │ … 92 more lines\n")
    assert "  │ 99\n" in shown(event, debug=True)


def test_lines_of_a_plain_command_are_its_answer_and_those_of_an_agent_are_counted() -> None:
    out = body(log=pb.Log(stream=pb.OUTPUT_STREAM_STDOUT, text="line"))
    error = body(log=pb.Log(stream=pb.OUTPUT_STREAM_STDERR, text="remark", truncated_bytes=5000))
    assert shown(body(started=pb.Started(adapter="process")), out, error) == (
        "▶ process\nline\nstderr │ remark … 5,000 bytes cut\n"
    )
    renderer = Renderer()
    renderer.render(body(started=pb.Started(adapter="claude_code", capabilities=AGENT)))
    assert not renderer.render(out)
    assert not renderer.render(error)
    assert renderer.hidden_lines == 2


def test_joined_lines_are_shown_and_counted_each() -> None:
    joined = body(log=pb.Log(stream=pb.OUTPUT_STREAM_STDERR, text="one\n\nth\x1bree"))
    assert shown(body(started=pb.Started(adapter="process")), joined) == (
        "▶ process\nstderr │ one\nstderr │ \nstderr │ th␛ree\n"
    )
    renderer = Renderer()
    renderer.render(body(started=pb.Started(adapter="claude_code", capabilities=AGENT)))
    assert not renderer.render(joined)
    assert renderer.hidden_lines == 3


def test_nested_agents_are_distinguished() -> None:
    event = text("hello\nyou")
    event.lineage.subagent_id = "sub-1"
    assert shown(event) == "[sub-1] hello\n[sub-1] you\n"


def test_the_second_attempt_is_called_so() -> None:
    event = body(started=pb.Started(adapter="a"))
    event.attempt = 2
    assert shown(event) == "▶ a (attempt 2)\n"


KINDS = [field.name for field in pb.AgentEvent.DESCRIPTOR.oneofs_by_name["body"].fields if field.name != "batch"]
EVIL = "\x1b]0;title\x07\x9b2J\r\x00"


def _poison(message: Message) -> None:
    """Put hostile text into every string of a message."""
    for field in message.DESCRIPTOR.fields:
        repeated = field.is_repeated
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None and field.message_type.file.package == "dragoman.v1":
            if field.message_type.name in {"Capabilities", "Permissions", "Limits"}:
                continue
            inner = getattr(message, field.name).add() if repeated else getattr(message, field.name)
            inner.SetInParent()
            _poison(inner)
        elif field.type == field.TYPE_STRING:
            if repeated:
                getattr(message, field.name).append(EVIL)
            elif field.containing_oneof is None or field.containing_oneof.name.startswith("_"):
                setattr(message, field.name, EVIL)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_event_of_any_kind_steers_the_terminal(kind: str, debug: bool) -> None:
    event = pb.AgentEvent(sequence=1)
    part = getattr(event, kind)
    part.SetInParent()
    _poison(part)
    if kind in {"text", "thinking"}:
        part.delta = EVIL
    event.lineage.subagent_id = EVIL
    renderer = Renderer(debug=debug)
    for segment in [*renderer.render(event), *renderer.break_line()]:
        assert not {character for character in segment.text if ord(character) < 32} - {"\n", "\t"}
        assert "\x9b" not in segment.text


def test_colours_are_added_last() -> None:
    assert coloured([Segment("a", Style.TOOL), Segment("b"), Segment("", Style.ERROR)]) == "\x1b[33ma\x1b[0mb"
