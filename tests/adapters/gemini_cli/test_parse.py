"""Gemini CLI's JSON lines, understood: what was recorded, any split, and unexpected frames."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.gemini_cli.parse import StreamParser, usage_of
from dragoman.sdk import Line, Output
from dragoman.v1 import event_pb2 as pb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sdk.feeding import feed

RECORDINGS = Path(__file__).parent / "recordings"
NAMES = sorted(path.name.removesuffix(".stdout.jsonl") for path in RECORDINGS.glob("*.stdout.jsonl"))
SLOW = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def recorded(name: str) -> bytes:
    return (RECORDINGS / f"{name}.stdout.jsonl").read_bytes()


def parse(chunks: Iterable[bytes], *, stderr: str = "", withholds: bool = False) -> tuple[list[Output], StreamParser]:
    parser = StreamParser(withholds=withholds)
    outputs: list[Output] = []
    for words in stderr.splitlines():
        outputs += parser.line("stderr", Line(words.encode(), 0, True))
    return [*outputs, *feed(parser, chunks)], parser


def of(outputs: Iterable[Output], kind: str) -> list[Any]:
    events = [output for output in outputs if isinstance(output, pb.AgentEvent)]
    return [getattr(event, kind) for event in events if event.WhichOneof("body") == kind]


def lines(*frames: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_was_recorded_is_unknown(name: str) -> None:
    outputs, parser = parse([recorded(name)])
    assert of(outputs, "log") == []
    assert parser.report.session_id
    assert parser.report.model == "gemini-2.5-flash"


def test_text_is_one_item_until_a_tool_comes_between() -> None:
    outputs, parser = parse([recorded("write")])
    items: dict[str, str] = {}
    for text in of(outputs, "text"):
        items[text.item_id] = items.get(text.item_id, "") + text.delta
    assert list(items.values()) == ["Let me do that.", "I wrote hello.txt."]
    assert parser.report.summary == "I wrote hello.txt."
    assert parser.report.terminal is not None
    assert parser.report.terminal.succeeded


def test_a_tool_is_emitted_with_its_input_and_its_result() -> None:
    outputs, _ = parse([recorded("write")])
    (call,), (result,), (change,) = (of(outputs, kind) for kind in ("tool_call", "tool_result", "file_change"))
    assert (call.name, call.kind, call.status) == ("write_file", pb.TOOL_KIND_EDIT, pb.TOOL_STATUS_RUNNING)
    assert json.loads(call.input_json)["content"] == "hello from the mock model\n"
    assert (result.tool_call_id, result.status, result.is_error) == (call.id, pb.TOOL_STATUS_COMPLETED, False)
    # Nothing says whether the file was there before.
    assert (change.path, change.operation) == ("/workspace/hello.txt", pb.FILE_OPERATION_UNSPECIFIED)


def test_a_tool_that_failed_says_why() -> None:
    (result,) = of(parse([recorded("toolfail")])[0], "tool_result")
    assert (result.status, result.is_error) == (pb.TOOL_STATUS_FAILED, True)
    assert result.content == "File not found: /workspace/no/such/file.txt"


def test_usage_parts_the_cache_from_the_rest_and_thoughts_from_the_answer() -> None:
    usage = parse([recorded("think")])[1].report.usage
    assert usage is not None
    tokens = usage.tokens
    assert (tokens.input, tokens.cache_read, tokens.output, tokens.reasoning) == (400, 800, 49, 7)
    assert [model.model for model in usage.models] == ["gemini-2.5-flash"]


def test_nothing_counted_is_absent_and_not_zero() -> None:
    assert parse([recorded("err401")])[1].report.usage is None
    assert usage_of({"total_tokens": "many", "models": 3}) is None


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("err401", pb.FAILURE_KIND_AUTH_REQUIRED, "gemini_auth_required"),
        ("drop", pb.FAILURE_KIND_NETWORK, "gemini_stream_broken"),
        ("refused", pb.FAILURE_KIND_NETWORK, "gemini_stream_broken"),
        ("max_turns", pb.FAILURE_KIND_MAX_TURNS, "gemini_max_turns"),
    ],
)
def test_a_run_that_failed_says_so_whatever_its_exit_code(name: str, kind: int, code: str) -> None:
    terminal = parse([recorded(name)])[1].report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert (terminal.succeeded, terminal.failure.kind, terminal.failure.code) == (False, kind, code)


def test_a_loop_is_no_success() -> None:
    warned = {"type": "error", "severity": "warning", "message": "Loop detected, stopping execution"}
    stats = {"total_tokens": 0, "input_tokens": 0, "output_tokens": 0}
    terminal = parse([lines(warned, {"type": "result", "status": "success", "stats": stats})])[1].report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.code == "gemini_loop_detected"


def test_a_success_without_a_word_or_a_token_is_none() -> None:
    terminal = parse([lines({"type": "result", "status": "success", "stats": {"total_tokens": 0}})])[
        1
    ].report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind == pb.FAILURE_KIND_NO_RESULT


def test_without_a_result_nothing_is_claimed() -> None:
    assert parse([recorded("tool_sigterm")])[1].report.terminal is None


def test_a_withheld_tool_that_is_called_all_the_same_is_denied_visibly() -> None:
    call = {"type": "tool_use", "tool_name": "write_file", "tool_id": "write_file__1", "parameters": {}}
    error = {"type": "tool_not_registered", "message": 'Tool "write_file" not found.'}
    result = {"type": "tool_result", "tool_id": "write_file__1", "status": "error", "error": error}
    outputs, _ = parse([lines(call, result)], withholds=True)
    assert of(outputs, "tool_result")[0].status == pb.TOOL_STATUS_DENIED
    assert of(outputs, "notice")[0].code == "permission_denied"
    assert of(parse([lines(call, result)])[0], "tool_result")[0].status == pb.TOOL_STATUS_FAILED


LIMITED = """Attempt 1 failed: You exceeded your current quota, please check your plan and billing details.
* Quota exceeded for metric: generate_content_requests, limit: 10
Suggested retry after 1s.. Retrying after 5696ms...
"""


def test_a_retry_is_reported_and_so_is_its_success() -> None:
    outputs, _ = parse([recorded("err429_once")], stderr=LIMITED)
    retrying, running = of(outputs, "state")
    assert (retrying.phase, retrying.retry_attempt) == (pb.RUN_PHASE_RETRYING, 1)
    assert retrying.retry_cause == pb.FAILURE_KIND_RATE_LIMITED
    assert retrying.retry_delay.ToMilliseconds() == 5696
    assert running.phase == pb.RUN_PHASE_RUNNING


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (
            "Attempt 1 failed with status 500. Retrying with backoff... _ApiError",
            pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
        ),
        ("Attempt 3 failed. Retrying with backoff... Error: fetch failed", pb.FAILURE_KIND_NETWORK),
    ],
)
def test_retries_of_other_causes(words: str, cause: int) -> None:
    (state,) = of(parse([], stderr=words)[0], "state")
    assert state.retry_cause == cause


def test_the_last_attempt_is_no_retry() -> None:
    assert of(parse([], stderr="Attempt 2 failed: quota.\nSuggested.. Max attempts reached\n")[0], "state") == []


@SLOW
@given(st.sampled_from(NAMES), st.lists(st.integers(0, 4000), max_size=6))
def test_any_split_gives_the_same(name: str, cuts: list[int]) -> None:
    data, places = recorded(name), sorted({0, *cuts})
    chunks = [data[a:b] for a, b in zip(places, [*places[1:], len(data)], strict=True)]
    assert of(parse(chunks)[0], "text") == of(parse([data])[0], "text")


_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["role", "content", "tool_id", "tool_name", "parameters", "status", "error", "stats", "message", "severity"]
)


@SLOW
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["init", "message", "tool_use", "tool_result", "error", "result", "new"]),
            st.dictionaries(_KEYS, _VALUES, max_size=5),
        ),
        max_size=6,
    )
)
def test_whatever_a_frame_holds_nothing_raises(frames: list[tuple[str, dict[str, Any]]]) -> None:
    data = b"".join(json.dumps({**rest, "type": kind}).encode() + b"\n" for kind, rest in frames)
    for event in parse([data])[0]:
        if isinstance(event, pb.AgentEvent):
            event.SerializeToString()


@SLOW
@given(st.binary(max_size=200))
def test_whatever_comes_nothing_raises_and_nothing_is_lost(data: bytes) -> None:
    outputs, _ = parse([data])
    assert bool(of(outputs, "log")) == bool(data)


def test_what_a_tool_changed_is_reported(tmp_path: Path) -> None:
    parser = StreamParser([str(tmp_path)])
    outputs: list[Output] = []
    path = str(tmp_path / "a.txt")
    replaced = {"file_path": path, "old_string": "hello", "new_string": "bye"}
    for call_id, name, parameters in (
        ("c1", "write_file", {"file_path": path, "content": "hello\n"}),
        ("c2", "replace", replaced),
    ):
        use = {"type": "tool_use", "tool_id": call_id, "tool_name": name, "parameters": parameters}
        ended = {"type": "tool_result", "tool_id": call_id, "status": "success"}
        for frame in (use, ended):
            outputs += parser.line("stdout", Line(json.dumps(frame).encode(), 0, True))
        (tmp_path / "a.txt").write_text("hello\n", encoding="utf-8")
    created, modified = of(outputs, "file_change")
    assert (created.operation, "+hello" in created.diff) == (pb.FILE_OPERATION_CREATE, True)
    assert (modified.operation, "-hello" in modified.diff) == (pb.FILE_OPERATION_MODIFY, True)
