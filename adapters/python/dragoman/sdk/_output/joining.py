"""Log events joined where an agent prints faster than its lines can be emitted one by one. Pure."""

from collections.abc import Sequence
from typing import Final

from dragoman.sdk._output.parser import Output
from dragoman.v1 import event_pb2 as pb

JOINED_FROM: Final = 32
"""Log lines in one piece of output from which on they are joined: the agent is ahead, and most events cost alike."""
_LONGEST: Final = 64 * 1024
"""Characters in one event, or bytes where it is not text."""


def plain_log(outputs: Sequence[Output]) -> pb.AgentEvent | None:
    """Return the log that a line came to; ``None`` if it came to anything else, or to more."""
    if len(outputs) != 1:
        return None
    event = outputs[0]
    return event if isinstance(event, pb.AgentEvent) and event.HasField("log") else None


def join_logs(events: Sequence[pb.AgentEvent]) -> list[pb.AgentEvent]:
    """Return logs with neighbours of one stream as one event, whose lines all but the last end with a newline."""
    joined: list[pb.AgentEvent] = []
    group: list[pb.Log] = []
    size = 0
    for event in events:
        log = event.log
        length = len(log.raw or log.text) + 1
        is_whole = not (log.truncated_bytes or log.unterminated or event.HasField("lineage"))
        if group and (not is_whole or log.stream != group[0].stream or size + length > _LONGEST):
            joined.append(_joined(group))
            group, size = [], 0
        if not is_whole:
            joined.append(event)
            continue
        group.append(log)
        size += length
    return [*joined, _joined(group)] if group else joined


def _joined(logs: Sequence[pb.Log]) -> pb.AgentEvent:
    event = pb.AgentEvent()
    event.log.stream = logs[0].stream
    event.log.text = "\n".join(log.text for log in logs)
    if any(log.raw for log in logs):
        event.log.raw = b"\n".join(log.raw or log.text.encode() for log in logs)
    return event
