"""The events of a thread and of its nested agents' threads: notifications in, events out. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dragoman.adapters.codex.classify import retry_cause
from dragoman.adapters.codex.tools import Calls
from dragoman.adapters.codex.usage import RunTotals, rate_limits
from dragoman.sdk.fields import Fields, as_string_list, inner, objects, text
from dragoman.sdk.parsing import Retries, SessionFacts, TextItems, call_usage, compaction_event, notice_event
from dragoman.v1 import event_pb2 as pb

_RECONNECTING: Final = re.compile(r"Reconnecting\D*(\d{1,6})/(\d{1,6})")
_PLAN_STATUSES: Final[Mapping[str, pb.PlanEntryStatus.ValueType]] = {
    "inProgress": pb.PLAN_ENTRY_STATUS_IN_PROGRESS,
    "completed": pb.PLAN_ENTRY_STATUS_COMPLETED,
}
_SUBAGENT_ENDS: Final[Mapping[str, pb.SubagentStatus.ValueType]] = {
    "completed": pb.SUBAGENT_STATUS_COMPLETED,
    "failed": pb.SUBAGENT_STATUS_FAILED,
    "interrupted": pb.SUBAGENT_STATUS_CANCELLED,
}
_SILENT: Final = frozenset(
    (
        *("thread/started", "thread/status/changed", "thread/goal/cleared", "thread/goal/updated"),
        *("thread/settings/updated", "thread/closed", "turn/started", "turn/diff/updated", "skills/changed"),
        *("remoteControl/status/changed", "item/plan/delta", "item/fileChange/outputDelta"),
        *("item/fileChange/patchUpdated", "account/updated", "hook/started", "hook/completed", "thread/compacted"),
    )
)
"""Notifications whose content others have too."""

_NO_DETAILS: Final = "Codex gives no details."

Events = Iterable[pb.AgentEvent]


class ThreadEvents:
    """The events of one attempt."""

    def __init__(self, calls: Calls, totals: RunTotals) -> None:
        self.thread = ""
        """The main thread. Empty until it is known."""
        self.turn = ""
        """The main thread's turn of this run. Empty until it is known."""
        self.session = SessionFacts()
        self.totals = totals
        self.limits: list[pb.RateLimit] = []
        self.last_message = ""
        self._calls = calls
        self._texts = TextItems()
        self._agents: dict[str, str] = {}
        """Nested agents that run: the call that began each, by thread."""
        self._retries = Retries()

        def thinking(params: Fields) -> Events:
            return self._texts.delta(text(params, "itemId"), text(params, "delta"), "thinking")

        self._handlers: dict[str, Callable[[Fields], Events]] = {
            "item/started": self._started,
            "item/completed": self._completed,
            "item/agentMessage/delta": lambda p: self._texts.delta(text(p, "itemId"), text(p, "delta")),
            "item/reasoning/summaryTextDelta": thinking,
            "item/reasoning/textDelta": thinking,
            "item/reasoning/summaryPartAdded": self._next_part,
            "item/commandExecution/outputDelta": calls.output,
            "turn/plan/updated": _plan,
            "thread/tokenUsage/updated": self._tokens,
            "account/rateLimits/updated": self._rate_limits,
            "thread/name/updated": lambda p: self.session.news(title=text(p, "threadName")),
            "model/rerouted": self._rerouted,
            "mcpServer/startupStatus/updated": self._mcp_server,
            "error": self._error,
            "warning": lambda p: [notice_event("codex_warning", text(p, "message") or _NO_DETAILS)],
            "configWarning": lambda p: [_summary_notice("codex_config_warning", p)],
            "deprecationNotice": lambda p: [_summary_notice("codex_deprecation", p)],
        }

    def take(self, method: str, params: Fields) -> list[pb.AgentEvent] | None:
        """Return the events of a notification; None if it is of no known kind."""
        if method in _SILENT:
            return []
        handler = self._handlers.get(method)
        if handler is None:
            return None
        events = list(handler(params))
        if method.startswith("item/") and self.lineage(params) is None:
            events[:0] = self._retries.end()
        lineage = self.lineage(params)
        if lineage is not None:
            for event in events:
                if not event.HasField("subagent"):
                    event.lineage.CopyFrom(lineage)
        return events

    def lineage(self, params: Fields) -> pb.Lineage | None:
        """Return the nested agent that sent a notification; None for the main one."""
        thread = text(params, "threadId")
        if thread in {"", self.thread}:
            return None
        return pb.Lineage(subagent_id=thread, parent_tool_call_id=self._agents.get(thread, ""))

    def agent_ended(self, params: Fields) -> Events:
        """Handle the end of a nested agent's turn."""
        thread, status = text(params, "threadId"), text(inner(params, "turn"), "status")
        call = self._agents.pop(thread, None)
        if call is not None:
            end = _SUBAGENT_ENDS.get(status, pb.SUBAGENT_STATUS_COMPLETED)
            yield pb.AgentEvent(subagent=pb.Subagent(id=thread, status=end, tool_call_id=call))

    def end(self) -> Events:
        """End what the end of the main turn leaves open."""
        yield from self._texts.end_all()
        yield from self._calls.cancel()
        for thread, call in self._agents.items():
            ended = pb.Subagent(id=thread, status=pb.SUBAGENT_STATUS_CANCELLED, tool_call_id=call)
            yield pb.AgentEvent(subagent=ended)
        self._agents.clear()

    # Items.

    def _started(self, params: Fields) -> Events:
        item = inner(params, "item")
        if text(item, "type") == "contextCompaction":
            yield compaction_event()
        yield from self._calls.begin(item)

    def _completed(self, params: Fields) -> Events:
        item = inner(params, "item")
        kind, item_id = text(item, "type"), text(item, "id")
        if kind == "agentMessage":
            words = text(item, "text")
            if self.lineage(params) is None:
                self.last_message = words or self.last_message
            yield from self._texts.whole(item_id, words)
        elif kind == "reasoning":
            words = "\n\n".join(as_string_list(item.get("summary")) or as_string_list(item.get("content")))
            yield from self._texts.whole(item_id, words, "thinking")
        elif kind == "contextCompaction":
            yield compaction_event(finished=True)
        elif kind == "subAgentActivity":
            yield from self._nested(item)
        else:
            yield from self._calls.end(item)

    def _nested(self, item: Fields) -> Events:
        thread, call_id = text(item, "agentThreadId"), text(item, "id")
        if text(item, "kind") != "started" or not thread:
            return
        path = text(item, "agentPath")
        call = pb.ToolCall(id=call_id, name="spawn_agent", kind=pb.TOOL_KIND_SUBAGENT, title=f"Start agent {path}")
        call.status = pb.TOOL_STATUS_RUNNING
        yield pb.AgentEvent(tool_call=call)
        self._agents[thread] = call_id
        started = pb.Subagent(id=thread, status=pb.SUBAGENT_STATUS_STARTED, description=path, tool_call_id=call_id)
        yield pb.AgentEvent(subagent=started)
        # The call itself has ended: the nested agent continues on its own.
        result = pb.ToolResult(tool_call_id=call_id, status=pb.TOOL_STATUS_COMPLETED, is_error=False, content=path)
        yield pb.AgentEvent(tool_result=result)

    def _next_part(self, params: Fields) -> Events:
        """Handle the beginning of another part of an item; parts are emitted as paragraphs."""
        item_id = text(params, "itemId")
        return self._texts.delta(item_id, "\n\n") if item_id in self._texts.open() else ()

    # Notifications about the thread.

    def _tokens(self, params: Fields) -> Events:
        thread, numbers, is_main = text(params, "threadId"), inner(params, "tokenUsage"), self.lineage(params) is None
        if is_main and text(params, "turnId") != self.turn:
            if not self.turn:  # a resumed thread first reports the totals of its last turn
                self.totals.begin(thread, numbers)
            return
        usage = self.totals.take(thread, numbers, is_main=is_main)
        if usage is not None:
            yield pb.AgentEvent(usage=usage)

    def _rate_limits(self, params: Fields) -> Events:
        limits = rate_limits(inner(params, "rateLimits"))
        if limits and limits != self.limits:
            self.limits = limits
            usage = call_usage()  # without tokens, it adds nothing to the totals
            usage.rate_limits.extend(limits)
            yield pb.AgentEvent(usage=usage)

    def _rerouted(self, params: Fields) -> Events:
        model = text(params, "toModel")
        message = f"{text(params, 'fromModel') or 'The model'} was replaced by {model or 'another'}."
        yield notice_event("codex_model_rerouted", message)
        if model and self.lineage(params) is None:
            yield from self.session.news(model=model)

    def _mcp_server(self, params: Fields) -> Events:
        name, status = text(params, "name"), text(params, "status")
        if status == "failed":
            message = f"The MCP server {name} did not start: {text(params, 'error') or 'no reason was given'}."
            yield notice_event("codex_mcp_server_failed", message)
        session = self.session.now
        others = [server for server in session.mcp_servers if server.name != name]
        del session.mcp_servers[:]
        session.mcp_servers.extend([*others, pb.McpServerStatus(name=name, status=status)])
        if status != "starting":
            yield from self.session.news()

    def _error(self, params: Fields) -> Events:
        error = inner(params, "error")
        if params.get("willRetry") is not True:
            return  # the turn's end repeats it
        yield from self._texts.retract(*self._texts.open())
        if self.lineage(params) is not None:
            return
        counted = _RECONNECTING.search(text(error, "message"))
        attempt, most = (int(counted[1]), int(counted[2])) if counted else (None, None)
        reason = text(error, "additionalDetails") or text(error, "message")
        yield from self._retries.begin(reason, attempt=attempt, most=most, cause=retry_cause(error))


def _summary_notice(code: str, params: Fields) -> pb.AgentEvent:
    words = " ".join(part for part in (text(params, "summary"), text(params, "details")) if part)
    return notice_event(code, words or _NO_DETAILS, pb.SEVERITY_INFO)


def _plan(params: Fields) -> Events:
    entries = [
        pb.PlanEntry(
            id=str(number),
            content=text(step, "step"),
            status=_PLAN_STATUSES.get(text(step, "status"), pb.PLAN_ENTRY_STATUS_PENDING),
        )
        for number, step in enumerate(objects(params, "plan"), 1)
    ]
    yield pb.AgentEvent(plan=pb.Plan(id="plan", entries=entries))
