"""What happens in a thread and in those of its nested agents: notifications in, events out. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from dragoman.adapters.codex.classify import retry_cause
from dragoman.adapters.codex.speech import Speech
from dragoman.adapters.codex.tools import Calls, file_changes, tool_call, tool_result
from dragoman.adapters.codex.usage import RunTotals, rate_limits
from dragoman.sdk import as_string_list
from dragoman.sdk.fields import Fields, inner, objects, text
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
"""What says nothing that is not said elsewhere."""

Events = Iterable[pb.AgentEvent]


class ThreadEvents:
    """The events of one attempt.

    Args:
        cwd: the working directory, to show paths below it as relative.
        calls: where calls are noted.
        totals: where tokens are counted.
    """

    def __init__(self, cwd: str, calls: Calls, totals: RunTotals | None = None) -> None:
        self.thread = ""
        """The main thread. Empty until it is known."""
        self.turn = ""
        """The main thread's turn of this run. Empty until it is known."""
        self.session = pb.Session()
        self.totals = totals or RunTotals()
        self.limits: list[pb.RateLimit] = []
        self.last_words = ""
        self._cwd = cwd
        self._calls = calls
        self._speech = Speech()
        self._agents: dict[str, str] = {}
        """Nested agents that run: the call that began each, by thread."""
        self._printed: dict[str, int] = {}
        """Bytes that running commands have printed, by call."""
        self._is_retrying = False
        self._handlers: dict[str, Callable[[Fields], Events]] = {
            "item/started": self._started,
            "item/completed": self._completed,
            "item/agentMessage/delta": lambda p: self._speech.delta(text(p, "itemId"), "text", text(p, "delta")),
            "item/reasoning/summaryTextDelta": self._reasoned,
            "item/reasoning/textDelta": self._reasoned,
            "item/reasoning/summaryPartAdded": lambda p: self._speech.part(text(p, "itemId"), "thinking"),
            "item/commandExecution/outputDelta": self._output,
            "turn/plan/updated": _plan,
            "thread/tokenUsage/updated": self._tokens,
            "account/rateLimits/updated": self._rate_limits,
            "thread/name/updated": lambda p: self.changed(title=text(p, "threadName")),
            "model/rerouted": self._rerouted,
            "mcpServer/startupStatus/updated": self._mcp_server,
            "error": self._error,
            "warning": lambda p: [notice(pb.SEVERITY_WARNING, "codex_warning", text(p, "message"))],
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
        if self._is_retrying and method.startswith("item/") and self.lineage(params) is None:
            self._is_retrying = False
            events.insert(0, pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RUNNING)))
        lineage = self.lineage(params)
        if lineage is not None:
            for event in events:
                if not event.HasField("subagent"):
                    event.lineage.CopyFrom(lineage)
        return events

    def lineage(self, params: Fields) -> pb.Lineage | None:
        """Say which nested agent something is of; None for the main one."""
        thread = text(params, "threadId")
        if thread in {"", self.thread}:
            return None
        return pb.Lineage(subagent_id=thread, parent_tool_call_id=self._agents.get(thread, ""))

    def changed(self, **values: str) -> Iterator[pb.AgentEvent]:
        """Tell the session anew if something about it is."""
        session = pb.Session()
        session.CopyFrom(self.session)
        for name, value in values.items():
            setattr(session, name, value)
        if session != self.session:
            self.session = session
            yield pb.AgentEvent(session=session)

    def agent_ended(self, params: Fields) -> Events:
        """Take the end of a nested agent's turn."""
        thread, status = text(params, "threadId"), text(inner(params, "turn"), "status")
        call = self._agents.pop(thread, None)
        if call is not None:
            end = _SUBAGENT_ENDS.get(status, pb.SUBAGENT_STATUS_COMPLETED)
            yield pb.AgentEvent(subagent=pb.Subagent(id=thread, status=end, tool_call_id=call))

    def end(self) -> Events:
        """Close what the end of the main turn leaves open."""
        yield from self._speech.close()
        for call_id in self._calls.open:
            result = pb.ToolResult(tool_call_id=call_id, status=pb.TOOL_STATUS_CANCELLED, is_error=True)
            yield pb.AgentEvent(tool_result=result)
        self._calls.open.clear()
        for thread, call in self._agents.items():
            ended = pb.Subagent(id=thread, status=pb.SUBAGENT_STATUS_CANCELLED, tool_call_id=call)
            yield pb.AgentEvent(subagent=ended)
        self._agents.clear()

    # Items.

    def _started(self, params: Fields) -> Events:
        item = inner(params, "item")
        if text(item, "type") == "contextCompaction":
            yield pb.AgentEvent(compaction=pb.Compaction(finished=False))
        call = tool_call(item, self._cwd)
        if call is not None:
            self._calls.open[call.id] = item
            pending = pb.ToolCall(id=call.id, name=call.name, kind=call.kind, status=pb.TOOL_STATUS_PENDING)
            yield pb.AgentEvent(tool_call=pending)
            call.status = pb.TOOL_STATUS_RUNNING
            yield pb.AgentEvent(tool_call=call)

    def _completed(self, params: Fields) -> Events:
        item = inner(params, "item")
        kind, item_id = text(item, "type"), text(item, "id")
        if kind == "agentMessage":
            yield from self._said(params, item)
        elif kind == "reasoning":
            words = "\n\n".join(as_string_list(item.get("summary")) or as_string_list(item.get("content")))
            yield from self._speech.whole(item_id, "thinking", words)
        elif kind == "contextCompaction":
            yield pb.AgentEvent(compaction=pb.Compaction(finished=True))
        elif kind == "subAgentActivity":
            yield from self._nested(item)
        else:
            yield from self._call_ended(params, item)

    def _said(self, params: Fields, item: Fields) -> Events:
        words = text(item, "text")
        if self.lineage(params) is None:
            self.last_words = words or self.last_words
        return self._speech.whole(text(item, "id"), "text", words)

    def _call_ended(self, params: Fields, item: Fields) -> Events:
        if tool_call(item, self._cwd) is None:
            return
        call_id = text(item, "id")
        if call_id not in self._calls.open:  # ended before anything was said of it
            yield from self._started(params)
        self._calls.open.pop(call_id, None)
        self._printed.pop(call_id, None)
        result = tool_result(item)
        if result.status == pb.TOOL_STATUS_DENIED:
            result.content = self._calls.refusals.get(call_id, result.content)
        yield pb.AgentEvent(tool_result=result)
        if result.status == pb.TOOL_STATUS_COMPLETED and text(item, "type") == "fileChange":
            yield from (pb.AgentEvent(file_change=change) for change in file_changes(item))

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
        # The call itself is over: the agent runs on by itself.
        result = pb.ToolResult(tool_call_id=call_id, status=pb.TOOL_STATUS_COMPLETED, is_error=False, content=path)
        yield pb.AgentEvent(tool_result=result)

    def _reasoned(self, params: Fields) -> Events:
        return self._speech.delta(text(params, "itemId"), "thinking", text(params, "delta"))

    def _output(self, params: Fields) -> Events:
        call_id, words = text(params, "itemId"), text(params, "delta")
        if call_id and words:
            offset = self._printed.get(call_id, 0)
            self._printed[call_id] = offset + len(words.encode("utf-8", "replace"))
            output = pb.ToolOutput(tool_call_id=call_id, stream=pb.OUTPUT_STREAM_PTY, offset=offset, text=words)
            yield pb.AgentEvent(tool_output=output)

    # The rest.

    def _tokens(self, params: Fields) -> Events:
        thread, numbers, is_main = text(params, "threadId"), inner(params, "tokenUsage"), self.lineage(params) is None
        if is_main and text(params, "turnId") != self.turn:
            if not self.turn:  # a resumed thread tells the numbers of its last turn first
                self.totals.begin(thread, numbers)
            return
        usage = self.totals.take(thread, numbers, is_main=is_main)
        if usage is not None:
            yield pb.AgentEvent(usage=usage)

    def _rate_limits(self, params: Fields) -> Events:
        limits = rate_limits(inner(params, "rateLimits"))
        if limits and limits != self.limits:
            self.limits = limits
            # A call without tokens adds nothing to what is counted.
            usage = pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA, rate_limits=limits)
            yield pb.AgentEvent(usage=usage)

    def _rerouted(self, params: Fields) -> Events:
        model = text(params, "toModel")
        message = f"{text(params, 'fromModel') or 'The model'} was replaced by {model or 'another'}."
        yield notice(pb.SEVERITY_WARNING, "codex_model_rerouted", message)
        if model and self.lineage(params) is None:
            yield from self.changed(model=model)

    def _mcp_server(self, params: Fields) -> Events:
        name, status = text(params, "name"), text(params, "status")
        if status == "failed":
            message = f"The MCP server {name} did not start: {text(params, 'error') or 'nobody says why'}."
            yield notice(pb.SEVERITY_WARNING, "codex_mcp_server_failed", message)
        servers = [server for server in self.session.mcp_servers if server.name != name]
        del self.session.mcp_servers[:]
        self.session.mcp_servers.extend([*servers, pb.McpServerStatus(name=name, status=status)])
        if self.session.native_id and status != "starting":
            session = pb.Session()
            session.CopyFrom(self.session)
            yield pb.AgentEvent(session=session)

    def _error(self, params: Fields) -> Events:
        error = inner(params, "error")
        if params.get("willRetry") is not True:
            return  # the turn's end says it again
        yield from self._speech.take_back()
        if self.lineage(params) is not None:
            return
        self._is_retrying = True
        state = pb.State(phase=pb.RUN_PHASE_RETRYING, retry_cause=retry_cause(error))
        state.reason = text(error, "additionalDetails") or text(error, "message")
        counted = _RECONNECTING.search(text(error, "message"))
        if counted:
            state.retry_attempt, state.max_retries = int(counted[1]), int(counted[2])
        yield pb.AgentEvent(state=state)


def notice(severity: pb.Severity.ValueType, code: str, message: str) -> pb.AgentEvent:
    """Return a notice."""
    return pb.AgentEvent(notice=pb.Notice(severity=severity, code=code, message=message or "Codex says no more."))


def _summary_notice(code: str, params: Fields) -> pb.AgentEvent:
    words = " ".join(part for part in (text(params, "summary"), text(params, "details")) if part)
    return notice(pb.SEVERITY_INFO, code, words)


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
