"""One attempt's side of the Agent Client Protocol: what the agent says, and what it is sent next. Pure.

The conversation is initialize, then authenticate if the adapter wants it, then session/new (or resume, load, fork),
then the requested mode, model and options, then the prompt, whose answer ends it. What was said before the prompt is
history and is not emitted again.
"""

from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from typing import Final

from dragoman.sdk._encoding.fields import Fields, inner, text
from dragoman.sdk._encoding.json_text import compact
from dragoman.sdk._encoding.jsonrpc import INTERNAL_ERROR, Notification, Peer, Request, Response, RpcError, Stray
from dragoman.sdk._encoding.lines import Line
from dragoman.sdk._output.parser import (
    Ask,
    CloseInput,
    FailureInfo,
    Output,
    Report,
    Steering,
    Stream,
    Terminal,
    Untaken,
    Update,
    Write,
    log_event,
    notice_event,
    outputs_of,
)
from dragoman.sdk._output.usage import amount_text
from dragoman.sdk.acp._changes import Changes
from dragoman.sdk.acp._ending import ending, error_text, failure_of, is_lost_session, other_usage, run_usage
from dragoman.sdk.acp._requests import Requests
from dragoman.sdk.acp._session import (
    PROTOCOL_VERSION,
    AcpOptions,
    Adjustment,
    Conversation,
    Offer,
    adjusted,
    adjustments,
    described,
    full_prompt,
    initialize_params,
    prompt_blocks,
    read_offer,
    session_params,
    unsupported,
)
from dragoman.sdk.acp._updates import SessionCost, Updates, is_work, read_amount
from dragoman.v1 import event_pb2 as pb

INITIALIZE: Final = "initialize"
PROMPT: Final = "session/prompt"
_INPUT: Final = "input "
"""Begins the tags of prompts that join the turn; the ID of the input follows."""
COST_KEY: Final = "acpSessionCost"
"""The session's parameter that keeps what it has cost so far."""

_MOST_NESTED: Final = 256
"""Sessions of nested agents that are followed; updates of further ones are emitted as they are."""
_MOST_REPEATS: Final = 7
"""How often the same answer may be given again before the turn counts as one without progress."""
_OPENING: Final = frozenset({"session/new", "session/load", "session/resume", "session/fork"})


def opening(options: AcpOptions, version: str) -> bytes:
    """Return the first line that the agent is sent. The parser expects the answer to it."""
    return Peer[str]().request(INITIALIZE, initialize_params(options, version), INITIALIZE)


