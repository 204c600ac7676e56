"""The trace that a call belongs to (W3C Trace Context), and the spans of runs; none by default.

A trace is passed on whether or not this process records spans: in the metadata of calls from client to router to
adapter, and in the agent's environment as ``TRACEPARENT``. ``dragoman.protocol.otel`` records spans by OpenTelemetry.
"""

import os
import re
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

from dragoman.protocol.logs import bind_context
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

TRACEPARENT: Final = "traceparent"
"""The key of gRPC metadata, and in upper case the environment variable, by which a trace is passed on."""
_STATE: Final = "tracestate"
# https://www.w3.org/TR/trace-context/#traceparent-header; a later version may be longer, and is read as the first.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
_MOST_STATE_CHARS: Final = 512


class Trace(Struct, frozen=True):
    """A span of a trace, as its children get it. Empty for none."""

    parent: str = ""
    """The ``traceparent``."""
    state: str = ""
    """The ``tracestate``."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call sends along."""
        return tuple((key, value) for key, value in ((TRACEPARENT, self.parent), (_STATE, self.state)) if value)

    @property
    def variables(self) -> dict[str, str]:
        """What an agent finds in its environment."""
        return {key.upper(): value for key, value in self.metadata}

    @property
    def fields(self) -> dict[str, str]:
        """What a log line says of it."""
        return {} if not self.parent else {"trace_id": self.parent[3:35], "span_id": self.parent[36:52]}


NO_TRACE: Final = Trace()
_current: ContextVar[Trace] = ContextVar("dragoman_trace", default=NO_TRACE)


def received_trace(metadata: Iterable[tuple[str, Any]]) -> Trace:
    """Return the trace in the metadata of a call; none if what is there is no trace."""
    parent = state = ""
    for key, value in metadata:
        if key == TRACEPARENT:
            parent = str(value)
        elif key == _STATE:
            state = str(value)
    if not _TRACEPARENT.fullmatch(parent):
        return NO_TRACE
    return Trace(parent, state if len(state) <= _MOST_STATE_CHARS and state.isprintable() else "")


def bind_trace(metadata: Iterable[tuple[str, Any]] | None) -> None:
    """Note the trace of the call that is being answered, for ``current_trace`` and for log lines."""
    trace = received_trace(metadata or ())
    _current.set(trace)
    if trace.parent:
        bind_context(**trace.fields)


def current_trace() -> Trace:
    """Return the trace of the call that is being answered."""
    return _current.get()


def outgoing_trace() -> Trace:
    """Return the trace that a call of this program belongs to.

    It is that of the program's own span, if it uses OpenTelemetry; else what its environment says, as in a pipeline.
    """
    api = sys.modules.get("opentelemetry.propagate")
    if api is not None:
        carrier: dict[str, str] = {}
        api.inject(carrier)
        if (trace := received_trace(carrier.items())).parent:
            return trace
    return received_trace((key, os.environ.get(key.upper(), "")) for key in (TRACEPARENT, _STATE))


class RunSpan:
    """The span of a run: none, so the trace that the run came with is passed on."""

    is_recorded = False
    """Whether it takes note of events."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        """What those get that work for the run."""

    def note(self, event: pb.AgentEvent) -> None:
        """Note an event."""

    def end(self, result: pb.Result | None) -> None:
        """Note the end; without a result the run was rejected."""


class Tracing:
    """Begins the spans of runs: none."""

    def begin(self, adapter: str, request: adapter_pb2.ExecuteRequest) -> RunSpan:
        """Begin the span of a run that the present call starts."""
        del adapter, request
        return RunSpan(current_trace())

    def close(self) -> None:
        """Send what was recorded; it may take seconds, and blocks."""
