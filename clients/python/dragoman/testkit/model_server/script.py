"""The script of a model, as data: scenarios, their steps, and how each answer is delivered.

Nothing here depends on a wire format or a vendor. An API's module (such as ``anthropic``) renders
a `Reply` or a `Failure`, once ``conversation`` has filled the ``{placeholders}`` in its strings from the request.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field


class Text(Struct, frozen=True):
    """Visible text of the model.

    Attributes:
        text: The text; placeholders are filled.
        chunk: Characters per streamed delta; 0 sends one delta, however long.
    """

    text: str
    chunk: int = 12


class Thinking(Struct, frozen=True):
    """Reasoning of the model, with the signature some apis demand.

    Attributes:
        text: The reasoning; placeholders are filled.
        chunk: Characters per streamed delta; 0 sends one delta.
    """

    text: str
    chunk: int = 12


class Tool(Struct, frozen=True):
    """A tool the model wants called.

    Attributes:
        action: A neutral action of `tool_names` (``write``, ``shell``…), rendered as whatever the
            agent calls it, or a native tool name, passed through.
        inputs: Arguments of the neutral action, or the native input; placeholders are filled in
            strings at any depth.
        chunk: Characters of the input's JSON per streamed delta; 0 sends one delta.
    """

    action: str
    inputs: Mapping[str, object] = field(default_factory=dict)
    chunk: int = 24


Block = Text | Thinking | Tool


class Usage(Struct, frozen=True):
    """Token numbers a reply reports.

    Attributes:
        input: Input tokens that no cache served.
        output: Output tokens, thinking included.
        cache_read: Input tokens read from a cache.
        cache_write: Input tokens written to a cache.
    """

    input: int = 400
    output: int = 42
    cache_read: int = 800
    cache_write: int = 0


class Hold(Struct, frozen=True):
    """A pause until its gate is released, the client leaves, or the server closes.

    Attributes:
        gate: Name for `ModelServer.release` and `ModelServer.wait_held`.
        after_events: Stream events sent before the pause; 0 pauses before the status line.
    """

    gate: str = "stall"
    after_events: int = 0


class Delivery(Struct, frozen=True):
    """How the bytes of a reply travel.

    Attributes:
        hold: Where to pause, if anywhere.
        cut_after: Send no more after this many stream events, or after half of a reply that is not
            streamed; None delivers all.
        cut: How it ends: ``break`` closes the connection inside the response, ``end`` finishes it properly,
            which only the missing last events betray.
        packet_bytes: Write the stream in pieces of this size, which splits events, lines and UTF-8
            characters; None writes one event at a time.
        pace_ms: Milliseconds between two stream events.
    """

    hold: Hold | None = None
    cut_after: int | None = None
    cut: Literal["break", "end"] = "break"
    packet_bytes: int | None = None
    pace_ms: float = 0


#: Why a reply ends early, independent of the vendor.
Stop = Literal["refusal", "max_tokens"]


class Reply(Struct, frozen=True):
    """A successful answer of the model.

    Attributes:
        blocks: Content in order.
        stop: Why the model stopped, if not at the end of its text or for a tool call.
        usage: Token numbers reported.
        headers: Extra response headers.
        delivery: How it is sent.
    """

    blocks: tuple[Block, ...]
    stop: Stop | None = None
    usage: Usage = Usage()
    headers: Mapping[str, str] = field(default_factory=dict)
    delivery: Delivery = Delivery()


#: The cause, independent of the vendor: an API answers with its vendor's status, error type and text.
Cause = Literal[
    "unauthorized",  # the key is wrong
    "forbidden",  # the key is right but not allowed to do this
    "rate_limited",  # too fast; passes soon
    "quota",  # what a plan includes is used up; passes when its window ends
    "no_credit",  # no money left
    "overflow",  # the prompt is longer than the context
    "no_model",  # the requested model does not exist
    "malformed",  # the request is rejected as malformed
    "overloaded",  # the vendor has no room at the moment
    "server_error",
]


class Failure(Struct, frozen=True):
    """An error answer of the API.

    Attributes:
        cause: What is wrong.
        message: Text instead of the vendor's usual one; placeholders are filled. Empty leaves the usual one.
        retry_after_s: Retry delay, in the vendor's form; None for none.
        headers: Extra response headers.
        after: Stream this reply first and report the error inside the stream, status 200.
    """

    cause: Cause
    message: str = ""
    retry_after_s: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    after: Reply | None = None


Answer = Reply | Failure


class Step(Struct, frozen=True):
    """One model turn of a scenario.

    Attributes:
        attempts: Answers to the first, second… request for this very step; the last one repeats. A
            failure before a reply is how "429 once, then well" is written.
    """

    attempts: tuple[Answer, ...]


class Scenario(Struct, frozen=True):
    """A script, chosen by the word ``MOCK_<NAME>`` in the last user prompt.

    Attributes:
        name: Upper-case word, without ``MOCK_``.
        summary: One line for people.
        steps: Step N answers once N rounds of tool results followed the prompt; the last repeats.
        arguments: ``name=value`` words the prompt may carry, with what they mean.
    """

    name: str
    summary: str
    steps: tuple[Step, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)


def say(text: str, *, chunk: int = 12) -> Step:
    """Return a step that answers with one text."""
    return Step((Reply((Text(text, chunk),)),))


def call(*tools: Tool, saying: str = "") -> Step:
    """Return a step that calls tools, in one turn if several, after an optional text."""
    blocks: tuple[Block, ...] = (Text(saying), *tools) if saying else tools
    return Step((Reply(blocks),))
