"""What an agent's model asks its user: put as a choice or a form, and the answers read. Pure."""

from collections.abc import Sequence

from dragoman.sdk._encoding.fields import Fields, text
from dragoman.sdk._encoding.json_text import JsonValue, compact, parse_json_object
from dragoman.sdk._output.parser import Answer
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct


class UserQuestion(Struct, frozen=True):
    """One question."""

    key: str
    """What its answer goes by."""
    words: str
    options: Sequence[Fields] = ()
    """Answers to choose from, each with its ``label`` and perhaps a ``description``; others can be given too."""
    is_multiple: bool = False
    """Whether several may be chosen."""


def put_questions(request: pb.InputRequest, questions: Sequence[UserQuestion]) -> None:
    """Make a request a choice of what one question offers; a form if there are several, or nothing is offered."""
    request.title = " / ".join(question.words for question in questions)
    if len(questions) == 1 and questions[0].options:
        request.kind = pb.INPUT_KIND_CHOICE
        request.multiple = questions[0].is_multiple
        for number, option in enumerate(questions[0].options, 1):
            described = text(option, "description")
            request.options.add(id=f"option_{number}", label=text(option, "label"), description=described)
        return
    request.kind = pb.INPUT_KIND_SCHEMA
    properties: dict[str, JsonValue] = {question.key: _property(question) for question in questions}
    names: list[JsonValue] = list(properties)
    request.schema_json = compact(
        {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    )


def _property(question: UserQuestion) -> JsonValue:
    labels: list[JsonValue] = [text(option, "label") for option in question.options]
    # Examples, not an enum: agents take other answers too.
    one: dict[str, JsonValue] = {"type": "string", **({"examples": labels} if labels else {})}
    asked: dict[str, JsonValue] = {"type": "array", "items": one, "minItems": 1} if question.is_multiple else one
    return asked if question.words == question.key else {**asked, "title": question.words}


def read_answers(request: pb.InputRequest, questions: Sequence[UserQuestion], answer: Answer) -> dict[str, list[str]]:
    """Return what was answered, by the questions' keys; empty if nothing was."""
    if request.kind == pb.INPUT_KIND_CHOICE:
        words = [option.label for option in answer.chosen] or [answer.text]
        return {questions[0].key: words} if any(words) else {}
    values = parse_json_object(answer.value_json.encode()) or {}
    return {key: list(map(str, value if isinstance(value, list) else [value])) for key, value in values.items()}
