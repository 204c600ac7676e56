"""The gateway's frames, understood. Pure: lines in, events and further requests out; nothing in a line may raise.

A gateway tells each of its clients of all runs: frames of others are passed over. A frame of this run that is not
understood becomes a ``log`` event.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from dragoman.adapters.openclaw import plan
from dragoman.adapters.openclaw.classify import failure_of, retry_cause
from dragoman.adapters.openclaw.tools import file_change, subject, title, tool_call, tool_result
from dragoman.adapters.openclaw.usage import run_usage
from dragoman.sdk import (
    Answer,
    Ask,
    CloseInput,
    FailureInfo,
    Job,
    JsonValue,
    Line,
    Output,
    Report,
    Stream,
    Terminal,
    Withdraw,
    Write,
    compact,
    outputs_of,
    parse_json_object,
)
from dragoman.sdk import fields as read
from dragoman.sdk.fields import Fields
from dragoman.v1 import event_pb2 as pb

PLUGIN_METHOD: Final = "dragoman.question"
"""Listed by gateways with the adapter's plugin; without it nobody would be asked."""

_APPROVALS: Final = ("exec.approval.requested", "exec.approval.resolved")
_TOLD_ELSEWHERE: Final = frozenset({"item", "command_output", "usage", "approval", "patch", "compaction"})
"""Streams that say nothing which another does not say better."""


