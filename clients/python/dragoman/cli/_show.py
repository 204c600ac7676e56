"""Printing an answer that comes at once: lines for people, or JSON for programs."""

import sys
from collections.abc import Iterable, Sequence

from dragoman.cli._style import Segment, coloured, plain, wants_colour
from google.protobuf import json_format
from google.protobuf.message import Message


def print_lines(lines: Iterable[Sequence[Segment]]) -> None:
    """Print styled lines on standard output, with colours at a terminal."""
    style = coloured if wants_colour(sys.stdout) else plain
    for line in lines:
        text = style(line) + "\n"
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    sys.stdout.flush()


def print_json_lines(messages: Iterable[Message]) -> None:
    """Print each message as protobuf JSON on a line of its own on standard output."""
    sys.stdout.write("".join(json_format.MessageToJson(message, indent=None) + "\n" for message in messages))
    sys.stdout.flush()


def print_json(message: Message) -> None:
    """Print a message as protobuf JSON on standard output."""
    sys.stdout.write(json_format.MessageToJson(message) + "\n")
    sys.stdout.flush()
