"""Whether an agent had begun work: what the events of one attempt show of it.

Work is what a second attempt would repeat: a tool call, a changed file, a question. An agent's words are none.
"""

from typing import Final

from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

EFFECTS: Final = frozenset(
    {"tool_call", "tool_output", "tool_result", "file_change", "input_request", "input_resolved", "subagent"}
)
"""Kinds of events that show that the agent has begun work."""
_UNREAD_CODES: Final = frozenset(
    {"parser_failed", "event_refused", "output_cut", "line_too_long", "adapter_hook_failed"}
)
"""Codes of notices that some of the agent's output was not understood, or was thrown away."""

_ADAPTER_FAILED: Final = "adapter_failed"
"""Code of the failure of a run whose adapter itself failed: it may have done what it did not report."""


class WorkSeen(Struct):
    """What the events of one attempt show."""

    has_begun: bool = False
    """An event shows work."""
    is_prepared: bool = False
    """The adapter reported that it prepares the attempt, so that it would report that the agent runs."""
    is_running: bool = False
    """The agent was started."""
    reports_tools: bool = False
    """The agent reports each tool call when it begins."""
    is_partly_unread: bool = False
    """Some of the agent's output was not understood: it may have been about work."""

    def observe(self, event: pb.AgentEvent, kind: str) -> None:
        """Observe an event of the attempt. Its ``started`` comes first."""
        if kind in EFFECTS:
            self.has_begun = True
        elif kind == "started":
            self.has_begun = self.is_prepared = self.is_running = self.is_partly_unread = False
            items = event.started.capabilities.items
            self.reports_tools = any(item.feature == pb.FEATURE_TOOL_START for item in items)
        elif kind == "state":
            self.is_prepared |= event.state.phase == pb.RUN_PHASE_STARTING
            self.is_running |= event.state.phase == pb.RUN_PHASE_RUNNING
        elif kind == "log":
            self.is_partly_unread |= event.log.stream == pb.OUTPUT_STREAM_STDOUT
        elif kind == "notice":
            self.is_partly_unread |= event.notice.code in _UNREAD_CODES
        elif kind == "result":
            self.is_partly_unread |= event.result.failure.code == _ADAPTER_FAILED

    @property
    def begun(self) -> bool | None:
        """Whether the agent has begun work; None if that is unknown."""
        if self.has_begun:
            return True
        if self.is_prepared and not self.is_running:
            return False
        return False if self.reports_tools and not self.is_partly_unread else None


def note_work(failure: pb.Failure, begun: bool | None) -> None:
    """Write into a failure whether work had begun, unless it says so itself."""
    if begun is not None and not failure.HasField("work_begun"):
        failure.work_begun = begun
