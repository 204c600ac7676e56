"""Texts in pieces: whatever the cuts, what comes out is the whole, redacted, placed by offset."""

import itertools

import pytest
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.sdk._output import text_streams as _text_streams
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.running import kinds, make_run, written

SECRET = "hunter2-hunter2"


def text(delta: str, item_id: str = "i") -> pb.AgentEvent:
    return pb.AgentEvent(text=pb.Text(item_id=item_id, delta=delta))


def whole(content: str, item_id: str = "i") -> pb.AgentEvent:
    return pb.AgentEvent(text=pb.Text(item_id=item_id, whole=content))


def complete(item_id: str = "i") -> pb.AgentEvent:
    return pb.AgentEvent(text=pb.Text(item_id=item_id))


def output(piece: str | bytes, call: str = "c", stream: int = pb.OUTPUT_STREAM_STDOUT) -> pb.AgentEvent:
    event = pb.AgentEvent(tool_output=pb.ToolOutput(tool_call_id=call))
    event.tool_output.stream = stream  # type: ignore[assignment]  # any number may come
    if isinstance(piece, bytes):
        event.tool_output.raw = piece
        event.tool_output.text = piece.decode(errors="replace")
    else:
        event.tool_output.text = piece
    return event


def assemble(events: list[pb.AgentEvent], kind: str = "text") -> str:
    """Return an item as a reader builds it: deltas at their offsets, a whole in place of everything."""
    assembled = b""
    for event in events:
        if event.WhichOneof("body") != kind:
            continue
        piece = event.text if kind == "text" else event.thinking
        if piece.WhichOneof("content") == "whole":
            assert piece.offset == 0
            assembled = piece.whole.encode()
        else:
            assert piece.offset == len(assembled), "offsets are where the piece starts"
            assembled += piece.delta.encode()
    return assembled.decode()


