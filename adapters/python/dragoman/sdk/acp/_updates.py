"""What the agent reports while it works: text, reasoning, tools, plans, facts of the session. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, Literal

from dragoman.sdk._encoding.fields import Fields, count, inner, objects, text
from dragoman.sdk.acp._content import block_text
from dragoman.sdk.acp._options import AcpOptions
from dragoman.sdk.acp._setup import Choices, Offer
from dragoman.sdk.acp._tools import ToolCalls
from dragoman.sdk.acp._usage import SessionCost
from dragoman.v1 import event_pb2 as pb

_PLAN_STATUSES: Final = {
    "pending": pb.PLAN_ENTRY_STATUS_PENDING,
    "in_progress": pb.PLAN_ENTRY_STATUS_IN_PROGRESS,
    "completed": pb.PLAN_ENTRY_STATUS_COMPLETED,
    "cancelled": pb.PLAN_ENTRY_STATUS_CANCELLED,
}
_LONGEST_SUMMARY: Final = 256 * 1024
"""Characters of the last message that are kept as the summary."""

_SpeechKind = Literal["text", "thinking"]
_Handler = Callable[[Fields], Iterable[pb.AgentEvent]]


class Speech:
    """Text and reasoning, in items: what is said in one go, or belongs to one message.

    Args:
        prefix: sets the items of one session apart from those of another.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._kind: _SpeechKind | None = None
        self._message = ""
        self._item = ""
        self._used: set[str] = set()
        self._last: list[str] = []
        self._room = _LONGEST_SUMMARY
        self.has_spoken = False
        """Whether there was any answer, as opposed to reasoning."""
        self.repeats = 0
        """How often in a row the same answer was given again, with nothing done in between."""
        self._before = ""

    @property
    def last_words(self) -> str:
        """The last item of the answer, up to a length."""
        return "".join(self._last)

    def emit(self, kind: _SpeechKind, update: Fields) -> Iterator[pb.AgentEvent]:
        """Take a piece of text or reasoning."""
        words, message = block_text(inner(update, "content")), text(update, "messageId")
        if not words:
            return
        if self._kind != kind or (message and message != self._message):
            yield from self.pause()
            self._begin(kind, message)
        if kind == "text":
            self.has_spoken = True
            self._last.append(words[: self._room])
            self._room -= len(self._last[-1])
            yield pb.AgentEvent(text=pb.Text(item_id=self._item, delta=words))
        else:
            yield pb.AgentEvent(thinking=pb.Thinking(item_id=self._item, delta=words))

    def pause(self) -> Iterator[pb.AgentEvent]:
        """End the item, so that what is held back of it comes before what follows."""
        if self._kind == "text":
            self.repeats = self.repeats + 1 if self._before and self._before == self.last_words else 0
            self._before = self.last_words
            yield pb.AgentEvent(text=pb.Text(item_id=self._item))
        elif self._kind == "thinking":
            yield pb.AgentEvent(thinking=pb.Thinking(item_id=self._item))
        self._kind = None

    def note_progress(self) -> None:
        """Note that something was done: an answer that is given again after it is no repetition."""
        self.repeats, self._before = 0, ""

    def _begin(self, kind: _SpeechKind, message: str) -> None:
        self._kind, self._message = kind, message
        self._item = self._prefix + (message or f"{kind}-{len(self._used) + 1}")
        if self._item in self._used:
            self._item = f"{self._item}-{len(self._used) + 1}"
        self._used.add(self._item)
        if kind == "text":
            self._last, self._room = [], _LONGEST_SUMMARY


