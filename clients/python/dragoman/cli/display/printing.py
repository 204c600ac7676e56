"""Printing a response: lines for people, or JSON for programs."""

import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from dragoman.cli.display.style import Segment, coloured, plain, wants_colour
from google.protobuf.message import Message


def print_lines(lines: Iterable[Sequence[Segment]], *, stream: TextIO | None = None) -> None:
    """Print styled lines, with colours at a terminal.

    Args:
        lines: the lines.
        stream: the stream; standard output if it is None.
    """
    stream = stream or sys.stdout
    style = coloured if wants_colour(stream) else plain
    for line in lines:
        text = style(line) + "\n"
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    stream.flush()


def print_json_lines(messages: Iterable[Message]) -> None:
    """Print each message as protobuf JSON on a line of its own on standard output."""
    from google.protobuf import json_format  # noqa: PLC0415 - for --json alone

    sys.stdout.write("".join(json_format.MessageToJson(message, indent=None) + "\n" for message in messages))
    sys.stdout.flush()


def print_json(message: Message) -> None:
    """Print a message as protobuf JSON on standard output."""
    from google.protobuf import json_format  # noqa: PLC0415 - as above

    sys.stdout.write(json_format.MessageToJson(message) + "\n")
    sys.stdout.flush()


def print_response(response: Message, lines: Iterable[Sequence[Segment]], *, as_json: bool) -> None:
    """Print a response, for programs or for people."""
    print_json(response) if as_json else print_lines(lines)


def print_list(messages: Iterable[Message], lines: Iterable[Sequence[Segment]], *, as_json: bool) -> None:
    """Print what a response lists, for programs or for people."""
    print_json_lines(messages) if as_json else print_lines(lines)
