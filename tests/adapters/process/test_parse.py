"""What a command prints, line by line: pure."""

import json
from typing import Any

import pytest
from dragoman.adapters.process.parse import ObjectParser, TextParser
from dragoman.sdk import Line, Output
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.feeding import feed as feed_pieces
from tests.sdk.feeding import pieces_of


def feed(parser: ObjectParser | TextParser, *lines: dict[str, Any] | bytes) -> list[pb.AgentEvent]:
    """Return the events of these lines on standard output."""
    outputs: list[Output] = []
    for line in lines:
        data = line if isinstance(line, bytes) else json.dumps(line).encode()
        outputs += parser.line("stdout", Line(data, 0, complete=True))
    outputs += parser.finish()
    assert all(isinstance(output, pb.AgentEvent) for output in outputs)
    return [output for output in outputs if isinstance(output, pb.AgentEvent)]


def one(line: dict[str, Any]) -> pb.AgentEvent:
    (event,) = feed(ObjectParser(), line)
    return event


def test_each_kind_of_paperclips_transcripts() -> None:
    assert one({"type": "init", "model": "m", "sessionId": "s"}).session == pb.Session(native_id="s", model="m")
    assert one({"type": "assistant", "text": "t"}).text == pb.Text(item_id="text-1", whole="t")
    assert one({"type": "thinking", "text": "t"}).thinking == pb.Thinking(item_id="thinking-1", whole="t")
    assert one({"type": "user", "text": "t"}).message == pb.Message(role=pb.MESSAGE_ROLE_USER, text="t")
    assert one({"type": "system", "text": "t"}).message == pb.Message(role=pb.MESSAGE_ROLE_SYSTEM, text="t")
    call = one({"type": "tool_call", "id": "1", "name": "Write", "input": {"path": "a", "n": 1}}).tool_call
    assert (call.id, call.name, call.input_json) == ("1", "Write", '{"path":"a","n":1}')
    assert call.status == pb.TOOL_STATUS_RUNNING
    good = one({"type": "tool_result", "toolUseId": "1", "content": "ok", "isError": False}).tool_result
    assert (good.tool_call_id, good.content, good.status) == ("1", "ok", pb.TOOL_STATUS_COMPLETED)
    assert good.HasField("is_error")
    bad = one({"type": "tool_result", "toolUseId": "1", "content": ["a"], "isError": True}).tool_result
    assert (bad.content, bad.status, bad.is_error) == ('["a"]', pb.TOOL_STATUS_FAILED, True)
    unsaid = one({"type": "tool_result", "toolUseId": "1"}).tool_result
    assert not unsaid.HasField("is_error"), "absent is not false"


@pytest.mark.parametrize("other", [{"type": "user"}, {"type": "user", "delta": True}])
def test_pieces_make_items_and_say_where_they_end(other: dict[str, Any]) -> None:
    piece = {"type": "assistant", "delta": True}
    events = feed(ObjectParser(), {**piece, "text": "a"}, {**piece, "text": "b"}, other, {**piece, "text": "c"})
    texts = [(event.text.item_id, event.text.WhichOneof("content")) for event in events if event.HasField("text")]
    ended = [("text-1", None), ("text-2", "delta"), ("text-2", None)]
    assert texts == [("text-1", "delta"), ("text-1", "delta"), *ended]


def test_objects_of_any_type_are_output_in_the_form_that_is_due() -> None:
    parser = ObjectParser()
    feed(parser, b"noise")
    assert not parser.report.has_output
    (event,) = feed(parser, {"type": "nonsense"})
    assert event.HasField("log")
    assert parser.report.has_output


def test_noise_does_not_end_an_item() -> None:
    piece = {"type": "assistant", "delta": True}
    events = feed(ObjectParser(), {**piece, "text": "a"}, b"noise", {**piece, "text": "b"})
    assert [event.text.item_id for event in events] == ["text-1", "", "text-1", "text-1"]


