"""Copilot's session protocol, understood: the conversation that begins a turn, and the events of it. Pure.

Nothing in a message may raise; what is not understood becomes a ``log`` event.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from dragoman.adapters.copilot.classify import failure_of_error, failure_of_words, refusal, retry_cause
from dragoman.adapters.copilot.frames import (
    SILENT,
    SILENT_METHODS,
    UNDOCUMENTED,
    compacted,
    compacting,
    info,
    notice,
    subagent,
    warning,
)
from dragoman.adapters.copilot.plan import begin, skill_roots
from dragoman.adapters.copilot.questions import Questions
from dragoman.adapters.copilot.session import SessionFrames
from dragoman.adapters.copilot.texts import Texts
from dragoman.adapters.copilot.tools import file_changes, tool_kind, tool_result, tool_title
from dragoman.adapters.copilot.usage import call_usage
from dragoman.sdk import (
    CloseInput,
    FailureInfo,
    Job,
    JsonValue,
    Line,
    Output,
    Report,
    Stream,
    Terminal,
    Write,
    add_call,
    compact,
    jsonrpc,
    outputs_of,
)
from dragoman.sdk.fields import Fields, count, inner, objects, text
from dragoman.v1 import event_pb2 as pb

Handler = Callable[[Fields, str], Iterable[Output]]


class CopilotParser:
    """Leads and understands one attempt's conversation.

    Args:
        job: the attempt.
        options: what its session is created or resumed with.
    """

    def __init__(self, job: Job, options: Mapping[str, JsonValue]) -> None:
        self.report = Report()
        self._job = job
        self._options = options
        self._peer, _ = begin()
        self._session = SessionFrames()
        self._texts = Texts()
        self._questions = Questions(job, skill_roots(job), self._say)
        self._calls: dict[str, tuple[str, str]] = {}
        """Tool calls that have not ended: id -> the agent that makes it, and the tool's name."""
        self._agents: dict[str, str] = {}
        """Nested agents: id -> the tool call that began it."""
        self._offsets: dict[tuple[str, int], int] = {}
        self._failure: Fields = {}
        """The last ``model.call_failure`` since the model answered."""
        self._error: FailureInfo | None = None
        self._retries = 0
        self._is_retrying = False
        self._context_size: int | None = None
        self._is_aborted = False
        self._is_sent = False
        """The prompt is on its way; before, there is nothing that could be interrupted."""
        self._handlers: dict[str, Handler] = {
            "session.start": self._opened,
            "session.resume": self._opened,
            "session.skills_loaded": self._session.skills_loaded,
            "session.mcp_servers_loaded": self._session.mcp_loaded,
            "session.title_changed": self._session.titled,
            "session.usage_info": self._usage_info,
            "session.info": info,
            "session.warning": warning,
            "session.error": self._session_error,
            "session.compaction_start": compacting,
            "session.compaction_complete": compacted,
            "session.idle": self._idle,
            "abort": self._abort,
            "assistant.turn_start": self._turn,
            "assistant.turn_retry": self._retry,
            "assistant.message_start": self._resumed,
            "assistant.message_delta": self._text_delta,
            "assistant.reasoning_delta": self._reasoning_delta,
            "assistant.message": self._message,
            "assistant.reasoning": self._reasoning,
            "assistant.tool_call_delta": self._call_begins,
            "assistant.usage": self._usage,
            "model.call_failure": self._call_failed,
            "tool.execution_start": self._call_runs,
            "tool.shell_output": self._shell_output,
            "tool.execution_complete": self._call_ended,
            "permission.requested": self._permission,
            "subagent.started": self._subagent_started,
            "subagent.completed": partial(subagent, pb.SUBAGENT_STATUS_COMPLETED),
            "subagent.failed": partial(subagent, pb.SUBAGENT_STATUS_FAILED),
        }

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a message, or a line of standard error."""
        message = self._peer.read(line.data) if stream == "stdout" else None
        return outputs_of(self.report, stream, line, partial(self._take, message) if message is not None else None)

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        return list(self._texts.close())

    def interrupt(self) -> Iterable[Output]:
        """Ask Copilot to stop what it does."""
        if self.report.terminal is not None:
            return
        if self._is_sent:
            yield self._say("session.abort", {"reason": "user_initiated"}, "abort")
            return
        self.report.terminal = _interrupted()
        yield CloseInput()

    def _say(self, method: str, params: Mapping[str, object], tag: str) -> Write:
        about = {"sessionId": self.report.session_id} if self.report.session_id else {}
        return Write(jsonrpc.with_length(self._peer.request(method, {**about, **params}, tag)))

    # The conversation.

    def _take(self, message: object) -> list[Output] | None:
        if isinstance(message, jsonrpc.Response):
            return list(self._answered(message))
        if isinstance(message, jsonrpc.Notification):
            return self._told(message)
        if isinstance(message, jsonrpc.Request):
            ask = self._questions.user_input(message, self._peer) if message.method == "userInput.request" else None
            refused = self._peer.error(message.id, jsonrpc.METHOD_NOT_FOUND, f"{message.method} is not supported")
            return [ask or Write(jsonrpc.with_length(refused))]
        return []

    def _told(self, message: jsonrpc.Notification) -> list[Output] | None:
        event = inner(message.params, "event")
        kind, agent = text(event, "type"), text(event, "agentId")
        if message.method != "session.event":
            return [] if message.method in SILENT_METHODS else None
        handler = self._handlers.get(kind)
        if handler is None:
            return [] if kind in SILENT or kind.startswith(UNDOCUMENTED) else None
        return self._placed(list(handler(inner(event, "data"), agent)), kind, agent)

    def _placed(self, outputs: list[Output], kind: str, agent: str) -> list[Output]:
        events = [output for output in outputs if isinstance(output, pb.AgentEvent)]
        for event in events if agent else ():
            if event.WhichOneof("body") != "subagent":
                event.lineage.CopyFrom(pb.Lineage(subagent_id=agent, parent_tool_call_id=self._agents.get(agent, "")))
        if events and self._job.request.include_native:
            events[0].native.type = kind
        return outputs

    def _answered(self, response: jsonrpc.Response[str]) -> Iterator[Output]:
        if self.report.terminal is not None:
            return
        if response.error is not None:
            yield from self._refused(response.tag, response.error)
        elif response.tag == "connect":
            yield from self._session.connected(text(response.fields, "version"))
            yield self._open()
        elif response.tag == "fork":
            yield self._resume(text(response.fields, "sessionId"))
        elif response.tag == "open":
            self.report.session_id = text(response.fields, "sessionId")
            self._session.now.native_id = self.report.session_id
            self._is_sent = True
            yield self._say("session.send", {"prompt": self._job.prompt}, "send")

    def _open(self) -> Output:
        session = self._job.session
        if session.disposition == pb.SESSION_DISPOSITION_FORK:
            return self._say("sessions.fork", {"sessionId": session.native_id}, "fork")
        if session.resumes:
            return self._resume(session.native_id)
        return self._say("session.create", {**self._options, "sessionId": self._job.new_session_id}, "open")

    def _resume(self, native_id: str) -> Output:
        return self._say("session.resume", {**self._options, "sessionId": native_id}, "open")

    def _refused(self, tag: str, error: jsonrpc.RpcError) -> Iterator[Output]:
        if tag in {"answer", "abort"}:
            yield notice(pb.SEVERITY_WARNING, f"{tag}_refused", error.message)
            return
        failure = failure_of_words(error.message, resumed=self._job.session.resumes)
        message = f"Copilot refused the request ({tag}): {error.message[:500]}"
        failure = failure or FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, f"copilot_{tag}", (error.message,))
        self.report.terminal = Terminal(succeeded=False, subtype=f"{tag}_refused", failure=failure)

    # The session.

    def _opened(self, data: Fields, agent: str) -> Iterable[Output]:
        self._session.opened(data, agent)
        self.report.model = self._session.now.model
        return ()

    def _usage_info(self, data: Fields, agent: str) -> Iterable[Output]:
        if not agent:
            self._context_size = count(data, "tokenLimit")
        return ()

    def _session_error(self, data: Fields, agent: str) -> Iterable[Output]:
        if not agent:
            self._error = failure_of_error(data, self._failure)
        return [notice(pb.SEVERITY_ERROR, text(data, "errorType") or "error", text(data, "message"))]

    def _abort(self, data: Fields, agent: str) -> Iterable[Output]:
        del data
        self._is_aborted = self._is_aborted or not agent
        return ()

    def _idle(self, data: Fields, agent: str) -> Iterable[Output]:
        if agent or self.report.terminal is not None:
            return
        yield from self._session.tell()
        yield from self._texts.close()
        if self._is_aborted or data.get("aborted") is True:
            yield from self._drop_calls()
            self.report.terminal = _interrupted()
        elif self._error is not None:
            self.report.terminal = Terminal(succeeded=False, subtype="error", failure=self._error)
        else:
            self.report.terminal = Terminal(succeeded=True, subtype="idle")

    def _drop_calls(self) -> Iterator[Output]:
        """Tell that the calls that Copilot gave up have ended: it says nothing of them any more."""
        for call_id in list(self._calls):
            yield from self._call_ended({"toolCallId": call_id}, "")

    # What the model says.

    def _turn(self, data: Fields, agent: str) -> Iterable[Output]:
        del data
        if not agent:
            self.report.turns = (self.report.turns or 0) + 1
        return ()

    def _call_failed(self, data: Fields, agent: str) -> Iterable[Output]:
        if not agent:
            self._failure = data
        return ()

    def _retry(self, data: Fields, agent: str) -> Iterable[Output]:
        yield from self._texts.take_back(agent)
        if agent:
            return
        self._retries += 1
        self._is_retrying = True
        reason, status = text(data, "reason"), count(self._failure, "statusCode")
        state = pb.State(
            phase=pb.RUN_PHASE_RETRYING,
            retry_attempt=self._retries,
            reason=f"{reason or 'error'} (HTTP status {status})" if status is not None else reason,
            retry_cause=retry_cause(reason, status),
        )
        yield pb.AgentEvent(state=state)

    def _resumed(self, data: Fields, agent: str) -> Iterable[Output]:
        del data
        if self._is_retrying and not agent:
            self._is_retrying = False
            yield pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RUNNING))

    def _text_delta(self, data: Fields, agent: str) -> Iterable[Output]:
        yield from self._resumed(data, agent)
        yield from self._texts.delta(data, agent, is_reasoning=False)

    def _reasoning_delta(self, data: Fields, agent: str) -> Iterable[Output]:
        yield from self._resumed(data, agent)
        yield from self._texts.delta(data, agent, is_reasoning=True)

    def _message(self, data: Fields, agent: str) -> Iterable[Output]:
        yield from self._resumed(data, agent)
        yield from self._texts.whole(data, agent, is_reasoning=False)
        if not agent:
            self.report.summary = text(data, "content") or self.report.summary
        for request in objects(data, "toolRequests"):
            yield from self._call_begins({**request, "toolName": text(request, "name")}, agent)

    def _reasoning(self, data: Fields, agent: str) -> Iterable[Output]:
        return self._texts.whole(data, agent, is_reasoning=True)

    def _usage(self, data: Fields, agent: str) -> Iterable[Output]:
        yield from self._resumed(data, agent)
        self._retries = self._retries if agent else 0
        call = call_usage(data)
        self.report.usage = add_call(self.report.usage, call)
        provider = text(data, "modelProvider")
        self.report.provider = self.report.provider if provider in {"", "other"} else provider
        if not agent:
            self._failure, self._error = {}, None
            if data.get("contentFilterTriggered") is True or text(data, "finishReason") == "content_filter":
                self._error = refusal(text(data, "finishReason"))
            if self._context_size is not None:
                call.context_size = self.report.usage.context_size = self._context_size
            if call.HasField("context_used"):
                self.report.usage.context_used = call.context_used
        yield pb.AgentEvent(usage=call)

    # What it does.

    def _call_begins(self, data: Fields, agent: str) -> Iterable[Output]:
        call_id, name = text(data, "toolCallId"), text(data, "toolName")
        yield from self._resumed(data, agent)
        if call_id and call_id not in self._calls:
            self._calls[call_id] = (agent, name)
            call = pb.ToolCall(id=call_id, name=name, kind=tool_kind(name, ""), status=pb.TOOL_STATUS_PENDING)
            yield pb.AgentEvent(tool_call=call)

    def _call_runs(self, data: Fields, agent: str) -> Iterable[Output]:
        call_id, name, arguments = text(data, "toolCallId"), text(data, "toolName"), inner(data, "arguments")
        if not call_id:
            return
        self._calls[call_id] = (agent, name)
        server = text(data, "mcpServerName")
        call = pb.ToolCall(
            id=call_id,
            name=name,
            kind=tool_kind(name, server),
            title=tool_title(name, arguments),
            input_json=compact(arguments) if arguments else text(data, "arguments"),
            status=pb.TOOL_STATUS_RUNNING,
            mcp_server=server,
        )
        yield pb.AgentEvent(tool_call=call)

    def _shell_output(self, data: Fields, agent: str) -> Iterable[Output]:
        del agent
        call_id, words = text(data, "toolCallId"), text(data, "text")
        stream = pb.OUTPUT_STREAM_STDERR if text(data, "stream") == "stderr" else pb.OUTPUT_STREAM_STDOUT
        offset = self._offsets.get((call_id, stream), 0)
        self._offsets[call_id, stream] = offset + len(words.encode())
        if call_id in self._calls and words:
            output = pb.ToolOutput(tool_call_id=call_id, stream=stream, offset=offset, text=words)
            yield pb.AgentEvent(tool_output=output)

    def _call_ended(self, data: Fields, agent: str) -> Iterable[Output]:
        del agent
        call_id = text(data, "toolCallId")
        if self._calls.pop(call_id, None) is None:
            return
        result = tool_result(data, is_cancelled=self._is_aborted)
        yield pb.AgentEvent(tool_result=result)
        if result.status == pb.TOOL_STATUS_COMPLETED:
            for change in file_changes(data):
                yield pb.AgentEvent(file_change=change)

    def _permission(self, data: Fields, agent: str) -> Iterable[Output]:
        _, name = self._calls.get(text(inner(data, "permissionRequest"), "toolCallId"), ("", ""))
        lineage = pb.Lineage(subagent_id=agent, parent_tool_call_id=self._agents.get(agent, "")) if agent else None
        output = self._questions.permission(data, name, lineage)
        return [output] if output is not None else []

    # Nested agents.

    def _subagent_started(self, data: Fields, agent: str) -> Iterable[Output]:
        call_id = text(data, "toolCallId")
        self._agents[agent or call_id] = call_id
        yield from subagent(pb.SUBAGENT_STATUS_STARTED, data, agent)


def _interrupted() -> Terminal:
    message = "Copilot was interrupted, and not by this run."
    failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, "copilot_interrupted")
    return Terminal(succeeded=False, subtype="aborted", failure=failure, interrupted=True)
