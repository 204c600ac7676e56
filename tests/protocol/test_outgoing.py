"""What leaves an adapter: no string leaf with a secret, no id or enum touched, no event beyond 1 MiB."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dragoman.protocol.limits import MAX_EVENT_BYTES
from dragoman.protocol.outgoing import fit_event, redact_event, redact_json, redact_written, split_text
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format, struct_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

SECRET = 's3cret/with "quotes" and ünïcode'
REDACTOR = Redactor([SECRET])
KINDS = sorted({field.name for field in pb.AgentEvent.DESCRIPTOR.oneofs_by_name["body"].fields} - {"batch"})


def is_id(name: str) -> bool:
    return name == "id" or name.endswith(("_id", "_ids"))


def fill(message: Message, text: str, depth: int = 6) -> None:
    """Put ``text`` into every string, bytes and map of a message, and a 1 into every number and enum."""
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            _fill_message(message, field, text, depth)
        elif field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            value: Any = json.dumps({"a": [text]}) if field.name.endswith("_json") else text
            value = text.encode() if field.type == FieldDescriptor.TYPE_BYTES else value
            _put(message, field, value)
        else:
            _put(message, field, 1)


def _put(message: Message, field: Any, value: Any) -> None:
    if field.is_repeated:
        getattr(message, field.name).extend([value, value])
    else:
        setattr(message, field.name, value)


def _fill_message(message: Message, field: Any, text: str, depth: int) -> None:
    part = getattr(message, field.name)
    kind = field.message_type
    if kind.full_name == "google.protobuf.Struct":
        part.update({"a": text, "b": [text, {"c": text}]})
    elif kind.full_name.startswith("google.protobuf."):
        part.seconds = 1
    elif kind.GetOptions().map_entry:
        part["k"] = text if kind.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING else 1
    elif depth and field.is_repeated:
        fill(part.add(), text, depth - 1)
        fill(part.add(), text, depth - 1)
    elif depth:
        part.SetInParent()
        fill(part, text, depth - 1)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a message with its path."""
    if isinstance(value, struct_pb2.Struct):
        yield path, json.dumps({key: str(item) for key, item in sorted(value.fields.items())}, ensure_ascii=False)
    elif isinstance(value, Message):
        for field, item in value.ListFields():
            yield from leaves(item, f"{path}.{field.name}")
    elif hasattr(value, "items"):
        for key in value:
            yield from leaves(value[key], f"{path}[{key}]")
    elif isinstance(value, str | bytes | int | float):
        yield path, value
    else:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")


def name_of(path: str) -> str:
    return path.rsplit(".", 1)[-1].split("[", 1)[0]


def full_event(kind: str, text: str) -> pb.AgentEvent:
    event = pb.AgentEvent(sequence=7, run_id="run-1", attempt=1)
    body = getattr(event, kind)
    body.SetInParent()
    fill(body, text)
    fill(event.native, text)
    return event


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_leaf_is_redacted_and_nothing_else_changes(kind: str) -> None:
    before = full_event(kind, f"before {SECRET} after")
    event = pb.AgentEvent()
    event.CopyFrom(before)
    redact_event(event, REDACTOR)
    changed = dict(leaves(event))
    for path, value in leaves(before):
        kept = changed[path]
        in_handle = ".handle" in path
        if isinstance(value, int | float) or is_id(name_of(path)) or in_handle:
            assert kept == value, f"{path} was touched"
        else:
            text = kept.decode() if isinstance(kept, bytes) else kept
            assert "s3cret" not in text, f"{path} still has the secret"
            assert "[redacted]" in text, path
            assert "before" in text, f"{path} lost more than the secret"
            assert event.redacted


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_secret_an_event_stays_as_it_is(kind: str) -> None:
    event = full_event(kind, 'plain {"a": 1.0}')
    before = event.SerializeToString(deterministic=True)
    assert redact_event(event, REDACTOR) == 0
    assert event.SerializeToString(deterministic=True) == before
    assert not event.redacted


