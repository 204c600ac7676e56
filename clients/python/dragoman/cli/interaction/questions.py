"""Input requests of agents, answered at the terminal.

`parse_answer` interprets a typed line; it is pure. `Prompter` shows one request at a time, reads the line, and drops
a request that another client answered or that expired.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable

import click
from dragoman.cli.display.text import one_line
from dragoman.cli.interaction.terminal import EndOfInputError, LineReader
from dragoman.cli.interaction.typed import TypedInputs
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_ALLOWING = frozenset({pb.INPUT_OPTION_KIND_ALLOW_ONCE, pb.INPUT_OPTION_KIND_ALLOW_ALWAYS})


class InvalidAnswer(Struct, frozen=True):
    """The line is not an answer."""

    expected: str
    """What would be an answer, or why this is none."""


class EditInput(Struct, frozen=True):
    """The user wants to edit the tool's input first."""


def parse_answer(
    request: pb.InputRequest, line: str, updated_input_json: str = ""
) -> pb.InputAnswer | InvalidAnswer | EditInput:
    """Return the answer that ``line`` gives.

    Args:
        request: the input request.
        line: the typed line: the number or ID of an option (several with commas if the request allows that),
            optionally followed by a message to the agent; or text; or JSON.
        updated_input_json: the tool's input, if it was edited.
    """
    line = line.strip()
    if request.kind == pb.INPUT_KIND_SCHEMA:
        return _json_answer(line)
    if not request.options:
        return pb.InputAnswer(text=line) if line else InvalidAnswer("type your answer")
    if line == "e" and request.editable_input_json:
        return EditInput()
    return _choice(request, line, updated_input_json)


def _json_answer(line: str) -> pb.InputAnswer | InvalidAnswer:
    try:
        json.loads(line)
    except ValueError as error:
        return InvalidAnswer(f"not valid JSON: {error}")
    return pb.InputAnswer(value_json=line)


def _choice(request: pb.InputRequest, line: str, updated_input_json: str) -> pb.InputAnswer | InvalidAnswer:
    chosen, _, message = line.partition(" ")
    names = chosen.split(",") if request.multiple else [chosen]
    options: list[pb.InputOption] = []
    for name in names:
        option = _option(request, name.strip())
        if option is None:
            return InvalidAnswer(choices(request))
        options.append(option)
    answer = pb.InputAnswer(option_ids=[option.id for option in options], message=message.strip())
    if all(option.kind in _ALLOWING for option in options):
        answer.updated_input_json = updated_input_json
    return answer


def _option(request: pb.InputRequest, name: str) -> pb.InputOption | None:
    for number, option in enumerate(request.options, 1):
        if name in {option.id, str(number)}:
            return option
    return None


def choices(request: pb.InputRequest) -> str:
    """Describe the possible answers."""
    if request.kind == pb.INPUT_KIND_SCHEMA:
        return (
            f"a JSON value that matches {one_line(request.schema_json, 600)}"
            if request.schema_json
            else "a JSON value"
        )
    if not request.options:
        return "your answer"
    numbers = f"1-{len(request.options)}" if len(request.options) > 1 else "1"
    several = ", several with commas" if request.multiple else ""
    edit = ", e to edit the input first" if request.editable_input_json else ""
    return f"{numbers}{several}{edit}"


Send = Callable[[str, pb.InputAnswer], Awaitable[str]]
"""Sends an answer; returns why it was rejected, or an empty text."""


class Prompter:
    """Asks one question after another.

    Args:
        reader: reads the typed lines.
        send: sends an answer to the request with an ID.
        typed: reads what is typed while no question is open; ``None`` if nothing does.
    """

    def __init__(self, reader: LineReader, send: Send, typed: TypedInputs | None = None) -> None:
        self._reader = reader
        self._send = send
        self._typed = typed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self.is_editing = False
        """Whether an editor is open, which then handles Ctrl-C."""

    def ask(self, request: pb.InputRequest) -> None:
        """Ask when the questions before it are done."""
        if request.id not in self._tasks:
            if (typed := self._typed) is not None:
                typed.hold()  # first: it lets go of the terminal before the question looks at it
            task = self._tasks[request.id] = asyncio.create_task(self._ask(request))
            if typed is not None:
                task.add_done_callback(lambda _: typed.release())

    def drop(self, request_id: str) -> None:
        """Drop a question that is no longer open."""
        task = self._tasks.pop(request_id, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Drop all questions."""
        tasks = list(self._tasks.values())
        for request_id in list(self._tasks):
            self.drop(request_id)
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _ask(self, request: pb.InputRequest) -> None:
        async with self._one_at_a_time:
            # Text that was typed for a question that was dropped must not answer this one.
            self._reader.discard()
            try:
                await self._ask_until_answered(request)
            except EndOfInputError:
                _print("\nnot answered; the request's default applies when it expires\n")

    async def _ask_until_answered(self, request: pb.InputRequest) -> None:
        edited = ""
        note = choices(request)
        while note:
            _print(f"{one_line(request.title)} [{note}] > ")
            answer = parse_answer(request, await self._reader.line(), edited)
            if isinstance(answer, EditInput):
                edited, note = await self._edit(edited or request.editable_input_json, request)
            elif isinstance(answer, InvalidAnswer):
                note = answer.expected
            else:
                note = await self._send(request.id, answer)

    async def _edit(self, text: str, request: pb.InputRequest) -> tuple[str, str]:
        """Return the edited input and the text of the next prompt."""
        before = text
        if os.environ.get("VISUAL") or os.environ.get("EDITOR"):
            self.is_editing = True
            try:
                edited = await asyncio.to_thread(_in_editor, _pretty(text))
                text = edited or before
            except click.ClickException as error:
                return before, error.format_message()
            finally:
                self.is_editing = False
        else:
            _print("the input as one line of JSON > ")
            text = await self._reader.line()
        try:
            json.loads(text)
        except ValueError as error:
            return before, f"not valid JSON: {error}; {choices(request)}"
        return text, f"input changed; {choices(request)}"


def _in_editor(text: str) -> str | None:
    return click.edit(text, extension=".json")


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    except ValueError:
        return text


def _print(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