@st.composite
def cuts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Draw a text with secrets in it, and one way to cut it."""
    parts = draw(
        st.lists(st.sampled_from([SECRET, SECRET[:5], "hunt", "ü", "\U0001f600", "a b", "hunter2-"]), max_size=8)
    )
    full = "".join(parts)
    places = sorted(draw(st.sets(st.integers(0, len(full)), max_size=8)))
    edges = [0, *places, len(full)]
    return full, [full[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("kind", ["text", "thinking"])
@given(drawn=cuts())
async def test_a_text_is_redacted_whole_however_it_is_cut(kind: str, drawn: tuple[str, list[str]]) -> None:
    full, pieces = drawn
    run = make_run(secrets=[SECRET])
    for piece in pieces:
        event = text(piece)
        if kind == "thinking":
            event = pb.AgentEvent(thinking=pb.Thinking(item_id="i", delta=piece))
        run.emit(event)
    run.finish(pb.Result(outcome=pb.OUTCOME_SUCCEEDED))
    events = await written(run)
    assert assemble(events, kind) == Redactor([SECRET]).text(full)
    marked = any(event.redacted for event in events)
    assert marked == (SECRET in full)


@given(drawn=cuts(), raw=st.booleans())
async def test_tool_output_is_redacted_whole_however_it_is_cut(drawn: tuple[str, list[str]], raw: bool) -> None:
    full, pieces = drawn
    run = make_run(secrets=[SECRET])
    for piece in pieces:
        run.emit(output(piece.encode() + b"\xff" if raw else piece))
    run.finish(pb.Result())
    assembled = b""
    for event in await written(run):
        if event.WhichOneof("body") == "tool_output":
            assert event.tool_output.offset == len(assembled)
            assembled += event.tool_output.raw or event.tool_output.text.encode()
            assert SECRET not in event.tool_output.text
            assert (
                event.tool_output.raw == b""
                or event.tool_output.raw.decode(errors="replace") == event.tool_output.text
            )
    if raw:
        joined = b"".join(piece.encode() + b"\xff" for piece in pieces)
        shown = Redactor([SECRET]).text(joined.decode("utf-8", "surrogateescape"))
        assert assembled == shown.encode("utf-8", "surrogateescape")
    else:
        assert assembled.decode() == Redactor([SECRET]).text(full)


async def test_bytes_of_a_character_cut_in_two_are_emitted_as_they_came() -> None:
    run = make_run()
    run.emit(output("€".encode()[:2]))
    run.emit(output("€".encode()[2:]))
    run.emit(output("plain"))
    pieces = [event.tool_output for event in (await written(run))[1:]]
    assert [(piece.offset, piece.raw, piece.text) for piece in pieces] == [
        (0, b"\xe2\x82", "\ufffd"),
        (2, b"\xac", "\ufffd"),
        (3, b"", "plain"),
    ]


async def test_offsets_count_what_is_shown() -> None:
    run = make_run(secrets=[SECRET])
    for piece in ["ab", SECRET, "cd"]:
        run.emit(text(piece))
    events = (await written(run))[1:]
    assert [(event.text.offset, event.text.delta) for event in events] == [(0, "ab"), (2, "[redacted]"), (12, "cd")]
    assert [event.redacted for event in events] == [False, True, False]


async def test_deltas_go_on_after_a_whole() -> None:
    run = make_run(secrets=[SECRET])
    run.emit(text("begun hunt"))
    run.emit(whole(f"ü {SECRET}"))
    run.emit(text("more"))
    events = (await written(run))[1:]
    assert [event.text.WhichOneof("content") for event in events] == ["delta", "whole", "delta"]
    assert assemble(events) == "ü [redacted]more"
    assert events[1].redacted


async def test_the_mark_of_completion_writes_what_was_held_back_and_nothing_else() -> None:
    run = make_run(secrets=[SECRET])
    run.emit(text("a hunt"))
    assert assemble(await written(run)) == "a "
    run.emit(complete())
    assert assemble(await written(run)) == "a hunt"
    run.emit(complete())
    run.emit(complete("never begun"))
    assert len(await written(run)) == 3


async def test_what_is_held_back_comes_with_its_own_place_in_the_tree() -> None:
    run = make_run(secrets=[SECRET])
    event = text("a hunt")
    event.lineage.subagent_id = "sub"
    event.native.text = '{"frame": 1}'
    run.emit(event)
    run.emit(output("hunt"))
    run.emit(pb.AgentEvent(thinking=pb.Thinking(item_id="t", delta="hunt")))
    run.finish(pb.Result())
    events = await written(run)
    assert kinds(events) == ["started", "text", "text", "tool_output", "thinking", "result"]
    assert [one.lineage.subagent_id for one in events[1:3]] == ["sub", "sub"]
    assert (events[3].tool_output.text, events[3].tool_output.tool_call_id) == ("hunt", "c")
    assert events[4].thinking.delta == "hunt"
    assert not events[2].HasField("native")


async def test_two_items_do_not_mix() -> None:
    run = make_run(secrets=[SECRET])
    run.emit(text("hunter", "one"))
    run.emit(text("2-hunter2", "two"))
    run.emit(text("2-hunter2", "one"))
    run.finish(pb.Result())
    events = await written(run)
    for item, shown in [("one", "[redacted]"), ("two", "2-hunter2")]:
        assert assemble([event for event in events if event.text.item_id == item]) == shown


async def test_the_end_of_a_call_ends_its_output_alone() -> None:
    run = make_run(secrets=[SECRET])
    run.emit(output("a hunt", "one"))
    run.emit(output("b hunt", "one", pb.OUTPUT_STREAM_STDERR))
    run.emit(output("c hunt", "two"))
    run.emit(pb.AgentEvent(tool_result=pb.ToolResult(tool_call_id="one")))
    events = await written(run)
    assert kinds(events)[4:] == ["tool_output", "tool_output", "tool_result"]
    assert [event.tool_output.stream for event in events[4:6]] == [pb.OUTPUT_STREAM_STDOUT, pb.OUTPUT_STREAM_STDERR]


async def test_frames_beside_pieces_show_no_half_of_a_secret() -> None:
    run = make_run(secrets=[SECRET])
    for piece in ["see hunter", "2-hunter2", " end"]:
        event = text(piece)
        event.native.text = f'{{"delta": "{piece}"}}'
        run.emit(event)
    event = text(f"known {SECRET} whole.")
    event.native.text = f'{{"delta": "known {SECRET} whole."}}'
    run.emit(event)
    events = (await written(run))[1:]
    frames = [event.native.text for event in events]
    assert frames == ["[redacted]", "[redacted]", '{"delta": " end"}', "[redacted]"]
    assert not any("hunter" in event.SerializeToString().decode("latin-1") for event in events)
    assert [event.redacted for event in events] == [True, True, False, True]


async def test_frames_are_not_lost_to_words_that_only_end_like_a_secret_begins() -> None:
    run = make_run(secrets=[SECRET])
    for piece in ["much", " with", " hunt", "ing"]:
        event = text(piece)
        event.native.text = f'{{"delta": "{piece}"}}'
        run.emit(event)
    events = (await written(run))[1:]
    assert assemble(events) == "much with hunting"
    frames = [event.native.text for event in events]
    assert frames == ['{"delta": "much"}', '{"delta": " with"}', "[redacted]", '{"delta": "ing"}']


async def test_one_frame_goes_with_one_event() -> None:
    run = make_run()
    event = text("x" * 1_000_000)
    event.native.text = "{}"
    run.emit(event)
    events = (await written(run))[1:]
    assert len(events) > 1
    assert [one.HasField("native") for one in events] == [True] + [False] * (len(events) - 1)
    assert assemble(events) == "x" * 1_000_000


async def test_items_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_text_streams, "_MOST_ITEMS", 3)
    run = make_run(secrets=[SECRET])
    for number in range(5):
        run.emit(text("a hunt", f"i{number}"))
    assert len(run._text_streams._items) == 3
    run.finish(pb.Result())
    events = await written(run)
    for number in range(5):
        assert assemble([event for event in events if event.text.item_id == f"i{number}"]) == "a hunt"


async def test_an_item_that_goes_on_after_it_was_complete_goes_on_at_its_end() -> None:
    run = make_run()
    for event in (text("für"), complete(), text(" alle"), complete()):
        run.emit(event)
    deltas = [event.text for event in await written(run) if event.HasField("text") and event.text.delta]
    assert [(piece.offset, piece.delta) for piece in deltas] == [(0, "für"), (4, " alle")]