def test_the_walk_meets_every_sort_of_field() -> None:
    """If the contract gets a sort of field that is not here, redaction must learn it, and so must these tests."""

    def sorts(message: Descriptor, seen: set[str]) -> Iterator[str]:
        if message.full_name in seen or message.full_name.startswith("google."):
            return
        seen.add(message.full_name)
        for field in message.fields:
            kind = field.message_type
            if kind is None:
                yield f"{'repeated ' if field.is_repeated else ''}{field.type}"
            elif kind.GetOptions().map_entry:
                yield f"map of {kind.fields_by_name['value'].type}"
            else:
                yield from sorts(kind, seen)

    repeated = {sort for sort in sorts(pb.AgentEvent.DESCRIPTOR, set()) if not sort.isdigit()}
    assert repeated <= {
        f"repeated {FieldDescriptor.TYPE_STRING}",
        f"repeated {FieldDescriptor.TYPE_ENUM}",
        f"map of {FieldDescriptor.TYPE_STRING}",
        f"map of {FieldDescriptor.TYPE_UINT64}",
    }


def test_ids_are_what_events_are_matched_by() -> None:
    redactor = Redactor(["agent:main:1"])
    event = pb.AgentEvent(session=pb.Session(native_id="agent:main:1", title="of agent:main:1"))
    event.lineage.subagent_id = "agent:main:1"
    redact_event(event, redactor)
    assert event.session.native_id == "agent:main:1"
    assert event.lineage.subagent_id == "agent:main:1"
    assert event.session.title == "of [redacted]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"password": "hunter22", "n": 1.0}', '{"password":"[redacted]","n":1.0}'),
        ('{"a": [{"api_key": "x"}]}', '{"a":[{"api_key":"[redacted]"}]}'),
        ('{"a":  1.0}', '{"a":  1.0}'),  # verbatim, as there is nothing
        ('{"a": "\\ud800", "token": "abcdef"}', '{"a":"\ufffd","token":"[redacted]"}'),
        ("no JSON with hunter22-known", "no JSON with [redacted]"),
        ('{"cut": "hunter22-known', '{"cut": "[redacted]'),
        ('{"hunter22-known": 1}', '{"[redacted]": 1}'),
        ('{"a": "\\u0068unter22-known"}', '{"a":"[redacted]"}'),
        ("[" * 100_000, "[" * 100_000),
        ("", ""),
    ],
)
def test_json_text_by_key_and_by_value(text: str, shown: str) -> None:
    assert redact_json(text, Redactor(["hunter22-known"])) == shown


def test_a_struct_by_key_too() -> None:
    event = pb.AgentEvent()
    event.result.failure.detail.update({"api_key": "abc123", "n": 5, "inner": [{"password": "x", "plain": "y"}]})
    redact_event(event, Redactor())
    assert event.redacted
    assert json_format.MessageToDict(event.result.failure.detail) == {
        "api_key": "[redacted]",
        "n": 5,
        "inner": [{"password": "[redacted]", "plain": "y"}],
    }


def test_a_struct_with_a_number_that_json_lacks_goes() -> None:
    event = pb.AgentEvent()
    event.result.failure.detail.fields["n"].number_value = float("nan")
    redact_event(event, Redactor())
    assert not event.result.failure.detail.fields


def test_bytes_that_are_no_utf8_are_redacted_and_kept() -> None:
    event = pb.AgentEvent(log=pb.Log(raw=b"\xff " + SECRET.encode() + b" \xe2\x82"))
    redact_event(event, REDACTOR)
    assert event.log.raw == b"\xff [redacted] \xe2\x82"


def test_a_native_frame_is_redacted_as_json_before_it_is_cut() -> None:
    frame = json.dumps({"pad": "x" * (64 * 1024 - 30), "text": SECRET, "password": "hunter"})
    event = pb.AgentEvent(notice=pb.Notice(), native=pb.NativeFrame(text=frame))
    redact_event(event, REDACTOR)
    assert len(event.native.text) == 64 * 1024
    assert "s3cr" not in event.native.text
    assert event.native.truncated_bytes == len(redact_json(frame, REDACTOR)) - 64 * 1024


def test_the_frame_of_an_inexact_piece_goes() -> None:
    event = pb.AgentEvent(text=pb.Text(delta="abc"), native=pb.NativeFrame(text='{"t":"abc s3cr"}'))
    redact_written(event, REDACTOR, exact=False)
    assert event.native.text == "[redacted]"
    assert event.redacted
    exact = pb.AgentEvent(text=pb.Text(delta="abc"), native=pb.NativeFrame(text=f'{{"t":"abc","u":"{SECRET}"}}'))
    redact_written(exact, REDACTOR, exact=True)
    assert exact.native.text == '{"t":"abc","u":"[redacted]"}'
    plain = pb.AgentEvent(text=pb.Text(delta="abc"))
    redact_written(plain, REDACTOR, exact=False)
    assert not plain.redacted