RESULT = {"type": "result", "text": "done", "subtype": "s", "inputTokens": 5, "outputTokens": 0, "costUsd": 0.0026}


def test_the_result() -> None:
    parser = ObjectParser()
    assert feed(parser, RESULT) == []
    report = parser.report
    assert report.terminal is not None
    assert (report.terminal.succeeded, report.terminal.subtype, report.summary) == (True, "s", "done")
    assert report.usage is not None
    assert (report.usage.tokens.input, report.usage.tokens.output) == (5, 0)
    assert not report.usage.tokens.HasField("cache_read"), "absent is not zero"
    assert (report.usage.cost.amount, report.usage.cost.currency) == ("0.0026", "USD")
    assert json.loads(report.raw_json) == RESULT


def test_a_failure_with_its_reasons() -> None:
    parser = ObjectParser()
    feed(parser, {"type": "result", "isError": True, "text": "no luck", "errors": ["a", 5, "b"]})
    assert parser.report.terminal is not None
    failure = parser.report.terminal.failure
    assert failure is not None
    assert (failure.message, failure.errors) == ("no luck", ("a", "b"))


@pytest.mark.parametrize(
    "odd",
    [
        {"inputTokens": -1},
        {"inputTokens": 2**70},
        {"inputTokens": True},
        {"inputTokens": "5"},
        {"inputTokens": None},
        {"costUsd": -1},
        {"costUsd": "5"},
        {"costUsd": 10**400},
    ],
)
def test_odd_numbers_take_nothing_with_them(odd: dict[str, Any]) -> None:
    parser = ObjectParser()
    feed(parser, {"type": "result", **odd})
    assert parser.report.terminal is not None
    assert parser.report.usage is None


def test_infinite_costs_are_none() -> None:
    parser = ObjectParser()
    feed(parser, b'{"type": "result", "costUsd": Infinity, "outputTokens": NaN}')
    assert parser.report.terminal is not None
    assert parser.report.usage is None


@pytest.mark.parametrize("line", [b"", b"text", b"[]", b"5", b'{"type": 5}', b'{"type": "nonsense"}', b"{", b"\xff"])
def test_anything_else_is_a_line(line: bytes) -> None:
    (event,) = feed(ObjectParser(), line)
    assert (event.log.raw or event.log.text.encode()) == line


def test_standard_error_is_never_parsed() -> None:
    parser = ObjectParser()
    (event,) = parser.line("stderr", Line(json.dumps(RESULT).encode(), 0, complete=True))
    assert isinstance(event, pb.AgentEvent)
    assert event.log.stream == pb.OUTPUT_STREAM_STDERR
    assert parser.report.terminal is None


def test_the_summary_of_an_answer_in_many_pieces_takes_no_square_of_its_length() -> None:
    parser = ObjectParser()
    piece = json.dumps({"type": "assistant", "delta": True, "text": "word "}).encode()
    for _ in range(100_000):
        parser.line("stdout", Line(piece, 0, complete=True))
    parser.finish()
    assert len(parser.report.summary) < 300_000
    assert parser.report.summary.endswith("word ...")


def test_the_summary_of_text_is_its_last_lines_cut_between_words() -> None:
    parser = TextParser()
    feed(parser, *(f"line {number}".encode() for number in range(7)), b"", b"word " * 200, b"x" * 500)
    assert parser.report.summary.split("\n") == ["line 4", "line 5", "line 6", "word " * 79 + "word ...", "..."]


lines = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from([RESULT, {"type": "assistant", "delta": True, "text": "é"}, {"type": "tool_call"}]).map(
            lambda value: json.dumps(value, ensure_ascii=False).encode()
        ),
    ),
    max_size=8,
)


@given(lines, st.data())
def test_any_split_gives_the_same_events(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)

    def events(pieces: list[bytes]) -> list[bytes]:
        outputs = feed_pieces(ObjectParser(), pieces)
        return [output.SerializeToString() for output in outputs if isinstance(output, pb.AgentEvent)]

    assert events(pieces_of(whole, data)) == events([whole])
