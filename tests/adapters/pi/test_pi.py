"""pi's adapter without pi: what it makes of recordings and of garbage, and how it runs pi."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.pi import adapter
from dragoman.adapters.pi.parse import PiParser
from dragoman.protocol.errors import DragomanError
from dragoman.sdk import Evidence, FailureInfo, Job, Line, Report, Terminal
from dragoman.sdk.run import Instructions
from dragoman.sdk.skills import SkillSource
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.jobs import job_of, request_of

RECORDINGS = Path(__file__).parent / "recordings"
SESSION = "01a1ffd5-35dd-7551-b064-600a91c73bf6"
EVERYTHING = "read,grep,find,ls,edit,write,bash"


def parsed(*lines: bytes) -> tuple[PiParser, list[pb.AgentEvent]]:
    parser = PiParser()
    outputs = [output for data in lines for output in parser.line("stdout", Line(data, 0, True))]
    outputs += parser.finish()
    assert all(isinstance(output, pb.AgentEvent) for output in outputs)
    return parser, [output for output in outputs if isinstance(output, pb.AgentEvent)]


def recorded(name: str) -> list[bytes]:
    return (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines()


def frame(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def joined(events: list[pb.AgentEvent], kind: str = "text") -> str:
    return "".join(getattr(event, kind).delta for event in events if event.WhichOneof("body") == kind)


def of(events: list[pb.AgentEvent], kind: str) -> list[Any]:
    return [getattr(event, kind) for event in events if event.WhichOneof("body") == kind]


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.jsonl")))
def test_everything_recorded_is_understood(name: str) -> None:
    parser, events = parsed(*recorded(name))
    assert of(events, "log") == []
    assert parser.report.session_id
    assert parser.report.terminal is not None


def test_cumulative_frames_become_pieces() -> None:
    parser, events = parsed(*recorded("text"))
    pieces = [text.delta for text in of(events, "text")]
    assert "".join(pieces) == parser.report.summary == "Hello from the mock."
    assert len([piece for piece in pieces if piece]) > 1
    assert pieces[-1] == "", "the item is ended, so that what is held back of it comes out"
    assert parser.report.terminal == Terminal(succeeded=True)


def test_thinking_is_not_the_answer() -> None:
    _, events = parsed(*recorded("reasoning"))
    assert joined(events, "thinking") == "Let me think. Two plus two is four."
    assert joined(events) == "The answer is 4."


def test_tokens_and_cost_of_calls_add_up() -> None:
    parser, events = parsed(*recorded("toolfail"))
    calls = of(events, "usage")
    assert [(call.scope, call.tokens.input, call.tokens.cache_read) for call in calls] == [
        (pb.USAGE_SCOPE_CALL, 90, 10)
    ] * 2
    total = parser.report.usage
    assert total is not None
    assert (total.tokens.input, total.tokens.output, total.cost.amount) == (180, 40, "0.000262")


def test_the_usage_of_a_failed_message_is_unknown() -> None:
    parser, events = parsed(*recorded("err401"))
    assert of(events, "usage") == []
    assert parser.report.usage is None


def test_a_model_without_price_has_no_cost() -> None:
    usage = {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3, "cost": {"total": 0}}
    message = {"role": "assistant", "content": [], "usage": usage, "stopReason": "stop"}
    parser, _ = parsed(frame(type="message_end", message=message))
    assert parser.report.usage is not None
    assert not parser.report.usage.HasField("cost")


def test_a_tool_is_emitted_from_its_first_delta_to_its_result() -> None:
    _, events = parsed(*recorded("write"))
    calls = of(events, "tool_call")
    assert [call.status for call in calls] == [pb.TOOL_STATUS_PENDING, pb.TOOL_STATUS_RUNNING]
    assert json.loads(calls[1].input_json) == {"path": "pi.txt", "content": "hello from mock\n"}
    assert calls[1].kind == pb.TOOL_KIND_EDIT
    (result,) = of(events, "tool_result")
    assert (result.status, result.is_error) == (pb.TOOL_STATUS_COMPLETED, False)


def test_a_command_that_fails_has_its_exit_code() -> None:
    (result,) = of(parsed(*recorded("bash_exit3"))[1], "tool_result")
    assert (result.status, result.exit_code, result.is_error) == (pb.TOOL_STATUS_FAILED, 3, True)


def test_an_error_is_the_end_only_once_nothing_follows() -> None:
    parser = PiParser()
    for data in recorded("drop"):
        list(parser.line("stdout", Line(data, 0, True)))
        assert parser.report.terminal is None
    list(parser.finish())
    assert parser.report.terminal is not None
    assert not parser.report.terminal.succeeded


def test_each_try_is_reported_and_counted() -> None:
    _, events = parsed(*recorded("drop"))
    states = [state for state in of(events, "state") if state.phase == pb.RUN_PHASE_RETRYING]
    assert len(of(events, "state")) == 6, "after each it goes on"
    assert [(state.retry_attempt, state.max_retries, state.retry_delay.seconds) for state in states] == [
        (1, 3, 2),
        (2, 3, 4),
        (3, 3, 8),
    ]
    assert joined(events) == "partial answer" * 4
    taken_back = [text.item_id for text in of(events, "text") if text.WhichOneof("content") == "whole"]
    assert taken_back == ["1-0", "2-0", "3-0"], "what was said of a message that is begun anew does not stand"


def test_a_cut_line_is_a_log() -> None:
    whole = recorded("text")[-1]
    _, events = parsed(whole[: len(whole) // 2])
    assert [log.stream for log in of(events, "log")] == [pb.OUTPUT_STREAM_STDOUT]


def test_words_on_standard_error_are_a_log() -> None:
    (output,) = PiParser().line("stderr", Line(recorded("text")[0], 0, True))
    assert isinstance(output, pb.AgentEvent)
    assert output.HasField("log")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["message", "assistantMessageEvent", "partial", "content", "usage", "id", "args", "result", "toolCallId", "role"]
)
TYPES = ["session", "message_start", "message_update", "message_end", "tool_execution_start", "tool_execution_end"]
TYPES += ["auto_retry_start", "agent_end", "made_up", "line"]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(TYPES), st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON)))))
def test_no_frame_raises(frames: list[tuple[str, dict[str, Any]]]) -> None:
    parsed(*(json.dumps({**fields, "type": kind}).encode() for kind, fields in frames))


@settings(max_examples=50)
@given(st.data())
def test_no_mangled_recording_raises(data: st.DataObject) -> None:
    lines = recorded(data.draw(st.sampled_from(["text", "toolfail", "drop"])))
    mangled = []
    for line in lines:
        at = data.draw(st.integers(0, len(line)))
        mangled.append(line[:at] + data.draw(st.binary(max_size=4)) + line[at + 1 :])
    parsed(*mangled)


# How it is run.


def job(tmp_path: Path, **changed: Any) -> Job:
    settings = {"config": changed.pop("config", {}), "model": changed.pop("model", "")}
    permissions = changed.pop("permissions", pb.Permissions(auto_approve=True))
    run_request = request_of(tmp_path, **settings, permissions=permissions)
    return job_of(adapter(), run_request, **{"executable": "/bin/pi", "version": "0.73.1", **changed})


def test_the_plainest_run(tmp_path: Path) -> None:
    plan = adapter().plan(job(tmp_path))
    assert plan.argv == ("/bin/pi", "--mode", "json", "--print")
    assert (plan.stdin, plan.keep_stdin_open, plan.notices) == (b"Do it.", False, ())
    assert plan.env == {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}


def test_every_option_is_passed_on(tmp_path: Path) -> None:
    plan = adapter().plan(
        job(
            tmp_path,
            model="some/model",
            config={"provider": "some", "effort": "low", "extraArgs": ["--verbose"]},
            system_prompt="You are Ada.",
            instructions=Instructions("Be brief.", "/docs"),
            skills=(SkillSource("demo"),),
            skills_dir=Path("/run/dir/skills"),
        )
    )
    assert plan.argv == (
        *("/bin/pi", "--mode", "json", "--print", "--provider", "some", "--model", "some/model"),
        *("--thinking", "low", "--append-system-prompt", "/run/dir/system.md", "--skill", "/run/dir/skills/demo"),
        "--verbose",
    )
    assert plan.files["system.md"].startswith(b"You are Ada.\n\nBe brief.")


def test_a_slash_is_text(tmp_path: Path) -> None:
    assert adapter().plan(job(tmp_path, prompt="/clear")).stdin == b" /clear"


ALLOW, DENY, ASK = pb.PERMISSION_DECISION_ALLOW, pb.PERMISSION_DECISION_DENY, pb.PERMISSION_DECISION_ASK


@pytest.mark.parametrize(
    ("permissions", "tools"),
    [
        (pb.Permissions(), "read,grep,find,ls"),
        (pb.Permissions(interactive=True), "read,grep,find,ls"),
        (pb.Permissions(default_decision=ASK), "read,grep,find,ls"),
        (pb.Permissions(default_decision=ALLOW), ""),
        (pb.Permissions(default_decision=DENY), "none"),
        (pb.Permissions(rules=[pb.PermissionRule(decision=ALLOW, tool_name="bash")]), "read,grep,find,ls,bash"),
        (
            pb.Permissions(rules=[pb.PermissionRule(decision=ALLOW, tool_kind=pb.TOOL_KIND_EDIT)]),
            "read,grep,find,ls,edit,write",
        ),
        (
            pb.Permissions(rules=[pb.PermissionRule(decision=ALLOW, tool_name="write", path_glob="/x/*")]),
            "read,grep,find,ls",
        ),
        (
            pb.Permissions(default_decision=ALLOW, rules=[pb.PermissionRule(decision=DENY, command_prefix="rm")]),
            "none",
        ),
        (pb.Permissions(auto_approve=True, rules=[pb.PermissionRule(decision=DENY)]), ""),
    ],
)
def test_tools_that_are_not_wholly_allowed_are_withheld(
    tmp_path: Path, permissions: pb.Permissions, tools: str
) -> None:
    plan = adapter().plan(job(tmp_path, permissions=permissions))
    expected = {"": (), "none": ("--no-tools",)}.get(tools, ("--tools", tools))
    assert plan.argv[4:] == expected
    assert [code for code, _ in plan.notices] == (["tools_withheld"] if tools else [])


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("401 Incorrect API key provided", pb.FAILURE_KIND_AUTH_REQUIRED),
        ("429 Rate limit reached", pb.FAILURE_KIND_RATE_LIMITED),
        ("terminated", pb.FAILURE_KIND_NETWORK),
        ("Strange.", None),
        ("500 The server had an error", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
        ("400 We could not parse the JSON body of your request.", pb.FAILURE_KIND_INVALID_CONFIG),
        ('400: {"message":"No such field.","type":"invalid_request_error"}', pb.FAILURE_KIND_INVALID_CONFIG),
    ],
)
def test_what_its_words_mean(words: str, kind: int | None) -> None:
    failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, words, "pi_error")
    report = Report(terminal=Terminal(succeeded=False, failure=failure))
    found = adapter().classify(Evidence(report))
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize(
    "words", ["429 Slow down, please", '429: {"message":"Rate limit","code":"rate_limit_exceeded"}']
)
def test_the_status_before_its_words(words: str) -> None:
    failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, words, "pi_error")
    found = adapter().classify(Evidence(Report(terminal=Terminal(succeeded=False, failure=failure))))
    assert found is not None
    assert (found.kind, found.http_status) == (pb.FAILURE_KIND_RATE_LIMITED, 429)


def message_end(reason: str, **usage: int) -> bytes:
    content = [{"type": "text", "text": "Half an"}]
    message = {"role": "assistant", "content": content, "stopReason": reason, "usage": usage}
    return frame(type="message_end", message=message)


def test_an_answer_cut_by_the_output_limit_has_failed() -> None:
    start = frame(type="message_start", message={"role": "assistant"})
    parser, _events = parsed(start, message_end("length", totalTokens=5, output=5), frame(type="agent_end"))
    assert parser.report.terminal is not None
    assert parser.report.terminal.failure is not None
    assert parser.report.terminal.failure.kind == pb.FAILURE_KIND_OUTPUT_LIMIT


@pytest.mark.parametrize(("tokens", "codes"), [(0, ["answer_may_be_cut"]), (5, [])])
def test_an_answer_without_a_token_count_may_be_cut(tokens: int, codes: list[str]) -> None:
    start = frame(type="message_start", message={"role": "assistant"})
    parser, events = parsed(start, message_end("stop", totalTokens=tokens), frame(type="agent_end"))
    assert [notice.code for notice in of(events, "notice")] == codes
    assert parser.report.terminal is not None


def test_pieces_without_the_whole_are_emitted_once() -> None:
    def piece(kind: str, at: int, **more: Any) -> bytes:
        return frame(type="message_update", assistantMessageEvent={"type": kind, "contentIndex": at, **more})

    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello there."}]
    whole = {"role": "assistant", "content": content, "stopReason": "stop", "usage": {"totalTokens": 5}}
    parser, events = parsed(
        frame(type="message_start", message={"role": "assistant", "content": []}),
        piece("thinking_delta", 0, delta="Hm."),
        piece("text_start", 1),
        piece("text_delta", 1, delta="Hello "),
        piece("text_delta", 1, delta="there."),
        piece("text_end", 1, content="Hello there."),
        frame(type="message_end", message=whole),
        frame(type="agent_end"),
    )
    assert [event.delta for event in of(events, "text") if event.delta] == ["Hello ", "there."]
    assert joined(events, "thinking") == "Hm."
    assert parser.report.summary == "Hello there."


def test_compaction_is_reported() -> None:
    result = {"summary": "So far.", "tokensBefore": 1200}
    _parser, events = parsed(
        frame(type="compaction_start", reason="threshold"),
        frame(type="compaction_end", reason="threshold", result=result, aborted=False, willRetry=False),
    )
    began, ended = of(events, "compaction")
    assert (began.trigger, began.finished) == ("threshold", False)
    assert (ended.finished, ended.tokens_before, ended.summary) == (True, 1200, "So far.")
    _parser, events = parsed(frame(type="compaction_end", reason="overflow", aborted=False, errorMessage="No key"))
    assert [notice.code for notice in of(events, "notice")] == ["compaction_failed"]


def test_extra_frames_of_later_versions_are_no_log() -> None:
    _parser, events = parsed(
        frame(type="entry_appended", entry={"type": "context_edit"}), frame(type="agent_settled")
    )
    assert events == []


def test_an_unknown_session() -> None:
    words = f"No session found matching '{SESSION}'"
    found = adapter().classify(Evidence(Report(), exit_code=1, resumed=True, stderr_tail=words))
    assert found is not None
    assert found.kind == pb.FAILURE_KIND_SESSION_LOST


@pytest.mark.parametrize("text", ["", SESSION[:8], f"{SESSION}.jsonl", "../x", SESSION.upper()])
def test_no_session_id(text: str) -> None:
    assert adapter().is_session_id(SESSION)
    assert not adapter().is_session_id(text)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="none to choose"):
        job(tmp_path, permissions=pb.Permissions(auto_approve=True, native_mode="plan"))
    with pytest.raises(DragomanError, match="must not be blank"):
        adapter().accept(request_of(tmp_path, prompt="\n "))


def test_what_a_tool_changed_is_reported(tmp_path: Path) -> None:
    def frame(kind: str, call_id: str, name: str, **more: Any) -> Line:
        fields = {"type": f"tool_execution_{kind}", "toolCallId": call_id, "toolName": name, **more}
        return Line(json.dumps(fields).encode(), 0, True)

    done = {"content": [{"type": "text", "text": "Done."}]}
    edits = [{"oldText": "hello", "newText": "bye"}]
    parser, events = PiParser([str(tmp_path)]), []
    for kind, call_id, name, more in (
        ("start", "c1", "write", {"args": {"path": "a.txt", "content": "hello\n"}}),
        ("end", "c1", "write", {"result": done, "isError": False}),
        ("start", "c2", "edit", {"args": {"path": "a.txt", "edits": edits}}),
        ("end", "c2", "edit", {"result": done, "isError": False}),
        ("start", "c3", "write", {"args": {"path": "b.txt", "content": "x"}}),
        ("end", "c3", "write", {"result": done, "isError": True}),
    ):
        events += list(parser.line("stdout", frame(kind, call_id, name, **more)))
        if kind == "end" and call_id == "c1":
            (tmp_path / "a.txt").write_text("hello\n", encoding="utf-8")
    created, modified = of([event for event in events if isinstance(event, pb.AgentEvent)], "file_change")
    assert (created.path, created.operation) == (str(tmp_path / "a.txt"), pb.FILE_OPERATION_CREATE)
    assert "+hello" in created.diff
    assert (modified.tool_call_id, modified.operation) == ("c2", pb.FILE_OPERATION_MODIFY)
    assert ("-hello" in modified.diff, "+bye" in modified.diff) == (True, True)