class AcpParser:
    """Understands one attempt of an agent that speaks the protocol, and says what it is sent.

    Args:
        conversation: the session and the turn that this attempt asks for.
        options: the agent's ways.
        version: the adapter's, as in ``opening``.
    """

    def __init__(self, conversation: Conversation, options: AcpOptions | None = None, version: str = "") -> None:
        self.report = Report()
        self.offer = Offer()
        self._conversation = conversation
        self._options = options or AcpOptions()
        self._peer = Peer[str]()
        self._peer.request(INITIALIZE, initialize_params(self._options, version), INITIALIZE)  # the plan has sent it
        known = read_amount(conversation.cost_before) if conversation.session_id else Decimal(0)
        self._cost = SessionCost(known)
        self._updates = Updates(self._options, conversation.cwd, self._cost, servers=conversation.server_names)
        self._nested: dict[str, Updates] = {}
        self._requests = Requests(self._peer, self._options, conversation, self._updates.calls)
        self._changes = Changes(self._peer, self._updates.choices, self._options)
        self._session_id = ""
        self._adjustments: list[Adjustment] = []
        self._stopping = False
        self._unanswered: dict[str, Steering] = {}
        """By tag: inputs that the agent has said nothing after."""
        self._steps: dict[str, Callable[[Fields], Iterable[Output]]] = {
            INITIALIZE: self._initialized,
            "authenticate": self._authenticated,
            "session/new": self._opened,
            "session/load": self._opened,
            "session/resume": self._opened,
            "session/fork": self._opened,
            "adjust": self._adjusted,
            PROMPT: self._prompted,
        }

    # What the run loop calls.

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Read a line."""
        message = self._peer.read(line.data) if stream == "stdout" else None
        if message is None or isinstance(message, Stray):
            return [log_event(stream, line)]
        native = _name(message) if self._conversation.names_frames else ""
        return outputs_of(self.report, stream, line, partial(self._message, message), native)

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        outputs: list[Output] = list(self._updates.speech.pause())
        if self.report.terminal is None:
            self._sum_up({})
            if self._stopping:
                outputs += self._updates.calls.cut_off()
        return outputs

    def steer(self, steering: Steering) -> Iterable[Output] | None:
        """Give the agent an input as a further prompt; what it does or answers next says that it took it."""
        is_running = self._is_prompted and self.report.terminal is None and not self._stopping
        if not (self._options.steers and is_running) or (steering.images and not self.offer.images):
            return None
        prompt = prompt_blocks(full_prompt(steering.prompt), steering.images)
        tag = f"{_INPUT}{steering.input_id}"
        self._unanswered[tag] = steering
        return [self._ask(PROMPT, {"sessionId": self._session_id, "prompt": prompt}, tag)]

    @property
    def _is_prompted(self) -> bool:
        return PROMPT in self._peer.pending or self._has_joined

    @property
    def _has_joined(self) -> bool:
        """Whether a prompt that joined the turn waits for its answer."""
        return any(tag.startswith(_INPUT) for tag in self._peer.pending)

    def interrupt(self) -> Iterable[Output]:
        """Ask the agent to stop: the turn is cancelled; before there is one, its input is closed."""
        self._stopping = True
        if not self._is_prompted:
            return [*self._requests.give_up(), CloseInput()]
        self._updates.calls.interrupt()
        # The turn first: an agent whose question is answered before it knows of the end continues without the tool.
        cancel = Write(self._peer.notify("session/cancel", {"sessionId": self._session_id}))
        return [cancel, *self._requests.give_up()]

    def update(self, update: Update) -> Iterable[Output] | None:
        """Give the agent a change once its turn runs."""
        if PROMPT not in self._peer.pending or self._stopping:
            return None
        return [self._changes.make(update, self._session_id)]

    # Messages.

    def _message(self, message: Request | Notification | Response[str]) -> list[Output] | None:
        if isinstance(message, Request):
            return self._asked(message)
        if isinstance(message, Notification):
            return self._notified(message)
        if message.tag.startswith(_INPUT):
            return self._joined(message)
        if self._stopping and message.tag != PROMPT:
            return []  # nothing more is begun
        changed = self._changes.answered(message.tag, message.fields, message.error)
        if changed is not None:
            return [changed, *self._updates.emit_session()]
        if message.error is not None:
            return self._failed(message.tag, message.error)
        return list(self._steps[message.tag](message.fields))

    def _asked(self, request: Request) -> list[Output]:
        try:
            outputs = self._requests.take(request)
            asks = [output for output in outputs if isinstance(output, Ask)]
            emitted: list[Output] = self._goes_on() if asks else []
            for ask in asks:  # some agents say nothing of a call before they ask
                self._updates.has_acted = True
                emitted += self._updates.speech.pause()
                emitted += self._updates.calls.announce(ask.request.subject.tool_call_id)
        except RecursionError:
            return [Write(self._peer.error(request.id, INTERNAL_ERROR, "nested too deeply"))]
        return [*emitted, *outputs]

    def _notified(self, message: Notification) -> list[Output] | None:
        if message.method == "$/cancel_request":
            return self._requests.withdraw(message.params)
        if message.method != "session/update":
            return None
        session = text(message.params, "sessionId")
        if self._session_id and session not in {"", self._session_id}:
            return self._nested_updates(session, inner(message.params, "update"))
        update = inner(message.params, "update")
        events = self._updates.take(update)
        if events is None:
            return None
        outputs: list[Output] = [*(self._goes_on() if is_work(update) else ()), *events]
        if self._updates.speech.repeats >= _MOST_REPEATS and self.report.terminal is None and not self._stopping:
            outputs += self._give_up_repeating()
        return outputs

    def _goes_on(self) -> list[Output]:
        """Note that the agent works, so that its turn is not over, and that it has what it was given."""
        if self._stopping or self.report.terminal is not None:
            return []
        self.report.deferred = None
        taken: list[Output] = [steering.taken for steering in self._unanswered.values()]
        self._unanswered.clear()
        return taken

    def _give_up_repeating(self) -> Iterable[Output]:
        """End a turn that makes no progress: some agents ask their model again for ever if its answer has no end."""
        self._sum_up({})
        message = (
            f"The agent's model gave the same answer {_MOST_REPEATS + 1} times in a row, and nothing else was done; "
            "its service may cut answers off. The turn was cancelled."
        )
        cancel = Write(self._peer.notify("session/cancel", {"sessionId": self._session_id}))
        failure = FailureInfo(pb.FAILURE_KIND_NO_RESULT, message, code="acp_no_progress", errors=(message,))
        return [cancel, *self._fail(failure, subtype="no_progress")]

    def _nested_updates(self, session: str, update: Fields) -> list[Output] | None:
        """Handle an update of a session that was not begun here, so the agent has begun it: a nested agent's."""
        if session not in self._nested:
            if len(self._nested) >= _MOST_NESTED:
                return None
            self._nested[session] = Updates(
                self._options, self._conversation.cwd, SessionCost(None), session, self._conversation.server_names
            )
        events = self._nested[session].take(update)
        if events is None:
            return None
        emitted = list(events)
        for event in emitted:
            event.lineage.subagent_id = session
        return list(emitted)

    # Step by step.

    def _ask(self, method: str, params: dict[str, object], tag: str = "") -> Write:
        return Write(self._peer.request(method, params, tag or method))

    def _initialized(self, result: Fields) -> Iterable[Output]:
        self.offer = read_offer(result)
        if self.offer.version not in {None, PROTOCOL_VERSION}:
            message = f"The agent speaks version {self.offer.version} of the protocol; version 1 is wanted."
            return self._fail(FailureInfo(pb.FAILURE_KIND_VERSION_UNSUPPORTED, message, code="acp_version"))
        if self._options.authenticate:
            return [self._ask("authenticate", {"methodId": self._options.authenticate})]
        return self._open()

    def _authenticated(self, result: Fields) -> Iterable[Output]:
        del result
        return self._open()

    def _open(self) -> list[Output]:
        if self._conversation.images and not self.offer.images:
            message = "This agent takes no images. Leave media_type empty, so that it gets them as files."
            return self._fail(FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="acp_no_images"))
        lacking = unsupported(self._conversation, self.offer)
        notices: list[Output] = [_notice(pb.SEVERITY_WARNING, code, message) for code, message in lacking]
        if self._options.reports_offer:
            notices.append(_notice(pb.SEVERITY_INFO, "acp_agent_offers", described(self.offer)))
        params = session_params(self._conversation, self.offer)
        if not self._conversation.session_id:
            return [*notices, self._ask("session/new", params)]
        method = self._way_back()
        if not method:
            return self._fail(_cannot_go_on(self._conversation))
        return [*notices, self._ask(method, {"sessionId": self._conversation.session_id, **params})]

    def _way_back(self) -> str:
        """Return how an earlier session is reached; empty if the agent offers no way."""
        if self._conversation.forks:
            return "session/fork" if self.offer.forks else ""
        if self.offer.resumes:
            return "session/resume"
        return "session/load" if self.offer.loads else ""

    def _opened(self, result: Fields) -> Iterable[Output]:
        asked_for = "" if self._conversation.forks else self._conversation.session_id
        self._session_id = text(result, "sessionId") or asked_for
        if not self._session_id:
            message = "The agent began a session without saying its id."
            return self._fail(FailureInfo(pb.FAILURE_KIND_UNPARSEABLE_OUTPUT, message, code="acp_no_session_id"))
        self.report.session_id = self._session_id
        outputs: list[Output] = list(self._updates.set_up(self._session_id, self.offer, result))
        chosen = adjustments(self._conversation, self._options, self._updates.choices)
        if isinstance(chosen, FailureInfo):
            return [*outputs, *self._fail(chosen)]
        self._adjustments = chosen
        return [*outputs, *self._go_on()]

    def _go_on(self) -> list[Output]:
        if self._adjustments:
            method, params = self._adjustments[0]
            return [self._ask(method, {"sessionId": self._session_id, **params}, "adjust")]
        self._updates.is_history = False
        prompt = prompt_blocks(self._conversation.prompt, self._conversation.images)
        return [self._ask(PROMPT, {"sessionId": self._session_id, "prompt": prompt})]

    def _adjusted(self, result: Fields) -> Iterable[Output]:
        adjusted(self._updates.choices, self._adjustments.pop(0), result)
        return [*self._updates.emit_session(), *self._go_on()]

    # The end.

    def _joined(self, answer: Response[str]) -> list[Output]:
        """Handle the answer to a prompt that joined the turn: the turn's own, if that ended before."""
        steering = self._unanswered.pop(answer.tag, None)
        if answer.error is not None:
            return self._not_joined(steering, answer.error)
        is_open = self.report.terminal is None and not self._stopping
        taken: list[Output] = [steering.taken] if steering is not None and is_open else []
        return [*taken, *(() if PROMPT in self._peer.pending else self._prompted(answer.fields))]

    def _not_joined(self, steering: Steering | None, error: RpcError) -> list[Output]:
        message = f"The agent answered an input with an error: {error_text(error)}"
        notice = _notice(pb.SEVERITY_WARNING, "acp_input_failed", message)
        refused: list[Output] = [notice] if steering is None else [Untaken(steering.input_id), notice]
        if PROMPT in self._peer.pending or self.report.terminal is not None:
            return refused
        if steering is None or self._stopping:
            return self._failed(PROMPT, error)
        if not self._has_joined and self.report.deferred is not None:  # the turn is over after all
            self.report.terminal, self.report.deferred = self.report.deferred, None
            return [*refused, CloseInput()]
        return refused if self._has_joined else self._failed(PROMPT, error)

    def _prompted(self, result: Fields) -> Iterable[Output]:
        if self.report.terminal is not None:
            return ()
        if self._has_joined and not self._stopping:  # the agent has more to do, or is about to refuse it
            self._sum_up(result)
            self.report.deferred = ending(
                text(result, "stopReason"), result, self._updates, self._options, interrupted=False
            )
            return ()
        self.report.deferred = None
        outputs: list[Output] = [*self._updates.speech.pause(), *self._updates.calls.close_denied()]
        other = other_usage(result, self._options)
        if other is not None:
            outputs.append(pb.AgentEvent(usage=other))
        reason = text(result, "stopReason")
        self._sum_up(result)
        terminal = ending(reason, result, self._updates, self._options, interrupted=self._stopping)
        if terminal.interrupted:
            outputs += self._updates.calls.cut_off()
        self.report.terminal = terminal
        self.report.raw_json = compact(result)
        return [*outputs, CloseInput()]

    def _sum_up(self, result: Fields) -> None:
        report, updates = self.report, self._updates
        report.summary = updates.speech.last_words
        report.model = updates.model
        report.provider = self._options.provider
        report.usage = run_usage(result, self._options, updates, self._cost)
        if self._cost.total is not None:
            report.session_params[COST_KEY] = amount_text(self._cost.total)

    def _failed(self, tag: str, error: RpcError) -> list[Output]:
        outputs: list[Output] = list(self._updates.speech.pause())
        method = self._adjustments[0][0] if tag == "adjust" and self._adjustments else tag
        if tag == PROMPT:
            self._sum_up({})
            if self._stopping:  # some agents answer a cancelled prompt with an error
                outputs += self._updates.calls.cut_off()
                self.report.terminal = Terminal(succeeded=False, subtype="cancelled", interrupted=True)
                return [*outputs, CloseInput()]
        failure = failure_of(error, method, self.offer.auth_methods)
        is_old = tag in _OPENING and bool(self._conversation.session_id)
        if is_old and (is_lost_session(error) or self._options.lost_session(error)):
            failure = _lost(self._conversation.session_id, failure)
        return [*outputs, *self._fail(failure, subtype=failure.code)]

    def _fail(self, failure: FailureInfo, subtype: str = "") -> list[Output]:
        self.report.deferred = None
        self.report.terminal = Terminal(succeeded=False, subtype=subtype, failure=failure)
        return [CloseInput()]


def _notice(severity: pb.Severity.ValueType, code: str, message: str) -> pb.AgentEvent:
    event = notice_event(code, message, severity)
    event.origin = pb.EVENT_ORIGIN_ADAPTER
    return event


def _cannot_go_on(conversation: Conversation) -> FailureInfo:
    if conversation.forks:
        message = "This agent does not offer to copy a session (session/fork)."
        return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="acp_no_fork")
    message = "This agent offers neither session/resume nor session/load: it cannot resume a session."
    return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code="acp_no_resume")


def _lost(session_id: str, failure: FailureInfo) -> FailureInfo:
    message = f"The agent knows no session {session_id}."
    return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code=failure.code, errors=failure.errors)


def _name(message: Request | Notification | Response[str]) -> str:
    if isinstance(message, Response):
        return f"{'input' if message.tag.startswith(_INPUT) else message.tag}/result"
    kind = text(inner(message.params, "update"), "sessionUpdate")
    return "/".join(part for part in (message.method, kind) if part)