def test_a_text_that_no_event_could_hold_is_shortened_before_it_is_searched() -> None:
    text = "x" * (2 * MAX_EVENT_BYTES - 3) + "s3cret/with more"
    event = pb.AgentEvent(notice=pb.Notice(message=text))
    uncounted = redact_event(event, REDACTOR)
    assert event.notice.message == "x" * (2 * MAX_EVENT_BYTES - 3), "the beginning of a secret went with the rest"
    assert uncounted == len("s3cret/with more")
    counted = pb.AgentEvent(message=pb.Message(text=text))
    assert redact_event(counted, REDACTOR) == 0
    assert counted.message.truncated_bytes == len("s3cret/with more")


# Size.

LARGE: dict[str, Callable[[str], pb.AgentEvent]] = {
    "text": lambda t: pb.AgentEvent(text=pb.Text(item_id="i", whole=t)),
    "thinking": lambda t: pb.AgentEvent(thinking=pb.Thinking(item_id="i", whole=t)),
    "log": lambda t: pb.AgentEvent(log=pb.Log(text=t)),
    "log raw": lambda t: pb.AgentEvent(log=pb.Log(text="\ufffd" * len(t), raw=b"\xff" * len(t))),
    "tool_call": lambda t: pb.AgentEvent(tool_call=pb.ToolCall(id="c", input_json=t, title=t)),
    "tool_output": lambda t: pb.AgentEvent(tool_output=pb.ToolOutput(text=t)),
    "tool_result": lambda t: pb.AgentEvent(tool_result=pb.ToolResult(content=t, output_json=t)),
    "message": lambda t: pb.AgentEvent(message=pb.Message(text=t)),
    "file_change": lambda t: pb.AgentEvent(file_change=pb.FileChange(path="/p", diff=t)),
    "artifact": lambda t: pb.AgentEvent(artifact=pb.Artifact(name=t, media_type="text/plain")),
    "plan": lambda t: pb.AgentEvent(plan=pb.Plan(entries=[pb.PlanEntry(content=t[:500])] * 5000)),
    "plan entry": lambda t: pb.AgentEvent(plan=pb.Plan(entries=[pb.PlanEntry(content="a"), pb.PlanEntry(content=t)])),
    "subagent": lambda t: pb.AgentEvent(subagent=pb.Subagent(id="s", description=t)),
    "compaction": lambda t: pb.AgentEvent(compaction=pb.Compaction(summary=t)),
    "notice": lambda t: pb.AgentEvent(notice=pb.Notice(code="c", message=t)),
    "state": lambda t: pb.AgentEvent(state=pb.State(reason=t)),
    "session": lambda t: pb.AgentEvent(session=pb.Session(native_id="n", tools=["tool"] * 400_000, title=t)),
    "usage": lambda t: pb.AgentEvent(usage=pb.Usage(models=[pb.ModelUsage(model=t)])),
    "started argv": lambda t: pb.AgentEvent(started=pb.Started(argv=["a", t], notes=[t])),
    "started env": lambda t: pb.AgentEvent(started=pb.Started(env={"A": t, "B": "b"})),
    "started prompt_bytes": lambda t: pb.AgentEvent(started=pb.Started(prompt_bytes={t: 1, "b": 2})),
    "attempt_ended": lambda t: pb.AgentEvent(attempt_ended=pb.AttemptEnded(failure=pb.Failure(errors=[t, "b"]))),
    "input_request": lambda t: pb.AgentEvent(input_request=pb.InputRequest(id="r", editable_input_json=t, title=t)),
    "input_resolved": lambda t: pb.AgentEvent(
        input_resolved=pb.InputResolved(id="r", answer=pb.InputAnswer(updated_input_json=t))
    ),
    "input_accepted": lambda t: pb.AgentEvent(input_accepted=pb.InputAccepted(input_id="i", text=t)),
    "run_updated": lambda t: pb.AgentEvent(run_updated=pb.RunUpdated(model=t)),
    "input_dropped": lambda t: pb.AgentEvent(input_dropped=pb.InputDropped(input_id="i", message=t)),
    "result": lambda t: pb.AgentEvent(result=pb.Result(raw_json=t, summary=t, failure=pb.Failure(message=t))),
    "lineage": lambda t: pb.AgentEvent(notice=pb.Notice(code="c"), lineage=pb.Lineage(subagent_id=t)),
}


