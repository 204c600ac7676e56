"""Styled text as data, and its form for a terminal."""

import enum
import os
from collections.abc import Iterable
from typing import NamedTuple, TextIO


class Style(enum.Enum):
    """How a piece of text looks; the values are SGR codes."""

    PLAIN = ""
    SYSTEM = "34"
    """What the adapter, the router or the agent's runtime says: blue."""
    ASSISTANT = "32"
    """The agent's answer: green."""
    TOOL = "33"
    """Tools: yellow."""
    FAINT = "90"
    """Thinking, and with ``--debug`` what nobody recognised: grey."""
    ERROR = "31"
    """What went wrong: red."""
    STRONG = "1"
    """What somebody has to act on: bold."""


class Segment(NamedTuple):
    """A piece of text in one style. The text is neutral: nothing in it steers a terminal."""

    text: str
    style: Style = Style.PLAIN


def plain(segments: Iterable[Segment]) -> str:
    """Return the text alone."""
    return "".join(segment.text for segment in segments)


def coloured(segments: Iterable[Segment]) -> str:
    """Return the text with colours for a terminal."""
    return "".join(
        f"\x1b[{segment.style.value}m{segment.text}\x1b[0m" if segment.style.value and segment.text else segment.text
        for segment in segments
    )


def wants_colour(stream: TextIO) -> bool:
    """Tell whether ``stream`` is a terminal whose user has not asked for plain text."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()
