"""What a typed line answers, and one question after the other at a terminal."""

import asyncio
import os
import pty
from collections.abc import Iterator

import pytest
from dragoman.cli.interaction.questions import EditInput, InvalidAnswer, Prompter, choices, parse_answer
from dragoman.cli.interaction.terminal import EndOfInputError, LineReader
from dragoman.v1 import event_pb2 as pb

OPTIONS = [
    pb.InputOption(id="allow", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow"),
    pb.InputOption(id="deny", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Deny"),
]
PERMISSION = pb.InputRequest(
    id="r1", kind=pb.INPUT_KIND_PERMISSION, title="May I?", options=OPTIONS, editable_input_json='{"a": 1}'
)
SEVERAL = pb.InputRequest(id="r2", kind=pb.INPUT_KIND_CHOICE, options=OPTIONS, multiple=True)
FREE = pb.InputRequest(id="r3", kind=pb.INPUT_KIND_TEXT)
SCHEMA = pb.InputRequest(id="r4", kind=pb.INPUT_KIND_SCHEMA, schema_json='{"type": "integer"}')


@pytest.mark.parametrize(
    ("request_", "line", "answer"),
    [
        (PERMISSION, "1", pb.InputAnswer(option_ids=["allow"])),
        (PERMISSION, " deny ", pb.InputAnswer(option_ids=["deny"])),
        (PERMISSION, "2 not that file", pb.InputAnswer(option_ids=["deny"], message="not that file")),
        (PERMISSION, "e", EditInput()),
        (PERMISSION, "", InvalidAnswer("1-2, e to edit the input first")),
        (PERMISSION, "3", InvalidAnswer("1-2, e to edit the input first")),
        (PERMISSION, "0", InvalidAnswer("1-2, e to edit the input first")),
        (PERMISSION, "1,2", InvalidAnswer("1-2, e to edit the input first")),
        (SEVERAL, "1,deny", pb.InputAnswer(option_ids=["allow", "deny"])),
        (SEVERAL, "e", InvalidAnswer("1-2, several with commas")),
        (FREE, "some words", pb.InputAnswer(text="some words")),
        (FREE, "", InvalidAnswer("type your answer")),
        (SCHEMA, "5", pb.InputAnswer(value_json="5")),
    ],
)
def test_a_line_and_what_it_answers(request_: pb.InputRequest, line: str, answer: object) -> None:
    assert parse_answer(request_, line) == answer


def test_invalid_json_is_named_as_such() -> None:
    answer = parse_answer(SCHEMA, "{")
    assert isinstance(answer, InvalidAnswer)
    assert answer.expected.startswith("not valid JSON: ")
    assert choices(SCHEMA) == 'a JSON value that matches {"type": "integer"}'


def test_an_edited_input_goes_with_what_allows_it_only() -> None:
    assert parse_answer(PERMISSION, "1", "{}") == pb.InputAnswer(option_ids=["allow"], updated_input_json="{}")
    assert parse_answer(PERMISSION, "2", "{}") == pb.InputAnswer(option_ids=["deny"])


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: where a person types, and what the program reads."""
    person, program = pty.openpty()
    yield person, program
    os.close(person)
    os.close(program)


class Sent:
    """Takes answers, and may refuse the first ones."""

    def __init__(self, *refusals: str) -> None:
        self.refusals = list(refusals)
        self.answers: asyncio.Queue[tuple[str, pb.InputAnswer]] = asyncio.Queue()

    async def __call__(self, request_id: str, answer: pb.InputAnswer) -> str:
        await self.answers.put((request_id, answer))
        return self.refusals.pop(0) if self.refusals else ""


class Prompted(LineReader):
    """A reader that signals when it waits for a line, so that a test does not type too early."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.waits = asyncio.Semaphore(0)

    async def line(self, *, in_background: bool = True) -> str:
        self.waits.release()
        return await super().line(in_background=in_background)


async def test_questions_come_one_after_the_other(terminal: tuple[int, int]) -> None:
    person, program = terminal
    reader, sent = Prompted(program), Sent()
    asker = Prompter(reader, sent)
    asker.ask(PERMISSION)
    asker.ask(FREE)
    await reader.waits.acquire()
    os.write(person, b"what?\n")
    await reader.waits.acquire()
    os.write(person, b"1\n")
    assert await sent.answers.get() == ("r1", pb.InputAnswer(option_ids=["allow"]))
    await reader.waits.acquire()
    os.write(person, "wörter\n".encode())
    assert await sent.answers.get() == ("r3", pb.InputAnswer(text="wörter"))
    await asker.close()


async def test_a_refused_answer_is_asked_for_again(
    terminal: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    person, program = terminal
    reader, sent = Prompted(program), Sent("7 is too many")
    asker = Prompter(reader, sent)
    asker.ask(SCHEMA)
    for line in (b"7\n", b"5\n"):
        await reader.waits.acquire()
        os.write(person, line)
        await sent.answers.get()
    await asker.close()
    assert "[7 is too many] > " in capsys.readouterr().err


async def test_a_question_that_is_gone_is_not_answered_nor_is_the_next_one_by_its_line(
    terminal: tuple[int, int],
) -> None:
    person, program = terminal
    reader, sent = Prompted(program), Sent()
    asker = Prompter(reader, sent)
    asker.ask(PERMISSION)
    await reader.waits.acquire()
    asker.drop("r1")
    os.write(person, b"1\n")
    asker.ask(SEVERAL)
    await reader.waits.acquire()
    os.write(person, b"2\n")
    assert await sent.answers.get() == ("r2", pb.InputAnswer(option_ids=["deny"]))
    await asker.close()
    assert sent.answers.empty()


async def test_the_input_is_edited_on_a_line_without_an_editor(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    person, program = terminal
    reader, sent = Prompted(program), Sent()
    asker = Prompter(reader, sent)
    asker.ask(PERMISSION)
    for line in (b"e\n", b"{broken\n", b"e\n", b'{"a": 2}\n', b"1\n"):
        await reader.waits.acquire()
        os.write(person, line)
    expected = pb.InputAnswer(option_ids=["allow"], updated_input_json='{"a": 2}')
    assert await sent.answers.get() == ("r1", expected)
    await asker.close()


async def test_the_input_is_edited_with_the_users_editor(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "sed -i s/1/3/")
    person, program = terminal
    reader, sent = Prompted(program), Sent()
    asker = Prompter(reader, sent)
    asker.ask(PERMISSION)
    for line in (b"e\n", b"1\n"):
        await reader.waits.acquire()
        os.write(person, line)
    _id, answer = await sent.answers.get()
    assert answer.updated_input_json.split() == ["{", '"a":', "3", "}"]
    await asker.close()


async def test_the_end_of_input_answers_nothing(terminal: tuple[int, int]) -> None:
    person, program = terminal
    reader, sent = Prompted(program), Sent()
    asker = Prompter(reader, sent)
    asker.ask(PERMISSION)
    await reader.waits.acquire()
    os.write(person, b"\x04")  # Ctrl-D
    await asker.close()
    assert sent.answers.empty()


async def test_lines_are_read_as_they_are_typed() -> None:
    ours, theirs = os.pipe()
    reader = LineReader(ours)
    os.write(theirs, b"one\ntw")
    assert await reader.line() == "one"
    os.write(theirs, b"o\n\xff\n")
    assert await reader.line() == "two"
    assert await reader.line() == "\ufffd"
    os.close(theirs)
    with pytest.raises(EndOfInputError):
        await reader.line()
    os.close(ours)
