"""The ``system`` frames: session, retries, nested agents, compaction, notices. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dragoman.adapters.claude_code.classify import retry_cause
from dragoman.sdk.fields import Fields, as_string_list, count, inner, number, objects, text
from dragoman.sdk.parsing import Retries, SessionFacts, compaction_event, notice_event, version_notice
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb

TESTED_VERSION: Final = agent_spec(__package__).tested_version
"""The version whose frames this adapter was written for and is tested with."""

_NESTED: Final = "local_agent"
"""The ``task_type`` of a nested agent; a long shell command is a task too."""

_SUBAGENT_ENDS: Final[Mapping[str, pb.SubagentStatus.ValueType]] = {
    "completed": pb.SUBAGENT_STATUS_COMPLETED,
    "failed": pb.SUBAGENT_STATUS_FAILED,
    "stopped": pb.SUBAGENT_STATUS_CANCELLED,
    "killed": pb.SUBAGENT_STATUS_CANCELLED,
}
_LEVELS: Final[Mapping[str, pb.Severity.ValueType]] = {
    "warning": pb.SEVERITY_WARNING,
    "warn": pb.SEVERITY_WARNING,
    "error": pb.SEVERITY_ERROR,
}
_SILENT: Final = frozenset(
    {"thinking_tokens", "task_updated", "background_tasks_changed", "hook_progress", "ui_invalidate"}
)
"""Frames whose content other frames have too."""

Events = Iterable[pb.AgentEvent]


class SystemFrames:
    """Follows the ``system`` frames of one run."""

    def __init__(self) -> None:
        self.session = SessionFacts()
        self.cwd = ""
        self.api_key_source = ""
        self.retries = Retries()
        self.denied: set[str] = set()
        """Tool calls that were denied without an input request."""
        self.background: set[str] = set()
        """Tasks that continue after the agent's answer; the end of each starts another turn."""
        self.has_news = False
        """Whether the end of such a task has not reached the model yet: that starts another turn too."""
        self._agents: dict[str, str] = {}
        self._handlers: dict[str, Callable[[Fields], Events]] = {
            "init": self._init,
            "status": self._status,
            "api_retry": self._retry,
            "permission_denied": self._denied,
            "task_started": self._task_started,
            "task_progress": self._task_progress,
            "task_notification": self._task_ended,
            "compact_boundary": _compacted,
            "session_title_changed": self._titled,
            "model_refusal_no_fallback": _refused,
            "model_refusal_fallback": _refused,
        }

    def take(self, frame: Fields) -> Events | None:
        """Return the events of a frame; None if it is of no known kind."""
        subtype = text(frame, "subtype")
        if subtype == "background_tasks_changed":
            self.background = {text(task, "task_id") for task in objects(frame, "tasks")}
        elif subtype == "task_notification" and text(frame, "task_id") in self.background:
            self.has_news = True
        if subtype in _SILENT:
            return ()
        handler = self._handlers.get(subtype)
        if handler is not None:
            return handler(frame)
        return _notice(subtype, frame) if text(frame, "content") or text(frame, "message") else None

    def lineage(self, frame: Fields) -> pb.Lineage | None:
        """Return the nested agent that a frame is from; None for the main one."""
        call_id = text(frame, "parent_tool_use_id")
        agent_id = text(frame, "agent_id") or self._agents.get(call_id, "")
        if not call_id and agent_id:
            call_id = next((call for call, agent in self._agents.items() if agent == agent_id), "")
        if not call_id and not agent_id:
            return None
        return pb.Lineage(subagent_id=agent_id or call_id, parent_tool_call_id=call_id)

    def _init(self, frame: Fields) -> Events:
        self.cwd, self.api_key_source = text(frame, "cwd"), text(frame, "apiKeySource")
        is_first = not self.session.now.native_id
        self.session.now = pb.Session(
            native_id=text(frame, "session_id"),
            model=text(frame, "model"),
            tools=as_string_list(frame.get("tools")),
            mcp_servers=[
                pb.McpServerStatus(name=text(server, "name"), status=text(server, "status"))
                for server in objects(frame, "mcp_servers")
            ],
            mode=text(frame, "permissionMode"),
            commands=as_string_list(frame.get("slash_commands")),
            title=self.session.now.title,
            skills=as_string_list(frame.get("skills")),
            agent_version=text(frame, "claude_code_version"),
        )
        yield from self.session.news()
        if is_first:
            yield from version_notice("Claude Code", self.session.now.agent_version, TESTED_VERSION)

    def _status(self, frame: Fields) -> Events:
        mode = text(frame, "permissionMode")
        if mode:
            yield from self.session.news(mode=mode)
        if text(frame, "status") == "requesting":
            self.has_news = False
        if text(frame, "status") == "compacting":
            yield compaction_event()
        if text(frame, "compact_result") == "failed":
            message = text(frame, "compact_error") or "The agent could not shorten its context."
            yield compaction_event(finished=True)
            yield notice_event("claude_compaction_failed", message)

    def _titled(self, frame: Fields) -> Events:
        return self.session.news(title=text(frame, "title") or text(frame, "content"))

    def _retry(self, frame: Fields) -> Events:
        error, status, delay_ms = text(frame, "error"), count(frame, "error_status"), number(frame, "retry_delay_ms")
        return self.retries.begin(
            f"{error or 'error'} (HTTP status {status})" if status is not None else error,
            attempt=count(frame, "attempt"),
            most=count(frame, "max_retries"),
            delay_ms=int(delay_ms) if delay_ms is not None else None,
            cause=retry_cause(error, status),
        )

    def _denied(self, frame: Fields) -> Events:
        self.denied.add(text(frame, "tool_use_id"))
        name = text(frame, "tool_name") or "A tool"
        why = text(frame, "decision_reason") or text(frame, "decision_reason_type") or "its own rules"
        message = f"{name} was denied by Claude Code ({why})."
        yield notice_event("permission_denied", message)

    def _task_started(self, frame: Fields) -> Events:
        if text(frame, "task_type") not in {_NESTED, ""}:
            return
        self._agents[text(frame, "tool_use_id")] = text(frame, "task_id")
        yield self._subagent(frame, pb.SUBAGENT_STATUS_STARTED, text(frame, "description"))

    def _task_progress(self, frame: Fields) -> Events:
        if text(frame, "task_id") in self._agents.values():
            yield self._subagent(frame, pb.SUBAGENT_STATUS_RUNNING, text(frame, "description"))

    def _task_ended(self, frame: Fields) -> Events:
        if text(frame, "task_id") in self._agents.values():
            status = _SUBAGENT_ENDS.get(text(frame, "status"), pb.SUBAGENT_STATUS_COMPLETED)
            yield self._subagent(frame, status, text(frame, "summary"))

    def _subagent(self, frame: Fields, status: pb.SubagentStatus.ValueType, words: str) -> pb.AgentEvent:
        subagent = pb.Subagent(
            id=text(frame, "task_id"),
            type=text(frame, "subagent_type"),
            status=status,
            description=words,
            tool_call_id=text(frame, "tool_use_id"),
        )
        return pb.AgentEvent(subagent=subagent)


def _compacted(frame: Fields) -> Events:
    facts = inner(frame, "compact_metadata")
    before, after = count(facts, "pre_tokens"), count(facts, "post_tokens")
    yield compaction_event(text(facts, "trigger"), finished=True, tokens_before=before, tokens_after=after)


def _notice(subtype: str, frame: Fields) -> Events:
    severity = _LEVELS.get(text(frame, "level"), pb.SEVERITY_INFO)
    yield notice_event(f"claude_{subtype}", text(frame, "content") or text(frame, "message"), severity)


def _refused(frame: Fields) -> Events:
    why = text(frame, "api_refusal_explanation") or text(frame, "api_refusal_category") or text(frame, "content")
    message = f"{text(frame, 'original_model') or 'The model'} refused{f': {why}' if why else '.'}"
    yield notice_event(f"claude_{text(frame, 'subtype')}", message)
