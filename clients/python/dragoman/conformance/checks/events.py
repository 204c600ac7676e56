"""Rules that every stream keeps, whatever the run: they look at the streams of all other checks."""

import json
from collections.abc import Iterator

from dragoman.conformance.check import stream_check
from dragoman.conformance.streams import Stream
from dragoman.protocol.items import ItemLengths
from dragoman.protocol.limits import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, MAX_EVENT_BYTES
from dragoman.protocol.order import EPHEMERAL_ALLOWED, EPHEMERAL_ONLY, TABLE, Phase
from dragoman.protocol.texts import enum_name
from dragoman.protocol.wire import FIELD_BY_KIND, NEVER_BATCHED
from dragoman.v1 import event_pb2 as pb

_NEED_FAILURE = {pb.OUTCOME_FAILED, pb.OUTCOME_TIMED_OUT, pb.OUTCOME_LOST}


def _kind(event: pb.AgentEvent) -> str:
    return event.WhichOneof("body") or "text"  # a body of a later revision is allowed wherever an ordinary one is


@stream_check("run.one-result")
def one_result(stream: Stream) -> str:
    """Count results, and look at what follows them."""
    places = [number for number, event in enumerate(stream.events) if event.HasField("result")]
    if len(places) > 1:
        return f"{len(places)} results"
    if places and places[0] + 1 < len(stream.events):
        return f"{_kind(stream.events[places[0] + 1])} after the result"
    if stream.is_over and not places:
        return "the stream ended with OK and without a result"
    return ""


@stream_check("run.failure-reason")
def failure_reason(stream: Stream) -> str:
    """Compare outcome and failure."""
    for result in stream.of("result"):
        name = enum_name(pb.Outcome.DESCRIPTOR, result.outcome)
        if not result.outcome:
            return "the result has no outcome"
        missing = [field for field in ("kind", "message") if not getattr(result.failure, field)]
        if result.outcome in _NEED_FAILURE and missing:
            return f"{name} without {' and '.join(f'failure.{field}' for field in missing)}"
        if result.outcome == pb.OUTCOME_SUCCEEDED and result.HasField("failure"):
            return f"{name} with a failure"
    return ""


@stream_check("events.order")
def order(stream: Stream) -> str:
    """Follow the phases of the run by the contract's table."""
    if any(event.HasField("gap") for event in stream.events):
        return ""
    phases = {phase for phase in Phase if phase is not Phase.DONE} if stream.after else {Phase.INITIAL}
    for event in stream.durable:
        following = {TABLE[phase][_kind(event)] for phase in phases if _kind(event) in TABLE[phase]}
        if not following and _kind(event) != "result" and Phase.DONE not in phases:
            return f"{_kind(event)} (sequence {event.sequence}) in phase {sorted(phase.value for phase in phases)}"
        phases = following or phases
    return ""


@stream_check("events.dense")
def dense(stream: Stream) -> str:
    """Compare each sequence with the one before."""
    last = stream.after
    for event in stream.events:
        if event.HasField("gap"):
            last = event.gap.to_sequence
        elif event.sequence:
            is_repeated_result = event.HasField("result") and event.sequence == stream.after == last
            if event.sequence != last + 1 and not is_repeated_result:
                return f"sequence {event.sequence} after {last} ({_kind(event)})"
            last = event.sequence
    return ""


@stream_check("events.ephemeral")
def ephemeral(stream: Stream) -> str:
    """Compare each kind with whether it has a sequence."""
    for event in stream.events:
        kind = event.WhichOneof("body")
        if event.sequence and kind in EPHEMERAL_ONLY:
            return f"{kind} with sequence {event.sequence}"
        if not event.sequence and kind is not None and kind not in EPHEMERAL_ALLOWED:
            return f"{kind} without a sequence"
    return ""


@stream_check("events.offsets")
def offsets(stream: Stream) -> str:
    """Follow the length of each text."""
    items = ItemLengths(is_complete=not stream.after)
    for event in stream.events:
        kind = event.WhichOneof("body")
        if kind == "started":
            items.begin()
        elif kind == "gap":
            items.miss()
        elif kind in {"text", "thinking"} and (problem := items.take(kind, getattr(event, kind))):
            return f"{kind} at sequence {event.sequence}: {problem}"
    return ""


@stream_check("events.run-id")
def run_id(stream: Stream) -> str:
    """Compare the run IDs."""
    found = {event.run_id for event in stream.events}
    return f"run IDs {sorted(found)} in one stream" if len(found) > 1 or "" in found else ""


