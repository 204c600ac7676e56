"""The parser of Copilot's session protocol: messages in, events and requests out. Pure.

Nothing in a message may raise; an unknown one becomes a ``log`` event.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from dragoman.adapters.copilot.classify import interrupted
from dragoman.adapters.copilot.conversation import Conversation
from dragoman.adapters.copilot.frames import (
    SILENT,
    SILENT_METHODS,
    UNDOCUMENTED,
    compacted,
    compacting,
    info,
    subagent,
    warning,
)
from dragoman.adapters.copilot.inputs import Inputs
from dragoman.adapters.copilot.model import ModelEvents
from dragoman.adapters.copilot.plan import skill_roots
from dragoman.adapters.copilot.questions import Questions
from dragoman.adapters.copilot.session import SessionFrames
from dragoman.adapters.copilot.tools import Calls
from dragoman.sdk import Job, Line, Output, Report, Stream, Terminal, Write, jsonrpc, outputs_of
from dragoman.sdk.fields import Fields, JsonValue, inner, objects, text
from dragoman.sdk.parsing import Steering, Untaken
from dragoman.v1 import event_pb2 as pb

Handler = Callable[[Fields, str], Iterable[Output]]
"""Takes the data of an event, and the nested agent that it is of: empty for the main one."""

_ANSWERS: Final = frozenset(
    (
        *("assistant.message_start", "assistant.message_delta", "assistant.reasoning_delta", "assistant.message"),
        *("assistant.tool_call_delta", "assistant.usage"),
    )
)
"""Events by which the model answers: a retry has succeeded."""


class CopilotParser:
    """Reads one attempt's messages, and writes its requests.

    Args:
        job: the attempt.
        options: what its session is created or resumed with.
    """

    def __init__(self, job: Job, options: Mapping[str, JsonValue]) -> None:
        self.report = Report()
        self._names_frames = job.request.include_native
        self._session = session = SessionFrames()
        self._conversation = Conversation(job, options, session, self.report)
        self._questions = Questions(job, skill_roots(job), self._conversation.request)
        self._inputs = Inputs(self._conversation.request)
        self._ended: Terminal | None = None
        """How a turn ended that another one follows."""
        self._model = model = ModelEvents(self.report)
        self._calls = calls = Calls()
        self._agents: dict[str, str] = {}
        """Nested agents: id -> the tool call that began it."""
        self._is_aborted = False
        self._handlers: dict[str, Handler] = {
            "session.start": self._opened,
            "session.resume": self._opened,
            "session.skills_loaded": session.skills_loaded,
            "session.mcp_servers_loaded": session.mcp_loaded,
            "session.title_changed": session.titled,
            "session.usage_info": model.context,
            "session.info": info,
            "session.warning": warning,
            "session.error": model.failed,
            "session.compaction_start": compacting,
            "session.compaction_complete": compacted,
            "session.idle": self._idle,
            "user.message": self._inputs.noted,
            "abort": self._abort,
            "assistant.turn_start": model.turn_started,
            "assistant.turn_retry": model.retried,
            "assistant.message_start": lambda *_: (),
            "assistant.message_delta": model.text_delta,
            "assistant.reasoning_delta": model.thinking_delta,
            "assistant.message": self._message,
            "assistant.reasoning": model.thinking,
            "assistant.tool_call_delta": lambda data, _: calls.pending(data, text(data, "toolName")),
            "assistant.usage": model.usage,
            "model.call_failure": model.call_failed,
            "tool.execution_start": lambda data, _: calls.begin(data),
            "tool.shell_output": lambda data, _: calls.output(data),
            "tool.execution_complete": lambda data, _: calls.end(data, is_cancelled=self._is_aborted),
            "permission.requested": self._permission,
            "subagent.started": self._subagent_started,
            "subagent.completed": partial(subagent, pb.SUBAGENT_STATUS_COMPLETED),
            "subagent.failed": partial(subagent, pb.SUBAGENT_STATUS_FAILED),
        }

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Handle a message, or a line of standard error."""
        message = self._conversation.peer.read(line.data) if stream == "stdout" else None
        return outputs_of(self.report, stream, line, partial(self._take, message) if message is not None else None)

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        return list(self._model.texts.end_all())

    def interrupt(self) -> Iterable[Output]:
        """Ask Copilot to stop what it does."""
        return self._conversation.interrupt()

    def steer(self, steering: Steering) -> Iterable[Output] | None:
        """Give Copilot an input once its turn runs."""
        is_running = self._conversation.is_sent and self.report.terminal is None
        return [self._inputs.give(steering)] if is_running else None

    def _take(self, message: object) -> Iterable[Output] | None:
        if isinstance(message, jsonrpc.Response):
            return self._answered(message)
        if isinstance(message, jsonrpc.Notification):
            return self._notified(message)
        if isinstance(message, jsonrpc.Request):
            peer = self._conversation.peer
            if message.method == "userInput.request":
                return [self._questions.user_input(message, peer)]
            refused = peer.error(message.id, jsonrpc.METHOD_NOT_FOUND, f"{message.method} is not supported")
            return [Write(jsonrpc.with_length(refused))]
        return []

    def _answered(self, answer: jsonrpc.Response[str]) -> Iterable[Output]:
        outputs = self._inputs.answered(answer)
        if outputs is None:
            return self._conversation.answered(answer)
        if not self._inputs.waits and any(isinstance(output, Untaken) for output in outputs):
            self.report.terminal = self.report.terminal or self._ended  # no turn follows after all
        return outputs

    def _notified(self, message: jsonrpc.Notification) -> list[Output] | None:
        event = inner(message.params, "event")
        kind, agent = text(event, "type"), text(event, "agentId")
        if message.method != "session.event":
            return [] if message.method in SILENT_METHODS else None
        handler = self._handlers.get(kind)
        if handler is None:
            return [] if kind in SILENT or kind.startswith(UNDOCUMENTED) else None
        resumed = self._model.retries.end() if kind in _ANSWERS and not agent else []
        outputs = [*resumed, *handler(inner(event, "data"), agent)]
        events = [output for output in outputs if isinstance(output, pb.AgentEvent)]
        if (lineage := self._lineage(agent)) is not None:
            for item in events:
                if not item.HasField("subagent"):
                    item.lineage.CopyFrom(lineage)
        if events and self._names_frames:
            events[0].native.type = kind
        return outputs

    def _lineage(self, agent: str) -> pb.Lineage | None:
        return pb.Lineage(subagent_id=agent, parent_tool_call_id=self._agents.get(agent, "")) if agent else None

    def _opened(self, data: Fields, agent: str) -> Iterable[Output]:
        self._session.opened(data, agent)
        self.report.model = self._session.now.model
        return ()

    def _abort(self, data: Fields, agent: str) -> Iterable[Output]:
        del data
        self._is_aborted = self._is_aborted or not agent
        return ()

    def _idle(self, data: Fields, agent: str) -> Iterable[Output]:
        if agent or self.report.terminal is not None:
            return
        yield from self._session.news()
        yield from self._model.texts.end_all()
        if self._is_aborted or data.get("aborted") is True:
            yield from self._calls.cancel()
            self.report.terminal = interrupted()
            return
        error = self._model.error
        self._ended = Terminal(succeeded=error is None, subtype="idle" if error is None else "error", failure=error)
        if self._inputs.waits:
            self.report.deferred = self._ended
        else:
            self.report.terminal = self._ended

    def _message(self, data: Fields, agent: str) -> Iterable[Output]:
        yield from self._model.message(data, agent)
        for request in objects(data, "toolRequests"):
            yield from self._calls.pending(request, text(request, "name"))

    def _permission(self, data: Fields, agent: str) -> Iterable[Output]:
        name = self._calls.name(text(inner(data, "permissionRequest"), "toolCallId"))
        output = self._questions.permission(data, name, self._lineage(agent))
        return [output] if output is not None else []

    def _subagent_started(self, data: Fields, agent: str) -> Iterable[Output]:
        call_id = text(data, "toolCallId")
        self._agents[agent or call_id] = call_id
        return subagent(pb.SUBAGENT_STATUS_STARTED, data, agent)
