"""A parser of JSON lines: any bytes, cut anywhere, never raise, and give events in an order that makes sense."""

import json
from collections.abc import Iterable
from typing import Any

from dragoman.sdk import Line, Output, Terminal
from dragoman.sdk.fields import Fields, count, inner, number, text
from dragoman.sdk.parsing import FileTool, JsonLinesParser, ToolCalls, call_usage, token_counts
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.feeding import feed, pieces_of


class ExampleParser(JsonLinesParser):
    """Uses whatever there is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            {
                "delta": lambda frame: self.texts.delta(text(frame, "id"), text(frame, "text")),
                "whole": lambda frame: self.texts.whole(text(frame, "id"), text(frame, "text")),
                "sum": lambda frame: self.texts.so_far(text(frame, "id"), text(frame, "text"), "thinking"),
                "word": lambda frame: self.texts.piece(text(frame, "text")),
                "again": self._again,
                "call": self._call,
                "called": self._called,
                "used": self._used,
                "done": self._done,
                "maybe": lambda frame: [] if frame.get("known") is True else None,
            },
            silent=("ping",),
            **options,
        )
        self._calls = ToolCalls({"write": pb.TOOL_KIND_EDIT}, {"write": FileTool(content="text")})

    def _again(self, frame: Fields) -> Iterable[Output]:
        yield from self.texts.retract(*self.texts.open())
        yield from self.retries.begin(text(frame, "text"), attempt=count(frame, "n"), delay_ms=count(frame, "n"))

    def _call(self, frame: Fields) -> Iterable[Output]:
        yield from self.retries.end()
        yield from self.texts.pause()
        yield from self._calls.pending(text(frame, "id"), text(frame, "name"))
        yield from self._calls.running(text(frame, "id"), text(frame, "name"), inner(frame, "args"))

    def _called(self, frame: Fields) -> Iterable[Output]:
        result = pb.ToolResult(tool_call_id=text(frame, "id"), status=pb.TOOL_STATUS_COMPLETED)
        return self._calls.ended(result)

    def _used(self, frame: Fields) -> Iterable[Output]:
        call = call_usage(token_counts(frame, {"n": "input", "m": "output"}), text(frame, "name"))
        self.report.usage = self.usage.add(call, number(frame, "cost"))
        return [pb.AgentEvent(usage=call)]

    def _done(self, frame: Fields) -> Iterable[Output]:
        del frame
        self.report.terminal = Terminal(succeeded=True)
        self.report.summary = self.texts.last_text
        return ()


TYPES = ["delta", "whole", "sum", "word", "again", "call", "called", "used", "done", "maybe", "ping", "new"]
NUMBERS = st.integers() | st.floats() | st.just(10**400)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "b", "write", "\ud800", "\0"]),
    lambda inside: (
        st.lists(inside, max_size=2) | st.dictionaries(st.sampled_from(["path", "text", "n"]), inside, max_size=2)
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(["id", "text", "name", "args", "n", "m", "cost", "known"])
FRAMES = st.builds(
    lambda kind, more: json.dumps({**more, "type": kind}).encode(),
    st.sampled_from(TYPES),
    st.dictionaries(KEYS, JSON),
)
LINES = st.lists(FRAMES | st.binary(max_size=20), max_size=20)


def events_of(parser: JsonLinesParser, pieces: list[bytes]) -> list[pb.AgentEvent]:
    outputs = feed(parser, pieces)
    assert all(isinstance(output, pb.AgentEvent) for output in outputs)
    return [output for output in outputs if isinstance(output, pb.AgentEvent)]


def frame(kind: object, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


@given(LINES, st.booleans(), st.data())
def test_any_lines_cut_anywhere_give_the_same_events(lines: list[bytes], once: bool, data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    left, right = ExampleParser(once=once), ExampleParser(once=once)
    cut = [event.SerializeToString() for event in events_of(left, pieces_of(whole, data))]
    assert cut == [event.SerializeToString() for event in events_of(right, [whole])]
    assert repr(left.report) == repr(right.report)


@given(st.binary(max_size=200))
def test_no_bytes_raise_and_none_are_lost(whole: bytes) -> None:
    lines = whole.split(b"\n")
    events = events_of(ExampleParser(), [whole])
    assert len([event for event in events if event.HasField("log")]) == len(lines) - (not lines[-1])


@given(LINES)
def test_events_come_in_an_order_that_makes_sense(lines: list[bytes]) -> None:
    begun: set[str] = set()
    texts: set[str] = set()
    is_retrying = False
    for event in events_of(ExampleParser(), [b"".join(line + b"\n" for line in lines)]):
        kind = event.WhichOneof("body")
        if kind == "tool_call":
            is_first = event.tool_call.id not in begun
            begun.add(event.tool_call.id)
            assert not is_first or event.tool_call.status == pb.TOOL_STATUS_PENDING
        elif kind == "file_change":
            assert event.file_change.tool_call_id in begun, "only a call that was announced changes a file"
        elif kind == "state":
            assert is_retrying or event.state.phase == pb.RUN_PHASE_RETRYING
            is_retrying = event.state.phase == pb.RUN_PHASE_RETRYING
        elif kind in {"text", "thinking"}:
            piece = event.text if kind == "text" else event.thinking
            (texts.add if piece.delta else texts.discard)(piece.item_id)
    assert texts == set(), "every item has ended"


def test_the_type_may_be_under_another_key() -> None:
    parser = ExampleParser(type_key="event")
    (event,) = events_of(parser, [b'{"event": "word", "text": "Hi", "type": "ping"}\n'])[:1]
    assert event.text.delta == "Hi"


def test_what_is_not_known_is_a_log_and_not_recognized() -> None:
    parser = ExampleParser()
    events = events_of(parser, [frame("new"), b"[]\n", b"text\n", frame(5), b"\n"])
    assert [event.WhichOneof("body") for event in events] == ["log"] * 5
    assert not parser.report.has_output
    assert events_of(parser, [frame("ping")]) == []
    assert parser.report.has_output


def test_a_handler_may_not_know_what_it_gets() -> None:
    (event,) = events_of(ExampleParser(), [frame("maybe"), frame("maybe", known=True)])
    assert event.HasField("log")


def test_objects_of_other_types_may_have_a_reader_of_their_own() -> None:
    parser = ExampleParser(other=lambda frame: [pb.AgentEvent(text=pb.Text(whole=text(frame, "type")))])
    assert [event.text.whole for event in events_of(parser, [frame("new"), b"{}\n"])] == ["new", ""]
    assert parser.report.has_output


def test_standard_error_is_no_frame() -> None:
    (event,) = ExampleParser().line("stderr", Line(frame("done"), 0, complete=True))
    assert isinstance(event, pb.AgentEvent)
    assert event.log.stream == pb.OUTPUT_STREAM_STDERR


def test_events_say_which_frame_they_come_from_only_where_that_is_asked_for() -> None:
    for names, expected in ((False, ""), (True, "word")):
        event, _ = events_of(ExampleParser(names_frames=names), [frame("word", text="x")])
        assert event.native.type == expected


def test_the_example_adds_up() -> None:
    parser = ExampleParser()
    kinds = [
        event.WhichOneof("body")
        for event in events_of(
            parser,
            [
                *(
                    frame("word", text="a"),
                    frame("again", n=1),
                    frame("word", text="b"),
                    frame("call", id="1", name="x"),
                ),
                *(frame("called", id="1"), frame("used", n=3, cost=0.1), frame("used", n=4, m=0, cost=0.2)),
                *(frame("done"),),
            ],
        )
    ]
    assert kinds == [
        *("text", "text", "text", "state", "text", "state", "text", "tool_call", "tool_call", "tool_result"),
        *("usage", "usage"),
    ]
    report = parser.report
    assert (report.summary, report.terminal) == ("b", Terminal(succeeded=True))
    assert report.usage is not None
    assert (report.usage.tokens.input, report.usage.tokens.output, report.usage.cost.amount) == (7, 0, "0.3")
