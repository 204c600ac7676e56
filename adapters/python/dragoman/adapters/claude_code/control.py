"""The control channel: Claude Code sends requests on standard output and reads the answers on standard input. Pure.

Everything that Claude Code would ask a person comes here, and the run's policy or its caller decides. What is
allowed "always" holds for this session only: where Claude Code suggests to write a settings file, which would
change the workspace, the suggestion is bent to the session.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dragoman.adapters.claude_code.tools import subject, tool_title
from dragoman.sdk import Answer, Ask
from dragoman.sdk.fields import (
    Fields,
    JsonValue,
    as_string_list,
    compact,
    inner,
    objects,
    parse_json_object,
    text,
)
from dragoman.sdk.parsing import UserQuestion, put_questions, read_answers
from dragoman.sdk.run import AttachedFile
from dragoman.v1 import event_pb2 as pb

ALLOW_ONCE: Final = "allow_once"
REJECT_ONCE: Final = "reject_once"
_ALWAYS: Final = "allow_always"
_DENIED: Final = "The user does not allow this."
_UNANSWERED: Final = "No one is there to answer. Decide by yourself, or end with the question as your answer."
_BROADER_MODES: Final = frozenset({"bypassPermissions", "auto"})
"""Modes that Claude Code may suggest and that no answer to one question turns on."""

OnAnswer = Callable[[Answer], None]
"""Is called with the answer when it is encoded."""


def user_message(prompt: str, uuid: str = "", *, images: Sequence[AttachedFile] = ()) -> bytes:
    """Return the line that gives the agent a prompt, or during a turn an input.

    Args:
        prompt: the text.
        uuid: names it in the frames about what becomes of it. Claude Code ignores one that the session has had.
        images: go before the text.
    """
    named: dict[str, JsonValue] = {"uuid": uuid} if uuid else {}
    blocks: list[JsonValue] = [
        {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.base64}}
        for image in images
    ]
    content: JsonValue = [*blocks, {"type": "text", "text": prompt}] if blocks else prompt
    return _line({"type": "user", **named, "message": {"role": "user", "content": content}})


def interrupt(request_id: str) -> bytes:
    """Return the line that asks the agent to stop and to report how far it came."""
    return request(request_id, {"subtype": "interrupt"})


def request(request_id: str, asked: Mapping[str, str | bool]) -> bytes:
    """Return the line that asks the agent for something."""
    return _line({"type": "control_request", "request_id": request_id, "request": asked})


def refusal(request_id: str, subtype: str) -> bytes:
    """Return the answer to an unknown request; without one the agent would wait."""
    return _response(request_id, {"subtype": "error", "error": f"{subtype or 'this request'} is not supported"})


def permission(request_id: str, request: Fields, cwd: str, on_answer: OnAnswer) -> Ask:
    """Return the question whether a tool may be used."""
    name, tool_input, call_id = text(request, "tool_name"), inner(request, "input"), text(request, "tool_use_id")
    reason = text(request, "decision_reason") or text(request, "blocked_path")
    asked = pb.InputRequest(
        id=request_id,
        kind=pb.INPUT_KIND_PERMISSION,
        title=tool_title(name, tool_input, cwd),
        description=_description(request),
        subject=subject(call_id, name, tool_input, reason),
        editable_input_json=compact(tool_input),
    )
    asked.options.add(id=ALLOW_ONCE, kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow once")
    for index, suggestion in enumerate(_suggestions(request)):
        asked.options.add(
            id=_ALWAYS if not index else f"{_ALWAYS}_{index + 1}",
            kind=pb.INPUT_OPTION_KIND_ALLOW_ALWAYS,
            label=_label(suggestion),
            native_json=compact(suggestion),
        )
    asked.options.add(id=REJECT_ONCE, kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Reject")

    def encode(answer: Answer) -> bytes:
        on_answer(answer)
        return _success(request_id, _permission_answer(answer, tool_input))

    return Ask(asked, encode)


def question(request_id: str, request: Fields, on_answer: OnAnswer) -> Ask | None:
    """Return what AskUserQuestion asks: a choice, or a form if it asks several things at once.

    None if it asks nothing that can be answered.
    """
    tool_input = inner(request, "input")
    questions = _questions(tool_input)
    if not questions or len({question.key for question in questions}) != len(questions):
        return None
    asked = pb.InputRequest(id=request_id, subject=subject(text(request, "tool_use_id"), "AskUserQuestion", {}, ""))
    put_questions(asked, questions)

    def encode(answer: Answer) -> bytes:
        on_answer(answer)
        answers = {key: ", ".join(words) for key, words in read_answers(asked, questions, answer).items() if words}
        if not answers:
            return _success(request_id, {"behavior": "deny", "message": answer.message or _UNANSWERED})
        updated = {**tool_input, "answers": answers}
        return _success(request_id, {"behavior": "allow", "updatedInput": updated})

    return Ask(asked, encode)


def _questions(tool_input: Fields) -> list[UserQuestion]:
    """Return what is asked. The answers go by the questions' words."""
    asked = ((text(item, "question"), item) for item in objects(tool_input, "questions"))
    return [
        UserQuestion(words, words, objects(item, "options"), is_multiple=item.get("multiSelect") is True)
        for words, item in asked
        if words
    ]


def _permission_answer(answer: Answer, tool_input: Fields) -> dict[str, JsonValue]:
    if not answer.allowed:
        return {"behavior": "deny", "message": answer.message or _DENIED}
    response: dict[str, JsonValue] = {"behavior": "allow"}
    if answer.updated_input_json:
        response["updatedInput"] = parse_json_object(answer.updated_input_json.encode()) or dict(tool_input)
    suggestion = parse_json_object(answer.option.native_json.encode()) if answer.option is not None else None
    if suggestion:
        response["updatedPermissions"] = [suggestion]
    return response


def _suggestions(request: Fields) -> list[Fields]:
    return [
        {**item, "destination": "session"}
        for item in objects(request, "permission_suggestions")
        if text(item, "behavior") in {"", "allow"} and text(item, "mode") not in _BROADER_MODES
    ]


def _label(suggestion: Fields) -> str:
    kind = text(suggestion, "type")
    if kind == "addRules":
        rules = [
            f"{text(rule, 'toolName')}({text(rule, 'ruleContent')})"
            if text(rule, "ruleContent")
            else text(rule, "toolName")
            for rule in objects(suggestion, "rules")
        ]
        return f"Allow {', '.join(rules)} for this session"
    if kind == "addDirectories":
        return f"Allow work in {', '.join(as_string_list(suggestion.get('directories')))} for this session"
    if kind == "setMode":
        return f"Switch to mode {text(suggestion, 'mode')} for this session"
    return f"Apply {kind or 'the suggestion'} for this session"


def _description(request: Fields) -> str:
    lines = [text(request, "decision_reason"), text(request, "description")]
    if text(request, "blocked_path"):
        lines.append(f"It is about {text(request, 'blocked_path')}.")
    return "\n".join(line for line in lines if line)


def _success(request_id: str, response: Mapping[str, object]) -> bytes:
    return _response(request_id, {"subtype": "success", "response": response})


def _response(request_id: str, response: Mapping[str, object]) -> bytes:
    return _line({"type": "control_response", "response": {**response, "request_id": request_id}})


def _line(frame: Mapping[str, object]) -> bytes:
    # ASCII only: no character of a prompt can end the line, or be half of a pair.
    return json.dumps(frame).encode() + b"\n"
