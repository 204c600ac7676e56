"""Styled text as data, and its form for a terminal."""

import enum
import os
from collections.abc import Iterable
from typing import NamedTuple, TextIO


class Style(enum.Enum):
    """How a piece of text looks; the values are SGR codes."""

    PLAIN = ""
    SYSTEM = "34"
    """Information from the adapter, the router or the agent's runtime: blue."""
    ASSISTANT = "32"
    """The agent's answer: green."""
    TOOL = "33"
    """Tools: yellow."""
    FAINT = "90"
    """Thinking, and with ``--debug`` unrecognized lines: grey."""
    ERROR = "31"
    """Failures: red."""
    STRONG = "1"
    """What the user has to act on: bold."""


class Segment(NamedTuple):
    """A piece of text in one style. The text has no control characters."""

    text: str
    style: Style = Style.PLAIN


def plain(segments: Iterable[Segment]) -> str:
    """Return the text without styles."""
    return "".join(segment.text for segment in segments)


def coloured(segments: Iterable[Segment]) -> str:
    """Return the text with colours for a terminal."""
    return "".join(
        f"\x1b[{segment.style.value}m{segment.text}\x1b[0m" if segment.style.value and segment.text else segment.text
        for segment in segments
    )


def wants_colour(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal and colours are not disabled."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()