class Updates:
    """Turns ``session/update`` into events.

    Args:
        options: the agent's ways.
        cwd: the session's directory.
        cost: follows the session's cost.
        nested: the id of the session, if it is not the one that was begun here: a nested agent's. Empty otherwise.
        servers: the names of the run's MCP servers.
    """

    def __init__(
        self, options: AcpOptions, cwd: str, cost: SessionCost, nested: str = "", servers: Collection[str] = ()
    ) -> None:
        self.calls = ToolCalls(options, cwd, servers)
        self.speech = Speech(f"{nested}/" if nested else "")
        self.choices = Choices()
        self.session = pb.Session()
        self.context_used: int | None = None
        self.context_size: int | None = None
        self.has_acted = False
        """Whether a tool was called or a plan was made."""
        self.tokens: pb.TokenCounts | None = None
        """What the calls of the model used, as far as updates report it. None: they do not."""
        self._call_tokens = options.call_tokens
        self._model_name = options.model_name
        self._cost = cost
        self._emitted_session = b""
        self.is_history = not nested
        """Whether updates repeat an earlier turn: until this run's prompt is sent."""
        self._nested = nested
        self._facts: dict[str, _Handler] = {
            "available_commands_update": self._commands,
            "current_mode_update": self._mode,
            "config_option_update": self._options_changed,
            "session_info_update": self._info,
            "usage_update": self._usage,
        }
        self._deeds: dict[str, _Handler] = {
            "agent_message_chunk": lambda update: self.speech.emit("text", update),
            "agent_thought_chunk": lambda update: self.speech.emit("thinking", update),
            "user_message_chunk": self._user,
            "tool_call": self._tool,
            "tool_call_update": self._tool,
            "plan": self._plan,
            "plan_update": lambda update: self._plan(inner(update, "plan")),
        }

    @property
    def model(self) -> str:
        """The model in use, by its name. Empty: unknown."""
        return self._model_name(self.choices.model) if self.choices.model else ""

    def take(self, update: Fields) -> Iterable[pb.AgentEvent] | None:
        """Take an update. None: it is of no known kind."""
        kind = text(update, "sessionUpdate")
        if kind in self._facts:
            return [] if self._nested else self._facts[kind](update)
        if kind in self._deeds:
            return [] if self.is_history else [*self._deeds[kind](update), *self._call_usage(update)]
        return None

    def _call_usage(self, update: Fields) -> Iterator[pb.AgentEvent]:
        tokens = self._call_tokens(update)
        if tokens is None:
            return
        if self.tokens is None:
            self.tokens = pb.TokenCounts()
        for counted, value in tokens.ListFields():
            setattr(self.tokens, counted.name, getattr(self.tokens, counted.name) + value)
        usage = pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA, tokens=tokens)
        yield pb.AgentEvent(usage=usage)

    def set_up(self, session_id: str, offer: Offer, result: Fields) -> Iterator[pb.AgentEvent]:
        """Take what the answer to session/new and its like contains."""
        self.session.native_id = session_id
        self.session.agent_version = offer.agent_version
        self.choices.read_session(result)
        yield from self.emit_session()

    def emit_session(self) -> Iterator[pb.AgentEvent]:
        """Emit the session's facts if they have changed."""
        self.session.mode, self.session.model = self.choices.mode, self.model
        serialized = self.session.SerializeToString()
        if self.session.native_id and serialized != self._emitted_session:
            self._emitted_session = serialized
            yield pb.AgentEvent(session=self.session)

    # Facts of the session.

    def _commands(self, update: Fields) -> Iterator[pb.AgentEvent]:
        names = [text(item, "name") for item in objects(update, "availableCommands")]
        self.session.commands[:] = [name for name in names if name]
        yield from self.emit_session()

    def _mode(self, update: Fields) -> Iterator[pb.AgentEvent]:
        self.choices.mode = text(update, "currentModeId") or text(update, "modeId") or self.choices.mode
        yield from self.emit_session()

    def _options_changed(self, update: Fields) -> Iterator[pb.AgentEvent]:
        self.choices.read_options(update)
        yield from self.emit_session()

    def _info(self, update: Fields) -> Iterator[pb.AgentEvent]:
        if "title" in update:
            self.session.title = text(update, "title")
        yield from self.emit_session()

    def _usage(self, update: Fields) -> Iterator[pb.AgentEvent]:
        self._cost.take(update, is_history=self.is_history)
        self.context_used, self.context_size = count(update, "used"), count(update, "size")
        if self.is_history:
            return
        usage = pb.Usage(scope=pb.USAGE_SCOPE_SESSION, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
        cost = self._cost.of_session()
        if cost is not None:
            usage.cost.CopyFrom(cost)
        self.add_context(usage)
        yield pb.AgentEvent(usage=usage)

    def add_context(self, usage: pb.Usage) -> None:
        """Write how full the context is, as far as that is known."""
        if self.context_used is not None:
            usage.context_used = self.context_used
        if self.context_size:
            usage.context_size = self.context_size

    # What it says and does.

    def _user(self, update: Fields) -> Iterator[pb.AgentEvent]:
        words = block_text(inner(update, "content"))
        yield from self.speech.pause()
        if words:
            yield pb.AgentEvent(message=pb.Message(role=pb.MESSAGE_ROLE_USER, text=words))

    def _tool(self, update: Fields) -> Iterator[pb.AgentEvent]:
        self.has_acted = True
        yield from self.speech.pause()
        self.speech.note_progress()
        yield from self.calls.update(update)

    def _plan(self, update: Fields) -> Iterator[pb.AgentEvent]:
        self.has_acted = True
        yield from self.speech.pause()
        entries = [
            pb.PlanEntry(
                id=text(item, "id"),
                content=text(item, "content"),
                status=_PLAN_STATUSES.get(text(item, "status"), pb.PLAN_ENTRY_STATUS_UNSPECIFIED),
                priority=text(item, "priority"),
            )
            for item in objects(update, "entries")
        ]
        yield pb.AgentEvent(plan=pb.Plan(id=text(update, "planId") or text(update, "id"), entries=entries))