class OpenClawParser:
    """Understands one attempt at a gateway."""

    def __init__(self, job: Job) -> None:
        self.report = Report()
        self._job = job
        self._key = plan.session_key(job)
        self._run = plan.run_key(job)
        self._cwd = job.settings.cwd
        self._calls: dict[str, tuple[str, Fields]] = {}
        self._denied: set[str] = set()
        self._open_item = ""
        self._said: set[str] = set()
        self._thoughts = 0
        self._observed: Fields = {}
        self._is_retrying = False
        self._is_stopped = False
        self._answers: dict[str, Callable[[Fields, Fields], Iterable[Output]]] = {
            plan.OPEN: self._opened,
            plan.ADJUST: self._adjusted,
            plan.TURN: self._turned,
            plan.QUESTION: self._asked,
        }
        self._streams: dict[str, Callable[[Fields], Iterable[Output]]] = {
            "assistant": self._words,
            "thinking": self._thinking,
            "tool": self._tool,
            "lifecycle": self._lifecycle,
            "run_status": self._run_status,
        }

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        frame = parse_json_object(line.data) if stream == "stdout" else None
        return outputs_of(self.report, stream, line, partial(self._frame, frame) if frame is not None else None)

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        return self._close_item()

    def _frame(self, frame: Fields) -> Iterable[Output] | None:
        kind = read.text(frame, "type")
        if kind == "hello":
            return self._hello(frame)
        if kind == "res":
            answered = self._answers.get(read.text(frame, "id"))
            return answered(frame, read.inner(frame, "payload")) if answered else ()
        if kind != "event":
            return None
        event, payload = read.text(frame, "event"), read.inner(frame, "payload")
        if event == "agent":
            return self._agent(payload)
        return self._approval(event, payload) if event in _APPROVALS else ()  # what is told to all who look on

    # The conversation with the gateway.

    def _hello(self, frame: Fields) -> Iterable[Output]:
        methods = frame.get("methods")
        if isinstance(methods, list) and PLUGIN_METHOD in methods:
            return ()
        message = (
            "The gateway has not loaded the adapter's plugin, so that nobody would be asked about what tools do."
            " If openclaw.json has plugins.allow, add `dragoman` to it; plugins.deny must not hold it."
        )
        return self._fail(FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="openclaw_plugin_missing"))

    def _opened(self, frame: Fields, payload: Fields) -> Iterable[Output]:
        resumes = self._job.session.disposition == pb.SESSION_DISPOSITION_RESUME
        if frame.get("ok") is not True:
            message = _error(frame)
            if self._job.session.resumes and "parent" in message and "not found" in message:
                return self._lost()
            return self._fail(failure_of(message, {}))
        if resumes and not read.inner(payload, "session"):
            return self._lost()
        following = plan.adjusting(self._job) if resumes else plan.turn(self._job)
        questions = [] if self._job.permissions.auto_approve else [Write(plan.next_question(self._job))]
        return [*self._session(), *questions, Write(following)]

    def _session(self) -> Iterator[Output]:
        self.report.session_id = plan.native_id(self._job)
        told = pb.Session(native_id=self.report.session_id, agent_version=self._job.version)
        told.skills.extend(skill.name for skill in self._job.skills)
        yield pb.AgentEvent(session=told)

    def _adjusted(self, frame: Fields, payload: Fields) -> Iterable[Output]:
        del payload
        if frame.get("ok") is not True:
            return self._fail(failure_of(_error(frame), {}))
        return [Write(plan.turn(self._job))]

    def _lost(self) -> Iterable[Output]:
        message = f"OpenClaw knows no session {self._job.session.native_id}."
        return self._fail(FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code="openclaw_session_unknown"))

    def _turned(self, frame: Fields, payload: Fields) -> Iterable[Output]:
        status = read.text(payload, "status")
        if frame.get("ok") is True and status in {"accepted", "started", "in_flight"}:
            return ()
        if frame.get("ok") is not True:
            return self._fail(failure_of(_error(frame), self._observed))
        result = read.inner(payload, "result")
        if result:
            return self._ended(result, payload)
        message = "The turn was stopped, and not by this run."
        failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="openclaw_stopped")
        return self._fail(failure, interrupted=True)

    def _ended(self, result: Fields, payload: Fields) -> Iterable[Output]:
        meta = read.inner(result, "meta")
        learn(self.report, result)
        if read.inner(meta, "error") or read.text(payload, "status") != "ok":
            message = next(refusals(result, read.text(payload, "summary")), "")
            return self._fail(failure_of(message, self._observed))
        self.report.terminal = Terminal(succeeded=True, subtype=read.text(meta, "stopReason"))
        return [*self._close_item(), CloseInput()]

    def _fail(self, failure: FailureInfo, *, interrupted: bool = False) -> Iterable[Output]:
        self.report.terminal = Terminal(succeeded=False, failure=failure, interrupted=interrupted)
        return [*self._close_item(), CloseInput()]

    # What the agent says and does.

    def _agent(self, payload: Fields) -> Iterable[Output] | None:
        if read.text(payload, "runId") != self._run:
            return ()
        name = read.text(payload, "stream")
        take = self._streams.get(name)
        if take is None:
            return () if name in _TOLD_ELSEWHERE else None
        return take(read.inner(payload, "data"))

    def _words(self, data: Fields) -> Iterator[Output]:
        item_id = read.text(data, "itemId") or "answer"
        delta, whole = read.text(data, "delta"), read.text(data, "text")
        replaces = data.get("replace") is True
        if not delta and not (replaces and item_id in self._said):
            return
        self._said.add(item_id)
        if delta:
            yield from self._resumed()
        yield from self._close_item(but=item_id)
        event = pb.AgentEvent()
        event.text.item_id = self._open_item = item_id
        if replaces:
            event.text.whole = whole
        else:
            event.text.delta = delta
        yield event

    def _thinking(self, data: Fields) -> Iterator[Output]:
        delta = read.text(data, "delta")
        if not delta:
            return
        yield from self._resumed()
        if not self._open_item.startswith("thinking-"):
            yield from self._close_item()
            self._thoughts += 1
            self._open_item = f"thinking-{self._thoughts}"
        yield pb.AgentEvent(thinking=pb.Thinking(item_id=self._open_item, delta=delta))

    def _close_item(self, *, but: str = "") -> Iterator[Output]:
        """End the item that is being told, so that nothing of it is held back any more."""
        item_id = self._open_item
        if not item_id or item_id == but:
            return
        self._open_item = ""
        is_thought = item_id.startswith("thinking-")
        yield (
            pb.AgentEvent(thinking=pb.Thinking(item_id=item_id))
            if is_thought
            else pb.AgentEvent(text=pb.Text(item_id=item_id))
        )

    def _tool(self, data: Fields) -> Iterator[Output]:
        call_id, name, phase = read.text(data, "toolCallId"), read.text(data, "name"), read.text(data, "phase")
        if not call_id:
            return
        yield from self._resumed()
        yield from self._close_item()
        if phase == "start":
            self._calls[call_id] = (name, read.inner(data, "args"))
            yield pb.AgentEvent(tool_call=tool_call(call_id, name, read.inner(data, "args")))
        elif phase == "result":
            name, tool_input = self._calls.pop(call_id, (name, {}))
            denied = call_id in self._denied
            made = tool_result(call_id, data, was_denied=denied, was_stopped=self._is_stopped)
            yield pb.AgentEvent(tool_result=made)
            change = file_change(call_id, name, data, self._cwd, tool_input)
            if change is not None:
                yield pb.AgentEvent(file_change=change)

    def _lifecycle(self, data: Fields) -> Iterable[Output]:
        phase = read.text(data, "phase")
        if phase == "model":
            self.report.model = read.text(data, "model") or self.report.model
            self.report.provider = read.text(data, "provider") or self.report.provider
        self._is_stopped = self._is_stopped or data.get("aborted") is True
        self._observed = read.inner(data, "errorObservation") or self._observed
        return ()

    def _run_status(self, data: Fields) -> Iterator[Output]:
        if read.text(data, "phase") != "retrying":
            return
        self._is_retrying = True
        reason = read.text(data, "reason")
        state = pb.State(
            phase=pb.RUN_PHASE_RETRYING,
            retry_attempt=_small(data, "retryAttempt"),
            max_retries=_small(data, "maxRetries"),
            reason=read.text(data, "message") or reason,
            retry_cause=retry_cause(reason),
        )
        delay = read.count(data, "delayMs")
        if delay is not None:
            state.retry_delay.FromMilliseconds(min(delay, 10**12))
        yield pb.AgentEvent(state=state)

    def _resumed(self) -> Iterator[Output]:
        if self._is_retrying:
            self._is_retrying = False
            yield pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RUNNING))

    # Questions.

    def _asked(self, frame: Fields, payload: Fields) -> Iterable[Output]:
        question_id = read.text(payload, "id")
        if frame.get("ok") is not True or not question_id:
            return ()
        return [self._question(question_id, payload), Write(plan.next_question(self._job))]

    def _question(self, question_id: str, asked: Fields) -> Ask:
        call_id, name, tool_input = read.text(asked, "call"), read.text(asked, "tool"), read.inner(asked, "params")
        request = _permission(question_id, name, tool_input, subject(call_id, name, tool_input, self._cwd))
        request.editable_input_json = compact(tool_input)

        def encode(answer: Answer) -> bytes:
            params: dict[str, JsonValue] = {"id": question_id, "allow": answer.allowed, "message": answer.message}
            changed = parse_json_object(answer.updated_input_json.encode()) if answer.updated_input_json else None
            if not answer.allowed:
                self._denied.add(call_id)
            elif changed is not None:
                self._calls[call_id] = (name, changed)
                params["params"] = dict(changed)
            return plan.request(f"answer-{question_id}", "dragoman.answer", params)

        return Ask(request, encode)

    def _approval(self, event: str, payload: Fields) -> Iterable[Output]:
        """Take a question of OpenClaw's own policy about commands, where its user has tightened that."""
        approval_id, asked = read.text(payload, "id"), read.inner(payload, "request")
        if read.text(asked, "sessionKey") != self._key or not approval_id:
            return ()
        if event.endswith(".resolved"):
            return [Withdraw(approval_id)]
        call_id, tool_input = read.text(asked, "toolCallId"), {"command": read.text(asked, "command")}
        request = _permission(approval_id, "exec", tool_input, subject(call_id, "exec", tool_input, self._cwd))

        def encode(answer: Answer) -> bytes:
            if not answer.allowed:
                self._denied.add(call_id)
            params = {"id": approval_id, "decision": "allow-once" if answer.allowed else "deny"}
            return plan.request(f"answer-{approval_id}", "exec.approval.resolve", dict(params))

        return [Ask(request, encode)]


