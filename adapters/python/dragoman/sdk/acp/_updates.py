"""What the agent reports while it works: text, reasoning, tools, plans, usage, facts of the session. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Final, Literal

from dragoman.sdk._encoding.fields import Fields, count, inner, number, objects, text
from dragoman.sdk._output.parser import plan_entry, text_event
from dragoman.sdk._output.session_facts import SessionFacts
from dragoman.sdk._output.usage import UsageTotals, amount_text, call_usage
from dragoman.sdk.acp._session import AcpOptions, Choices, Offer
from dragoman.sdk.acp._tools import ToolCalls, block_text
from dragoman.v1 import event_pb2 as pb

_MOST_COST: Final = Decimal(10) ** 12


def read_tokens(usage: Fields) -> pb.TokenCounts | None:
    """Read a prompt's ``usage``; None if it says nothing.

    Agents disagree about what is part of what; where they give a total, it shows which: in some, input is with what
    was read from a cache and output with reasoning, in others each token is counted once.
    """
    names = ("inputTokens", "outputTokens", "cachedReadTokens", "cachedWriteTokens", "thoughtTokens")
    total_input, out, read, write, thought = (count(usage, name) for name in names)
    if total_input is None and out is None:
        return None
    cached = (read or 0) + (write or 0)
    total = count(usage, "totalTokens")
    parts = (total_input or 0) + (out or 0)
    # All apart unless the total says otherwise.
    input_has_cached = total is not None and cached > 0 and total in {parts, parts + (thought or 0)}
    output_has_thought = total is not None and total in {parts, parts + cached}
    tokens = pb.TokenCounts(cache_read=read, cache_write=write, reasoning=thought)
    if total_input is not None:
        tokens.input = max(0, total_input - cached) if input_has_cached else total_input
    if out is not None:
        tokens.output = out if output_has_thought else out + (thought or 0)
    return tokens


class SessionCost:
    """What a session has cost, and what of it is this run's.

    Args:
        before: what it had cost before this run, as was kept; None if unknown. 0 for a new session.
    """

    def __init__(self, before: Decimal | None) -> None:
        self._before = before
        self.total: Decimal | None = None
        self.currency = ""

    def take(self, update: Fields, *, is_history: bool) -> None:
        """Read a usage update."""
        cost = inner(update, "cost")
        amount = number(cost, "amount")
        if amount is None:
            return
        self.total, self.currency = Decimal(repr(amount)), text(cost, "currency")
        if is_history:
            self._before = self.total

    def of_run(self) -> pb.Cost | None:
        """Return what this run has cost; None if that is unknown."""
        if self.total is None or self._before is None or self.total < self._before:
            return None
        return self._cost(self.total - self._before)

    def of_session(self) -> pb.Cost | None:
        """Return what the session has cost so far; None if that is unknown."""
        return None if self.total is None else self._cost(self.total)

    def _cost(self, amount: Decimal) -> pb.Cost:
        return pb.Cost(amount=amount_text(amount), currency=self.currency, basis=pb.COST_BASIS_REPORTED)


def read_amount(kept: str | None) -> Decimal | None:
    """Return an amount that was kept as text; None if it is none."""
    if not kept:
        return None
    try:
        value = Decimal(kept)
    except InvalidOperation:
        return None
    return value if value.is_finite() and 0 <= value < _MOST_COST else None


_LONGEST_SUMMARY: Final = 256 * 1024
"""Characters of the last message that are kept as the summary."""

_FACTS: Final = frozenset(
    {
        "available_commands_update",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
        "usage_update",
    }
)

_SpeechKind = Literal["text", "thinking"]
_Handler = Callable[[Fields], Iterable[pb.AgentEvent]]


def is_work(update: Fields) -> bool:
    """Return whether a known update says what the agent does, and is no fact of its session."""
    return text(update, "sessionUpdate") not in _FACTS


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
        """Handle a piece of text or reasoning."""
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
        yield text_event(kind, self._item, delta=words)

    def pause(self) -> Iterator[pb.AgentEvent]:
        """End the item, so that what is held back of it comes before what follows."""
        if self._kind == "text":
            self.repeats = self.repeats + 1 if self._before and self._before == self.last_words else 0
            self._before = self.last_words
        if self._kind is not None:
            yield text_event(self._kind, self._item)
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
        self._session = SessionFacts()
        self.context_used: int | None = None
        self.context_size: int | None = None
        self.has_acted = False
        """Whether a tool was called or a plan was made."""
        self.calls_usage = UsageTotals()
        """What the calls of the model used, as far as updates report it."""
        self._call_tokens = options.call_tokens
        self._model_name = options.model_name
        self._cost = cost
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
        """Handle an update. None: it is of no known kind."""
        kind = text(update, "sessionUpdate")
        if kind in self._facts:
            return [] if self._nested else self._facts[kind](update)
        if kind in self._deeds:
            return [] if self.is_history else [*self._deeds[kind](update), *self._call_usage(update)]
        return None

    def _call_usage(self, update: Fields) -> Iterator[pb.AgentEvent]:
        tokens = self._call_tokens(update)
        if tokens is not None:
            usage = call_usage(tokens)
            self.calls_usage.add(usage)
            yield pb.AgentEvent(usage=usage)

    def set_up(self, session_id: str, offer: Offer, result: Fields) -> Iterator[pb.AgentEvent]:
        """Handle what the answer to session/new and its like contains."""
        self._session.now.native_id = session_id
        self._session.now.agent_version = offer.agent_version
        self.choices.read_session(result)
        yield from self.emit_session()

    def emit_session(self) -> Iterator[pb.AgentEvent]:
        """Emit the session's facts if they have changed."""
        return self._session.news(mode=self.choices.mode, model=self.model)

    # Facts of the session.

    def _commands(self, update: Fields) -> Iterator[pb.AgentEvent]:
        names = [text(item, "name") for item in objects(update, "availableCommands")]
        self._session.now.commands[:] = [name for name in names if name]
        yield from self.emit_session()

    def _mode(self, update: Fields) -> Iterator[pb.AgentEvent]:
        self.choices.mode = text(update, "currentModeId") or text(update, "modeId") or self.choices.mode
        yield from self.emit_session()

    def _options_changed(self, update: Fields) -> Iterator[pb.AgentEvent]:
        self.choices.read_options(update)
        yield from self.emit_session()

    def _info(self, update: Fields) -> Iterator[pb.AgentEvent]:
        if "title" in update:
            self._session.now.title = text(update, "title")
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
        usage.MergeFrom(pb.Usage(context_used=self.context_used, context_size=self.context_size or None))

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
        entries = [plan_entry(item) for item in objects(update, "entries")]
        yield pb.AgentEvent(plan=pb.Plan(id=text(update, "planId") or text(update, "id"), entries=entries))
