"""A model request, independent of its API, and the placeholders that a script may fill from it."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

from dragoman.testkit.model_server.script import Block, Failure, Reply, Tool
from msgspec import Struct
from msgspec.structs import replace

_WORD = re.compile(r"\bMOCK_([A-Z0-9_]+)")
_EXACTLY = re.compile(r"repl(?:y|ies) with exactly:?\s*[\"'`]?([A-Za-z0-9._-]*[A-Za-z0-9])", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{([a-z_0-9]+)(?::([^{}|]*))?(?:\|([^{}]*))?\}")
#: How texts begin that an agent's harness adds as if the user had typed them.
_HARNESS = (
    *("<system-reminder>", "<task-notification>", "[Request interrupted by user"),
    *("<session_context>", "<hook_context>", "[System:"),
    *("<environment_context>", "<skill>", "<turn_aborted>", "# AGENTS.md instructions"),
)


class Part(Struct, frozen=True):
    """One thing that came from the user's side of a conversation: a text, or the result of a tool.

    Attributes:
        turn: Number of the model's turns before it; results of one turn make one round.
        text: The text.
        call: Id of the call that this is the result of; None for a text.
    """

    turn: int
    text: str
    call: str | None = None


class Conversation(Struct, frozen=True):
    """A model request, reduced to what scripts use.

    Attributes:
        user_texts: Texts typed by the user, oldest first, without what the agent's harness adds.
        harness_text: What the harness adds to those, joined.
        later_texts: Every text after the chosen prompt, tool results included, oldest first.
        tool_results: Results after the chosen prompt, oldest first.
        rounds: User turns after the chosen prompt that carry tool results.
        prompt: The prompt that chose the script: the last that names one, else the last.
        prompt_number: Position of that prompt among the user's texts, from 1; 0 if there is none.
        tools: Names of the tools offered.
        text_tools: Those of them whose input is plain text, not JSON.
        model: The requested model.
        system: System text.
        stream: Whether a streamed answer is wanted.
        stream_usage: Whether a stream shall report usage, for APIs that do so only on request.
        session: What distinguishes agent sessions; empty if nothing does.
    """

    user_texts: tuple[str, ...] = ()
    harness_text: str = ""
    later_texts: tuple[str, ...] = ()
    tool_results: tuple[str, ...] = ()
    rounds: int = 0
    prompt: str = ""
    prompt_number: int = 0
    tools: tuple[str, ...] = ()
    text_tools: tuple[str, ...] = ()
    model: str = ""
    system: str = ""
    stream: bool = False
    stream_usage: bool = False
    session: str = ""

    @property
    def word(self) -> str:
        """The requested script, without ``MOCK_``; empty if the prompt names none."""
        match = _WORD.search(self.prompt)
        return match.group(1) if match else ""


def read_parts(parts: Sequence[Part], request: Conversation) -> Conversation:
    """Split the user's texts into the prompt and what follows it.

    Args:
        parts: Texts and results, oldest first. Results may come in any order within their turn.
        request: The other fields: model, tools, system text and the like.

    Returns:
        ``request`` with the rest filled in.
    """
    typed = [at for at, part in enumerate(parts) if part.call is None and not part.text.lstrip().startswith(_HARNESS)]
    chosen = next((at for at in reversed(typed) if steers(parts[at].text)), typed[-1] if typed else -1)
    later = parts[chosen + 1 :]
    # Agents report the results of one turn by completion, scripts want them by call.
    results = sorted((part for part in later if part.call is not None), key=lambda part: (part.turn, part.call))
    texts = [part for part in later if part.call is None]
    return replace(
        request,
        user_texts=tuple(parts[at].text for at in typed),
        harness_text="\n".join(part.text for at, part in enumerate(parts) if part.call is None and at not in typed),
        later_texts=tuple(part.text for part in sorted([*texts, *results], key=lambda part: part.turn)),
        tool_results=tuple(part.text for part in results),
        rounds=len({part.turn for part in results}),
        prompt=parts[chosen].text if chosen >= 0 else "",
        prompt_number=sum(at <= chosen for at in typed),
    )


def steers(text: str) -> bool:
    """Return whether a user text chooses the model's reply: by a script's name or an exact reply."""
    return bool(_WORD.search(text) or _EXACTLY.search(text))


def argument(text: str, name: str) -> str | None:
    """Return ``value`` of ``name=value`` or ``name="some value"`` in a text; None if absent."""
    match = re.search(rf'(?<![\w-]){re.escape(name)}=(?:"([^"]*)"|(\S+))', text)
    if match is None:
        return None
    return match.group(1) if match.group(1) is not None else match.group(2)


def fill(value: object, conversation: Conversation) -> object:
    """Fill the placeholders in a string, or in the strings of a mapping or list, at any depth.

    ``{name}``, ``{name:argument}`` and ``{name:argument|default}`` are understood; an unknown name
    is left as it stands. A value that cannot be found becomes the default, or nothing.

    Args:
        value: A string, number, mapping or list.
        conversation: The request being answered.

    Returns:
        The same shape with strings filled.
    """
    if isinstance(value, str):
        return fill_text(value, conversation)
    if isinstance(value, Mapping):
        return {key: fill(item, conversation) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [fill(item, conversation) for item in value]
    return value


def fill_reply(reply: Reply, conversation: Conversation) -> Reply:
    """Fill the placeholders of a whole reply; see `fill`."""
    return replace(reply, blocks=tuple(_filled(block, conversation) for block in reply.blocks))


def fill_failure(failure: Failure, conversation: Conversation) -> Failure:
    """Fill the placeholders of an error's text; see `fill`."""
    return replace(failure, message=fill_text(failure.message, conversation))


