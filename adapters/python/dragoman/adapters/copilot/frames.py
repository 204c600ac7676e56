"""Events of Copilot that do not depend on others, and those that are ignored. Pure."""

from collections.abc import Iterable
from typing import Final

from dragoman.sdk.fields import Fields, count, text
from dragoman.sdk.parsing import compaction_event, notice_event
from dragoman.v1 import event_pb2 as pb

SILENT_METHODS: Final = frozenset({"session.lifecycle", "host.event"})
"""Notifications that are not about the run."""
SILENT: Final = frozenset(
    (
        *(
            "agent.interrupted",
            "assistant.idle",
            "assistant.intent",
            "assistant.streaming_delta",
            "assistant.turn_end",
        ),
        *("capabilities.changed", "commands.changed", "human_response.recorded", "model.call_final_result"),
        *("model.call_finished", "model.call_start", "pending_messages.modified", "permission.completed"),
        *("prompt_cache_break", "sandbox.decision", "session.background_tasks_changed", "session.completion_receipt"),
        *("session.context_changed", "session.custom_agents_updated", "session.indexed_search"),
        *("session.managed_settings_resolved", "session.mcp_server_status_changed", "session.mode_changed"),
        *("session.mcp_server_tools_loaded", "session.model_change", "session.permissions_changed"),
        *("session.plan_changed", "session.quota_observation", "session.shutdown", "session.todos_changed"),
        *("session.tools_updated", "session.usage_checkpoint", "session.usage_record"),
        *("session.workspace_file_changed", "skill.context_delivered", "skill.context_delivered_ref"),
        *("skill.invoked", "skill.invoked_ref", "subagent.configured", "system.message", "system.notification"),
        *("tool.execution_partial_result", "tool.execution_progress", "user_input.completed"),
        *("user_input.requested",),
    )
)
"""Events whose content others have too."""
UNDOCUMENTED: Final = "model."
"""Begins undocumented events about calls of the model, which repeat others."""
_PLAIN_INFO: Final = frozenset({"model_retry", "file_created", "fork", "cancellation"})

Events = Iterable[pb.AgentEvent]


def notice(severity: pb.Severity.ValueType, kind: str, message: str) -> pb.AgentEvent:
    """Return a notice with Copilot's message."""
    return notice_event(f"copilot_{kind}", message or "Copilot gives no details.", severity)


def info(data: Fields, agent: str) -> Events:
    """Handle ``session.info``."""
    del agent
    kind = text(data, "infoType")
    return () if kind in _PLAIN_INFO else [notice(pb.SEVERITY_INFO, kind or "info", text(data, "message"))]


def warning(data: Fields, agent: str) -> Events:
    """Handle ``session.warning``."""
    del agent
    return [notice(pb.SEVERITY_WARNING, text(data, "warningType") or "warning", text(data, "message"))]


def compacting(data: Fields, agent: str) -> Events:
    """Handle ``session.compaction_start``."""
    del agent
    yield compaction_event(text(data, "trigger"))


def compacted(data: Fields, agent: str) -> Events:
    """Handle ``session.compaction_complete``."""
    del agent
    yield compaction_event(
        text(data, "trigger"),
        text(data, "summaryContent"),
        finished=True,
        tokens_before=count(data, "preCompactionTokens"),
        tokens_after=count(data, "postCompactionTokens"),
    )


def subagent(status: pb.SubagentStatus.ValueType, data: Fields, agent: str) -> Events:
    """Handle ``subagent.started`` and its ends."""
    call_id = text(data, "toolCallId")
    event = pb.Subagent(
        id=agent or call_id,
        type=text(data, "agentType") or text(data, "agentName"),
        status=status,
        description=text(data, "error") or text(data, "agentDescription") or text(data, "agentDisplayName"),
        tool_call_id=call_id,
    )
    yield pb.AgentEvent(subagent=event)
