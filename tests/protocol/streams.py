"""Valid runs as hypothesis strategies, and the events they are made of."""

from collections.abc import Callable

from dragoman.protocol.wire import FIELD_BY_KIND, NEVER_BATCHED
from dragoman.v1 import event_pb2 as pb
from hypothesis import strategies as st

RUN_ID = "run-1"

PLAIN_KINDS = sorted(
    set(FIELD_BY_KIND)
    - {"started", "attempt_ended", "result", "batch", "gap", "replay_done", "heartbeat"}
    - {"input_request", "input_resolved", "input_accepted", "input_dropped"}
)
"""Kinds that may come at any time within an attempt and depend on nothing."""


def body(kind: str) -> pb.AgentEvent:
    """Return an event of one kind, its body empty but present."""
    event = pb.AgentEvent(run_id=RUN_ID)
    getattr(event, kind).SetInParent()
    return event


def durable(kind: str, sequence: int, attempt: int = 1) -> pb.AgentEvent:
    """Return an event with a sequence."""
    event = body(kind)
    event.sequence = sequence
    event.attempt = attempt
    return event


def gap(first: int, last: int) -> pb.AgentEvent:
    """Return a gap."""
    return pb.AgentEvent(run_id=RUN_ID, gap=pb.Gap(from_sequence=first, to_sequence=last))


def batch(events: list[pb.AgentEvent]) -> pb.AgentEvent:
    """Return a batch of events."""
    return pb.AgentEvent(sequence=events[-1].sequence, batch=pb.Batch(events=events))


@st.composite
def runs(draw: st.DrawFn, most_attempts: int = 3) -> list[pb.AgentEvent]:
    """Draw the durable events of a whole run, from ``started`` to ``result``."""
    events: list[pb.AgentEvent] = []
    attempts = draw(st.integers(1, most_attempts))
    asked = sent = 0
    for attempt in range(1, attempts + 1):
        kinds = draw(st.lists(st.sampled_from([*PLAIN_KINDS, "text", "text", "ask", "send"]), max_size=8))
        open_requests: list[str] = []
        waiting: list[str] = []
        attempt_events: list[pb.AgentEvent] = [body("started")]
        for kind in kinds:
            if kind == "ask":
                asked += 1
                request = body("input_request")
                request.input_request.id = f"request-{asked}"
                open_requests.append(request.input_request.id)
                attempt_events.append(request)
            elif kind == "send":
                sent += 1
                waiting.append(f"input-{sent}")
                attempt_events.append(body("input_accepted"))
                attempt_events[-1].input_accepted.input_id = waiting[-1]
            else:
                attempt_events.append(body(kind))
            answered, is_settled = draw(st.booleans()), draw(st.booleans())
            if open_requests and answered:
                attempt_events.append(_resolved(open_requests.pop()))
            if waiting and is_settled:
                attempt_events.append(_settled("message" if answered else "input_dropped", waiting.pop(0)))
        attempt_events.extend(_resolved(request_id) for request_id in open_requests)
        attempt_events.extend(_settled("input_dropped", input_id) for input_id in waiting)
        attempt_events.append(body("attempt_ended" if attempt < attempts else "result"))
        for event in attempt_events:
            event.attempt = attempt
            events.append(event)
    for sequence, event in enumerate(events, 1):
        event.sequence = sequence
    return events


def _resolved(request_id: str) -> pb.AgentEvent:
    event = body("input_resolved")
    event.input_resolved.id = request_id
    return event


def _settled(kind: str, input_id: str) -> pb.AgentEvent:
    event = body(kind)
    getattr(event, kind).input_id = input_id
    return event


EPHEMERALS: list[Callable[[], pb.AgentEvent]] = [
    lambda: body("heartbeat"),
    lambda: body("replay_done"),
    lambda: body("state"),
    lambda: body("notice"),
    lambda: pb.AgentEvent(run_id=RUN_ID),  # a body of a later revision
]


def batched(events: list[pb.AgentEvent], sizes: list[int]) -> list[pb.AgentEvent]:
    """Return the events with neighbours that may be batched joined, ``sizes`` of them at a time."""
    out: list[pb.AgentEvent] = []
    waiting: list[pb.AgentEvent] = []
    size = iter(sizes)
    batch_size = next(size, 1)

    def flush() -> None:
        if waiting:
            out.append(batch(list(waiting)) if len(waiting) > 1 else waiting[0])
            waiting.clear()

    for event in events:
        if FIELD_BY_KIND[event.WhichOneof("body") or ""] in NEVER_BATCHED:
            flush()
            out.append(event)
            continue
        waiting.append(event)
        if len(waiting) >= batch_size:
            flush()
            batch_size = next(size, 1)
    flush()
    return out