def _filled(block: Block, conversation: Conversation) -> Block:
    if isinstance(block, Tool):
        inputs = fill(block.inputs, conversation)
        assert isinstance(inputs, dict)
        return replace(block, inputs=inputs)
    return replace(block, text=fill_text(block.text, conversation))


def fill_text(text: str, conversation: Conversation) -> str:
    """Fill the placeholders of one string; see `fill`."""

    def one(match: re.Match[str]) -> str:
        name, parameter, default = match.group(1), match.group(2) or "", match.group(3) or ""
        find = PLACEHOLDERS.get(name)
        if find is None:
            return match.group(0)
        value = find(conversation, parameter)
        return default if value is None else value

    return _PLACEHOLDER.sub(one, text)


def _nth(items: tuple[str, ...], position: str) -> str | None:
    index = int(position or "-1")
    try:
        return items[index - 1 if index > 0 else index]
    except IndexError:
        return None


def _recall(conversation: Conversation, name: str) -> str | None:
    for text in conversation.user_texts:
        value = argument(text, name)
        if value is not None:
            return value
    return None


def _after(conversation: Conversation, marker: str) -> str | None:
    for text in reversed(conversation.later_texts):
        match = re.search(re.escape(marker) + r"[\s:=`'\"]*([\w.-]*\w)", text)
        if match:
            return match.group(1)
    return None


def _matched(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match.group(1) if match else None


_CWD = re.compile(
    r"(?:working directory: *|working in the directory: *|<cwd>)(\S[^\n<]*?)"
    r"(?: \(tools and deliverables\)\.)? *(?:\n|</cwd>|$)",
    re.IGNORECASE,
)

_BESIDE: Mapping[str, re.Pattern[str]] = {
    "attachments": re.compile(r"Attached files, in (\S+):"),
    "instructions": re.compile(r"Resolve relative paths in these instructions from (\S+)\.(?:\s|$)"),
    "skill": re.compile(r"The files of this skill are in (\S+):"),
}


def _beside(conversation: Conversation, what: str) -> str | None:
    text = "\n".join((conversation.system, conversation.harness_text, *conversation.user_texts))
    return _matched(_BESIDE[what], text) if what in _BESIDE else None


#: name -> how to find it; the second argument is what follows the colon in the placeholder.
PLACEHOLDERS: Mapping[str, Callable[[Conversation, str], str | None]] = {
    "prompt": lambda c, _: c.prompt,
    "prompt_head": lambda c, n: c.prompt[: int(n)],
    "prompt_tail": lambda c, n: c.prompt[-int(n) :],
    "prompt_bytes": lambda c, _: str(len(c.prompt.encode())),
    "prompt_sha256": lambda c, _: hashlib.sha256(c.prompt.encode()).hexdigest(),
    "user_text": lambda c, n: _nth(c.user_texts, n),
    "user_count": lambda c, _: str(len(c.user_texts)),
    "tool_result": lambda c, n: _nth(c.tool_results, n),
    "tool_count": lambda c, _: str(len(c.tool_results)),
    "rounds": lambda c, _: str(c.rounds),
    "arg": lambda c, name: argument(c.prompt, name),
    "recall": _recall,
    "after": _after,
    "cwd": lambda c, _: _matched(_CWD, f"{c.system}\n{c.harness_text}"),
    "beside": _beside,
    "model": lambda c, _: c.model,
    "exactly": lambda c, _: _matched(_EXACTLY, c.prompt),
}