@stream_check("events.attempt")
def attempt(stream: Stream) -> str:
    """Compare the attempts."""
    last = 0
    for event in stream.durable:
        due = last + 1 if event.HasField("started") else last or event.attempt
        if not stream.after and not event.HasField("result") and event.attempt != due:
            return f"attempt {event.attempt} where {due} is due ({_kind(event)}, sequence {event.sequence})"
        last = event.attempt or last
    return ""


@stream_check("events.time")
def time(stream: Stream) -> str:
    """Look for events without a time."""
    missing = [event for event in stream.durable if not event.HasField("time")]
    return f"{_kind(missing[0])} (sequence {missing[0].sequence}) has no time" if missing else ""


@stream_check("events.size")
def size(stream: Stream) -> str:
    """Measure each message."""
    largest = max((message.ByteSize() for message in stream.messages), default=0)
    return f"an event of {largest} bytes" if largest > MAX_EVENT_BYTES else ""


@stream_check("events.tool-results", "tool_call", "tool_result")
def tool_results(stream: Stream) -> str:
    """Match tool results with tool calls."""
    if stream.after or any(event.HasField("gap") for event in stream.events):
        return ""
    known: set[str] = set()
    ended: set[str] = set()
    for event in stream.events:
        if event.HasField("started"):
            known.clear()
            ended.clear()
        elif event.HasField("tool_call"):
            known.add(event.tool_call.id)
        elif event.HasField("tool_result"):
            call = event.tool_result.tool_call_id
            if call not in known or call in ended:
                known_or_not = "a second result" if call in ended else "the result of an unknown call"
                return f"{known_or_not}: {call!r}"
            ended.add(call)
    return ""


@stream_check("events.input-resolved", "input_request")
def input_resolved(stream: Stream) -> str:
    """Match input requests with their ends."""
    if any(event.HasField("gap") for event in stream.events):
        return ""
    asked = [event.input_request.id for event in stream.durable if event.HasField("input_request")]
    resolved = {event.input_resolved.id for event in stream.events if event.HasField("input_resolved")}
    is_lost = any(result.outcome == pb.OUTCOME_LOST for result in stream.of("result"))
    if len(set(asked)) < len(asked):
        return "two input requests with one ID"
    if stream.of("result") and not is_lost and not resolved >= set(asked):
        return f"the result leaves input requests open: {sorted(set(asked) - resolved)}"
    return ""


_OF_AGENT = {"text", "thinking", "tool_output"}
"""Kinds of events in which only an agent speaks, as in a log of its output."""
_OUTPUT = {pb.OUTPUT_STREAM_STDOUT, pb.OUTPUT_STREAM_STDERR}
_NOT_OF_AGENT = {"started", "attempt_ended", "result", "input_resolved"}


@stream_check("events.origin")
def origin(stream: Stream) -> str:
    """Compare origins with what an event says."""
    for event in stream.durable:
        kind = _kind(event)
        is_of_agent = event.origin == pb.EVENT_ORIGIN_AGENT
        if event.origin == pb.EVENT_ORIGIN_ROUTER and not stream.is_of_router:
            return f"{kind} (sequence {event.sequence}) has the origin ROUTER"
        speaks = kind in _OF_AGENT and bool(event.WhichOneof("body"))
        if (speaks or event.log.stream in _OUTPUT) and not is_of_agent:
            return f"{kind} (sequence {event.sequence}) of the agent has not the origin AGENT"
        if kind in _NOT_OF_AGENT and is_of_agent:
            return f"{kind} (sequence {event.sequence}) has the origin AGENT"
    return ""


@stream_check("tools.input", "tool_call")
def tool_input(stream: Stream) -> str:
    """Parse the input of each tool call."""
    for call in stream.of("tool_call"):
        if call.input_json and not call.truncated_bytes:
            try:
                json.loads(call.input_json)
            except ValueError as error:
                return f"the input_json of {call.name or call.id!r} is no JSON: {error}"
    return ""


@stream_check("batching.form", "batch")
def batches(stream: Stream) -> str:
    """Look at every batch."""
    for batch in (message for message in stream.messages if message.HasField("batch")):
        if problem := next(_wrong_with(batch), ""):
            return problem
    return ""


def _wrong_with(message: pb.AgentEvent) -> Iterator[str]:
    events = message.batch.events
    if not 0 < len(events) <= MAX_BATCH_EVENTS or message.ByteSize() > MAX_BATCH_BYTES:
        yield f"a batch of {len(events)} events and {message.ByteSize()} bytes"
        return
    for event in events:
        if FIELD_BY_KIND.get(_kind(event), 0) in NEVER_BATCHED:
            yield f"{_kind(event)} in a batch"
        if not event.sequence:
            yield f"an ephemeral {_kind(event)} in a batch"
    if message.sequence != events[-1].sequence:
        yield f"a batch has the sequence {message.sequence}, and its last event {events[-1].sequence}"