def learn(report: Report, result: Fields) -> None:
    """Note what a run's result says of it, but for whether it went well."""
    meta = read.inner(result, "meta")
    agent = read.inner(meta, "agentMeta")
    report.usage = run_usage(agent)
    report.model = read.text(agent, "model") or report.model
    report.provider = read.text(agent, "provider") or report.provider
    report.turns = read.count(agent, "assistantTurns")
    report.raw_json = compact({"payloads": result.get("payloads"), "meta": {**meta, "systemPromptReport": None}})
    payloads = read.objects(result, "payloads")
    texts = [read.text(item, "text") for item in payloads if item.get("isError") is not True]
    report.summary = read.text(meta, "finalAssistantVisibleText") or "\n\n".join(texts)


def refusals(result: Fields, summary: str = "") -> Iterator[str]:
    """Yield what a result that failed says of why, the most telling first; nothing that is empty."""
    error = read.inner(read.inner(result, "meta"), "error")
    payloads = read.objects(result, "payloads")
    failed = [read.text(item, "text") for item in payloads if item.get("isError") is True]
    said = (read.text(error, "message"), *failed, summary, read.text(error, "kind"))
    return (words for words in said if words)


def _permission(request_id: str, name: str, tool_input: Fields, about: pb.InputSubject) -> pb.InputRequest:
    made = pb.InputRequest(id=request_id, kind=pb.INPUT_KIND_PERMISSION, title=title(name, tool_input), subject=about)
    made.options.add(id="allow_once", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow once")
    made.options.add(id="reject_once", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Reject")
    return made


def _error(frame: Fields) -> str:
    return read.text(read.inner(frame, "error"), "message")


def _small(fields: Fields, key: str) -> int | None:
    value = read.count(fields, key)
    return value if value is not None and value < 2**32 else None
