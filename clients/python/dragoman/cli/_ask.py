"""Questions of agents, put to whoever sits at the terminal.

`parse_answer` is what a typed line means; it is pure. `Asker` shows one question at a time, reads the line, and
gives up a question that somebody else answered or that expired.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import click
from dragoman.cli._terminal import EndOfInputError, LineReader
from dragoman.cli._text import one_line
from dragoman.v1 import event_pb2 as pb

_ALLOWING = frozenset({pb.INPUT_OPTION_KIND_ALLOW_ONCE, pb.INPUT_OPTION_KIND_ALLOW_ALWAYS})


@dataclass(frozen=True, slots=True)
class Again:
    """The line is no answer; ``why`` says what would be one."""

    why: str


@dataclass(frozen=True, slots=True)
class Edit:
    """The tool's input is to be edited first."""


def parse_answer(request: pb.InputRequest, line: str, updated_input_json: str = "") -> pb.InputAnswer | Again | Edit:
    """Return what ``line`` answers.

    Args:
        request: the question.
        line: what was typed: a number or an option's id, several of them with commas where several may be
            chosen, words to the agent after them; text; or JSON.
        updated_input_json: the tool's input, if it was edited before.
    """
    line = line.strip()
    if request.kind == pb.INPUT_KIND_SCHEMA:
        return _json_answer(line)
    if not request.options:
        return pb.InputAnswer(text=line) if line else Again("type your answer")
    if line == "e" and request.editable_input_json:
        return Edit()
    return _choice(request, line, updated_input_json)


def _json_answer(line: str) -> pb.InputAnswer | Again:
    try:
        json.loads(line)
    except ValueError as error:
        return Again(f"this is not JSON: {error}")
    return pb.InputAnswer(value_json=line)


def _choice(request: pb.InputRequest, line: str, updated_input_json: str) -> pb.InputAnswer | Again:
    chosen, _, words = line.partition(" ")
    names = chosen.split(",") if request.multiple else [chosen]
    options: list[pb.InputOption] = []
    for name in names:
        found = _option(request, name.strip())
        if found is None:
            return Again(choices(request))
        options.append(found)
    answer = pb.InputAnswer(option_ids=[option.id for option in options], message=words.strip())
    if all(option.kind in _ALLOWING for option in options):
        answer.updated_input_json = updated_input_json
    return answer


def _option(request: pb.InputRequest, name: str) -> pb.InputOption | None:
    for number, option in enumerate(request.options, 1):
        if name in {option.id, str(number)}:
            return option
    return None


def choices(request: pb.InputRequest) -> str:
    """Return what can be typed, for people."""
    if request.kind == pb.INPUT_KIND_SCHEMA:
        return (
            f"a JSON value that fits {one_line(request.schema_json, 600)}" if request.schema_json else "a JSON value"
        )
    if not request.options:
        return "your answer"
    numbers = f"1-{len(request.options)}" if len(request.options) > 1 else "1"
    several = ", several with commas" if request.multiple else ""
    edit = ", e to edit the input first" if request.editable_input_json else ""
    return f"{numbers}{several}{edit}"


Send = Callable[[str, pb.InputAnswer], Awaitable[str]]
"""Sends an answer; returns why it was not taken, or nothing."""


class Asker:
    """Asks one question after the other.

    Args:
        reader: where the answers are typed.
        send: sends an answer by the request's id.
    """

    def __init__(self, reader: LineReader, send: Send) -> None:
        self._reader = reader
        self._send = send
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self.is_editing = False
        """Whether an editor has the terminal, and with it Ctrl-C."""

    def ask(self, request: pb.InputRequest) -> None:
        """Ask, in its turn."""
        if request.id not in self._tasks:
            self._tasks[request.id] = asyncio.ensure_future(self._ask(request))

    def drop(self, request_id: str) -> None:
        """Forget a question that is no longer open."""
        task = self._tasks.pop(request_id, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Forget all questions."""
        tasks = list(self._tasks.values())
        for request_id in list(self._tasks):
            self.drop(request_id)
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _ask(self, request: pb.InputRequest) -> None:
        async with self._one_at_a_time:
            # What was typed for a question that is gone must not answer this one.
            self._reader.forget()
            try:
                await self._ask_until_answered(request)
            except EndOfInputError:
                _tell("\nnot answered; the request's default is taken when it expires\n")

    async def _ask_until_answered(self, request: pb.InputRequest) -> None:
        edited = ""
        note = choices(request)
        while note:
            _tell(f"{one_line(request.title)} [{note}] > ")
            answer = parse_answer(request, await self._reader.line(), edited)
            if isinstance(answer, Edit):
                edited, note = await self._edit(edited or request.editable_input_json, request)
            elif isinstance(answer, Again):
                note = answer.why
            else:
                note = await self._send(request.id, answer)

    async def _edit(self, text: str, request: pb.InputRequest) -> tuple[str, str]:
        """Return the edited input and what to say next."""
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
            _tell("the input as one line of JSON > ")
            text = await self._reader.line()
        try:
            json.loads(text)
        except ValueError as error:
            return before, f"this is not JSON: {error}; {choices(request)}"
        return text, f"input changed; {choices(request)}"


def _in_editor(text: str) -> str | None:
    return click.edit(text, extension=".json")


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    except ValueError:
        return text


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