def with_detail(text: str) -> pb.AgentEvent:
    event = pb.AgentEvent(result=pb.Result())
    event.result.failure.detail.update({"a": {"b": [text, 1.0]}, "c": True})
    return event


LARGE["result detail"] = with_detail


@pytest.mark.parametrize(
    "text", ["x" * (3 * MAX_EVENT_BYTES), "\U0001f600ü" * (MAX_EVENT_BYTES // 3)], ids=["a", "ü"]
)
@pytest.mark.parametrize("name", LARGE)
def test_every_body_is_cut_to_an_event(name: str, text: str) -> None:
    event = LARGE[name](text)
    event.run_id, event.sequence = "r" * 128, 2**60
    before = event.ByteSize()
    uncounted = fit_event(event)
    size = event.ByteSize()
    assert size <= MAX_EVENT_BYTES
    if name not in {"plan", "started prompt_bytes", "input_request"}:
        assert size > MAX_EVENT_BYTES * 0.2, "no more than needed"
    body = getattr(event, event.WhichOneof("body") or "")
    counted = getattr(body, "truncated_bytes", 0)
    assert counted + uncounted > 0
    assert (counted == 0) == (uncounted > 0), "counted once"
    if not name.startswith(("log raw", "plan", "session", "started prompt_bytes", "usage", "started env")):
        assert counted + uncounted == pytest.approx(before - size, abs=200), "and every byte of it"
    event.SerializeToString()


def test_every_body_has_been_tried() -> None:
    tried = {name.split(" ")[0] for name in LARGE} - {"lineage"}
    assert tried == set(KINDS) - {"gap", "heartbeat", "replay_done"}  # these have nothing large


def test_a_cut_log_counts_each_byte_of_its_line_once() -> None:
    line = b"\xff" * MAX_EVENT_BYTES
    event = pb.AgentEvent(log=pb.Log(text=line.decode(errors="replace"), raw=line, truncated_bytes=5))
    fit_event(event)
    assert len(event.log.raw) + event.log.truncated_bytes == len(line) + 5
    assert event.log.raw.decode(errors="replace") == event.log.text


def test_half_an_input_is_not_offered_for_editing() -> None:
    request = pb.InputRequest(id="r", editable_input_json='{"a":"' + "x" * MAX_EVENT_BYTES + '"}', title="t")
    event = pb.AgentEvent(input_request=request)
    fit_event(event)
    assert not event.input_request.editable_input_json
    assert event.input_request.title == "t"


def test_what_fits_is_left_alone() -> None:
    event = pb.AgentEvent(text=pb.Text(whole="x" * (MAX_EVENT_BYTES - 8192)))
    assert fit_event(event) == 0
    assert event.text.truncated_bytes == 0


def test_the_result_loses_its_summary_last() -> None:
    event = pb.AgentEvent(result=pb.Result(raw_json="j" * MAX_EVENT_BYTES, raw_tail="t" * 1000, summary="s" * 1000))
    fit_event(event)
    assert event.result.summary == "s" * 1000
    assert event.result.raw_tail == "t" * 1000
    assert len(event.result.raw_json) > MAX_EVENT_BYTES * 0.9


@given(st.text(), st.integers(16, 64))
def test_pieces_join_to_the_whole_and_are_small(text: str, most: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    pieces = split_text(text, most)
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= most for piece in pieces)


words = st.text(max_size=30)


@settings(max_examples=60)
@given(st.sampled_from(KINDS), words, words)
def test_no_known_secret_survives_anywhere(kind: str, before: str, after: str) -> None:
    text = before.encode("utf-8", "replace").decode() + SECRET + after.encode("utf-8", "replace").decode()
    event = full_event(kind, text)
    redact_event(event, REDACTOR)
    for path, value in leaves(event):
        if isinstance(value, str | bytes) and not is_id(name_of(path)) and ".handle" not in path:
            shown = value.decode(errors="replace") if isinstance(value, bytes) else value
            assert SECRET not in shown, path
            assert json.dumps(SECRET)[1:-1] not in shown, path
