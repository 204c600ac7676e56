"""Claude Code's output, understood: recordings, any split, and unexpected frames."""

import copy
import json
from typing import Any

import pytest
from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.sdk import CloseInput, Line, Output
from dragoman.v1 import event_pb2 as pb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.claude_code.replay import (
    NAMES,
    events,
    of_kind,
    parse,
    recorded,
    replay,
    resumes,
)
from tests.adapters.golden_streams import shown
from tests.sdk.feeding import pieces_of

SLOW = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
FRAMES = [json.loads(line) for name in NAMES for line in recorded(name).splitlines()]


def frame(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def lines(*frames: bytes) -> tuple[list[Output], ClaudeParser]:
    parser = ClaudeParser()
    outputs: list[Output] = []
    for data in frames:
        outputs += parser.line("stdout", Line(data.rstrip(b"\n"), 0, True))
    return outputs, parser


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_was_recorded_is_unknown(name: str) -> None:
    assert of_kind(replay(name)[0], "log") == []


@SLOW
@given(st.data())
def test_any_split_of_a_recording_gives_the_same_events(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    whole = recorded(name)
    assert shown(*parse(pieces_of(whole, data), resumed=resumes(name))) == shown(*replay(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_cut_short_has_no_end_and_no_duplicates(name: str) -> None:
    whole = recorded(name).splitlines(keepends=True)
    outputs, report = parse(whole[:-1])
    assert report.terminal is None or name == "background"
    cut = shown(outputs, report).split("\n")[:-2]  # without the report
    assert cut == shown(*replay(name)).split("\n")[: len(cut)]


def text_of(outputs: list[Output]) -> str:
    """Return the answer as a client would show it: items in order, deltas appended, wholes in place."""
    items: dict[str, str] = {}
    for text in of_kind(outputs, "text"):
        before = items.get(text.item_id, "")
        items[text.item_id] = text.whole if text.WhichOneof("content") == "whole" else before + text.delta
    return "".join(items.values())


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("subagent_text")])
def test_words_come_once_whether_or_not_they_were_streamed(name: str) -> None:
    unstreamed = [line for line in recorded(name).splitlines(keepends=True) if b'"type":"stream_event"' not in line]
    assert text_of(parse(unstreamed)[0]) == text_of(replay(name)[0])


@pytest.mark.parametrize("name", NAMES)
def test_item_ids_are_unique_and_every_item_is_closed(name: str) -> None:
    is_open: dict[tuple[str, str], bool] = {}
    for event in events(replay(name)[0]):
        kind = event.WhichOneof("body") or ""
        if kind in {"text", "thinking"}:
            piece = getattr(event, kind)
            assert ("thinking" if kind == "text" else "text", piece.item_id) not in is_open
            is_open[kind, piece.item_id] = piece.WhichOneof("content") is not None
    assert not any(is_open.values())


def test_a_try_that_broke_off_is_taken_back() -> None:
    outputs, _ = replay("retry_cut")
    pieces = [(text.item_id, text.WhichOneof("content"), text.whole) for text in of_kind(outputs, "text")]
    assert ("msg_000001:0", "whole", "") in pieces
    assert text_of(outputs) == "Recovered from the cut."


def test_the_same_message_id_twice_is_two_messages() -> None:
    def message(words: str) -> list[bytes]:
        block = {"type": "text", "text": ""}
        inside: list[dict[str, Any]] = [
            {"type": "message_start", "message": {"id": "same", "model": "m"}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}},
        ]
        body = {"id": "same", "content": [{"type": "text", "text": words}]}
        streamed = [frame(type="stream_event", event=event) for event in inside]
        end = frame(type="stream_event", event={"type": "content_block_stop", "index": 0})
        return [*streamed, frame(type="assistant", message=body), end]

    outputs, _ = lines(*message("one"), *message("two"))
    assert [(text.item_id, text.delta) for text in of_kind(outputs, "text") if text.delta] == [
        ("same:0", "one"),
        ("same-2:0", "two"),
    ]


def test_a_whole_that_differs_from_its_deltas_replaces_them() -> None:
    streamed = [
        frame(type="stream_event", event={"type": "message_start", "message": {"id": "m"}}),
        frame(
            type="stream_event",
            event={"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "half"}},
        ),
    ]
    outputs, _ = lines(
        *streamed,
        frame(type="assistant", message={"id": "m", "content": [{"type": "text", "text": "half and half"}]}),
    )
    assert text_of(outputs) == "half and half"


def test_usage_of_the_run_is_what_this_run_spent() -> None:
    """A resumed session's totals grow; the run's do not."""
    _, report = replay("resume")
    assert report.usage is not None
    (session,) = [usage for usage in of_kind(replay("resume")[0], "usage") if usage.scope == pb.USAGE_SCOPE_SESSION]
    assert (report.usage.tokens.input, session.tokens.input) == (400, 800)
    assert (report.usage.cost.amount, session.cost.amount) == ("0.0026", "0.0052")


def test_a_model_without_a_known_price_has_none_and_leaves_no_total() -> None:
    def costs(**basis: str) -> tuple[list[str], str, str]:
        guessed = {"inputTokens": 1, "costUSD": 0.5, **basis}
        used = {"known": {"inputTokens": 1, "costUSD": 0.25, "costBasis": "reported"}, "other": guessed}
        result = frame(
            type="result",
            subtype="success",
            is_error=False,
            result="",
            model_usage_since_last_result=used,
            modelUsage=used,
            total_cost_usd=0.75,
        )
        outputs, parser = lines(frame(type="system", subtype="init", session_id="s", model="known"), result)
        usage = parser.report.usage
        assert usage is not None
        (session,) = [one for one in of_kind(outputs, "usage") if one.scope == pb.USAGE_SCOPE_SESSION]
        return [one.cost.amount for one in usage.models], usage.cost.amount, session.cost.amount

    assert costs(costBasis="unknown") == (["0.25", ""], "", "")
    assert costs() == (["0.25", "0.5"], "0.75", "0.75")


@pytest.mark.parametrize("name", ["interrupt_streaming", "sigint_streaming", "interrupt_in_tool"])
def test_an_interrupted_run_knows_what_it_used(name: str) -> None:
    _, report = replay(name)
    assert report.terminal is not None
    assert report.terminal.interrupted
    assert report.usage is not None
    assert report.usage.tokens.input >= 400
    assert report.usage.HasField("cost")


def test_an_attempt_that_is_killed_at_once_has_its_session_and_model() -> None:
    _, parser = lines(frame(type="system", subtype="init", session_id="s-1", model="m"))
    assert (parser.report.session_id, parser.report.model) == ("s-1", "m")


def test_unknown_frames_are_logged_and_end_nothing() -> None:
    unknown = [
        b'{"type":"of_the_future","x":1}\n',
        b'{"type":"system","subtype":"later"}\n',
        b"plain words\n",
        b"[1]\n",
    ]
    first, *rest = recorded("text").splitlines(keepends=True)
    outputs, report = parse([first, *unknown, *rest])
    assert [log.text for log in of_kind(outputs, "log")] == [line.decode().rstrip("\n") for line in unknown]
    assert report.terminal is not None
    assert report.terminal.succeeded


def test_what_comes_after_the_result_changes_nothing() -> None:
    whole = recorded("text")
    last = whole.splitlines(keepends=True)[-1]
    _, report = parse([whole, last.replace(b'"is_error":false', b'"is_error":true')])
    assert shown([], report) == shown([], replay("text")[1])


def test_a_result_while_a_task_goes_on_in_the_background_is_not_the_last() -> None:
    frames = recorded("background").splitlines(keepends=True)
    results = [index for index, line in enumerate(frames) if json.loads(line)["type"] == "result"]
    assert len(results) == 2
    _, early = parse(frames[: results[1]])
    parser = ClaudeParser()
    for line in frames[: results[0] + 1]:
        list(parser.line("stdout", Line(line.rstrip(b"\n"), 0, True)))
    assert parser.report.terminal is None  # the process lives on, and there is more to come
    assert early.terminal is not None  # it ended before there was more
    _, late = replay("background")
    assert late.usage is not None
    assert early.usage is not None
    assert late.usage.tokens.input > early.usage.tokens.input


def test_a_task_that_ends_before_the_answer_does_brings_a_further_turn_too() -> None:
    frames = recorded("background").splitlines(keepends=True)
    first = next(index for index, line in enumerate(frames) if json.loads(line)["type"] == "result")
    ended = first + 4  # after three frames about it
    reordered = [*frames[:first], *frames[first + 1 : ended], frames[first], *frames[ended:]]
    outputs, early = parse(reordered[:ended])
    assert isinstance(outputs[-1], CloseInput)  # so that it ends even if there is no such turn
    assert early.terminal is not None  # as it has ended here
    parser = ClaudeParser()
    for line in reordered[:ended]:
        list(parser.line("stdout", Line(line.rstrip(b"\n"), 0, True)))
    assert parser.report.terminal is None
    assert shown([], parse(reordered)[1]) == shown([], replay("background")[1])


def test_a_task_whose_end_reaches_the_model_in_time_brings_no_further_turn() -> None:
    frames = recorded("background").splitlines(keepends=True)
    first = next(index for index, line in enumerate(frames) if json.loads(line)["type"] == "result")
    requesting = next(line for line in frames if json.loads(line).get("status") == "requesting")
    parser = ClaudeParser()
    for line in [*frames[:first], *frames[first + 1 : first + 4], requesting, frames[first]]:
        list(parser.line("stdout", Line(line.rstrip(b"\n"), 0, True)))
    assert parser.report.terminal is not None


@pytest.mark.parametrize("version", ["2.1.331", "2.2.0", "3.0.0", ""])
def test_another_version_is_warned_about_once(version: str) -> None:
    init = json.loads(recorded("text").splitlines()[0])
    other = json.dumps({**init, "claude_code_version": version}).encode()
    outputs, _ = lines(other, other)
    (notice,) = of_kind(outputs, "notice")
    assert (notice.code, notice.severity) == ("version_untested", pb.SEVERITY_WARNING)
    assert len(of_kind(outputs, "session")) == 1


def test_a_changed_mode_is_emitted_with_the_session_that_it_changes() -> None:
    init = recorded("text").splitlines()[0]
    outputs, _ = lines(init, frame(type="system", subtype="status", status=None, permissionMode="acceptEdits"))
    first, second = of_kind(outputs, "session")
    assert (first.mode, second.mode) == ("default", "acceptEdits")
    assert second.tools == first.tools


def test_separators_and_halves_of_pairs_are_words_like_others() -> None:
    text = 'before\u2028after \ud83d and \\ud800 "quoted"'
    body = {"id": "m", "content": [{"type": "text", "text": text}]}
    raw = json.dumps({"type": "assistant", "message": body}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    outputs, _ = parse([raw.replace(b"\xed\xa0\xbd", b"\\ud83d") + b"\n"])
    assert text_of(outputs) == text.replace("\ud83d", "\ufffd")


def test_a_line_of_200_kb_is_one_item() -> None:
    words = "x" * 200_000
    outputs, _ = parse([frame(type="assistant", message={"id": "m", "content": [{"type": "text", "text": words}]})])
    assert text_of(outputs) == words


def test_a_frame_nested_too_deeply_to_be_written_is_logged() -> None:
    logged = []
    # Where it begins is up to the interpreter: from 1000 to some 50,000.
    for depth in (*range(600, 1000), 200_000):
        nested = b"[" * depth + b"]" * depth
        outputs, report = parse([b'{"type":"result","subtype":"success","structured_output":%s}\n' % nested])
        assert (report.terminal is None) == bool(of_kind(outputs, "log"))
        logged.append(report.terminal is None)
    assert logged == sorted(logged)
    assert any(logged)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [way]
    if isinstance(value, dict):
        for key in value:
            found += places(value[key], (*way, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, (*way, index))
    return found


def survives(frames: list[Any]) -> None:
    parser = ClaudeParser(resumes=True)
    for value in frames:
        for output in parser.line("stdout", Line(json.dumps(value).encode(), 0, True)):
            if isinstance(output, pb.AgentEvent):
                assert output.WhichOneof("body")
                output.SerializeToString()
    list(parser.finish())


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_frame_with_anything_in_any_place_is_survived(data: st.DataObject) -> None:
    value = copy.deepcopy(data.draw(st.sampled_from(FRAMES)))
    *way, last = data.draw(st.sampled_from([way for way in places(value) if way]))
    holder = value
    for step in way:
        holder = holder[step]
    holder[last] = data.draw(JSON)
    survives([FRAMES[0], value, value])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(FRAMES), max_size=12))
def test_frames_in_any_order_are_survived(frames: list[Any]) -> None:
    survives(frames)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        JSON
        | st.builds(
            lambda kind, rest: {"type": kind, **rest}, st.text(max_size=8), st.dictionaries(st.text(max_size=8), JSON)
        ),
        max_size=5,
    )
)
def test_any_json_is_survived(frames: list[Any]) -> None:
    survives(frames)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_are_survived(chunks: list[bytes]) -> None:
    outputs, report = parse(chunks)
    assert report.terminal is None
    assert all(event.HasField("log") for event in events(outputs))


def test_standard_error_is_logged_and_never_parsed() -> None:
    result = recorded("text").splitlines()[-1]
    parser = ClaudeParser()
    (event,) = events(list(parser.line("stderr", Line(result, 0, True))))
    assert event.log.stream == pb.OUTPUT_STREAM_STDERR
    assert parser.report.terminal is None
