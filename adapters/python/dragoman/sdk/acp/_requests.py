"""What the agent asks of its client: permissions and forms. Pure: questions come out.

Files and terminals of an editor are not offered: there is none, and agents use their own then.
"""

import json
from collections.abc import Callable
from typing import Final

from dragoman.sdk._encoding.fields import Fields, inner, objects, text
from dragoman.sdk._encoding.json_text import compact, parse_json_object
from dragoman.sdk._encoding.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Peer, Request
from dragoman.sdk._output.parser import Answer, Ask, Output, Withdraw, Write
from dragoman.sdk.acp._ending import CANCELLED
from dragoman.sdk.acp._session import AcpOptions, Conversation
from dragoman.sdk.acp._tools import ToolCalls, subject
from dragoman.v1 import event_pb2 as pb

_OPTION_KINDS: Final = {
    "allow_once": pb.INPUT_OPTION_KIND_ALLOW_ONCE,
    "allow_always": pb.INPUT_OPTION_KIND_ALLOW_ALWAYS,
    "reject_once": pb.INPUT_OPTION_KIND_REJECT_ONCE,
    "reject_always": pb.INPUT_OPTION_KIND_REJECT_ALWAYS,
}
_CANCELLED: Final = {"outcome": {"outcome": "cancelled"}}


class Requests:
    """The agent's requests of one attempt."""

    def __init__(self, peer: Peer[str], options: AcpOptions, conversation: Conversation, calls: ToolCalls) -> None:
        self._peer = peer
        self._options = options
        self._conversation = conversation
        self._calls = calls
        self._open: dict[str, Request] = {}
        """Requests that wait for an answer, by the ID of the question."""
        self._handlers: dict[str, Callable[[Request], Output]] = {"session/request_permission": self._permission}
        if options.elicitation:
            self._handlers["elicitation/create"] = self._elicitation

    def take(self, request: Request) -> list[Output]:
        """Handle a request."""
        if request.method in self._options.acknowledged:
            return [Write(self._peer.result(request.id, {}))]
        handler = self._handlers.get(request.method)
        if handler is None:
            return [self._error(request, METHOD_NOT_FOUND, f"{request.method} is not offered")]
        return [handler(request)]

    def withdraw(self, params: Fields) -> list[Output]:
        """Handle ``$/cancel_request``: the agent no longer wants its answer."""
        about = params.get("requestId")
        for question_id, request in list(self._open.items()):
            if request.id == about and type(request.id) is type(about):
                del self._open[question_id]
                return [Withdraw(question_id), self._error(request, CANCELLED, "cancelled")]
        return []

    def give_up(self) -> list[Output]:
        """Answer what is open: the turn is cancelled, and agents wait for it."""
        outputs: list[Output] = []
        for request in self._open.values():
            outcome: object = _CANCELLED if request.method == "session/request_permission" else {"action": "cancel"}
            outputs.append(Write(self._peer.result(request.id, outcome)))
        self._open.clear()
        return outputs

    def _error(self, request: Request, code: int, message: str) -> Write:
        return Write(self._peer.error(request.id, code, message))

    def _question_id(self, request: Request) -> str:
        """Return an id for a question; an agent counts anew in each attempt, and 1 is not "1"."""
        question_id = f"{self._conversation.tag}-{json.dumps(request.id)}"
        self._open[question_id] = request
        return question_id

    # Questions.

    def _permission(self, request: Request) -> Output:
        asked = inner(request.params, "toolCall")
        call = self._calls.asked_about(asked)
        options = _options(request.params)
        question_id = self._question_id(request)
        title = text(asked, "title") or (call.title if call is not None else "") or "The agent asks for permission."
        question = pb.InputRequest(id=question_id, kind=pb.INPUT_KIND_PERMISSION, title=title, options=options)
        if call is not None:
            question.subject.CopyFrom(subject(call, asked, self._conversation.cwd))

        def encode(answer: Answer) -> bytes:
            self._open.pop(question_id, None)
            if not answer.allowed and call is not None:
                self._calls.denied.add(call.id)
            if answer.option is None:
                return self._peer.result(request.id, _CANCELLED)
            outcome = {"outcome": "selected", "optionId": answer.option.id}
            return self._peer.result(request.id, {"outcome": outcome})

        return Ask(question, encode)

    def _elicitation(self, request: Request) -> Output:
        if text(request.params, "mode") not in {"", "form"}:
            return self._error(request, INVALID_PARAMS, "only forms are offered")
        question_id = self._question_id(request)
        question = pb.InputRequest(
            id=question_id,
            kind=pb.INPUT_KIND_SCHEMA,
            title=text(request.params, "message") or "The agent asks.",
            schema_json=compact(inner(request.params, "requestedSchema") or {"type": "object"}),
        )
        question.subject.tool_call_id = text(request.params, "toolCallId")

        def encode(answer: Answer) -> bytes:
            self._open.pop(question_id, None)
            if not answer.allowed:
                return self._peer.result(request.id, {"action": "decline"})
            content = parse_json_object(answer.value_json.encode()) or {}
            return self._peer.result(request.id, {"action": "accept", "content": content})

        return Ask(question, encode)


def _options(params: Fields) -> list[pb.InputOption]:
    """Return the agent's options, each id once."""
    options: dict[str, pb.InputOption] = {}
    for item in objects(params, "options"):
        option_id = text(item, "optionId")
        if option_id and option_id not in options:
            kind = _OPTION_KINDS.get(text(item, "kind"), pb.INPUT_OPTION_KIND_UNSPECIFIED)
            label = text(item, "name") or option_id
            options[option_id] = pb.InputOption(id=option_id, kind=kind, label=label, native_json=compact(item))
    return list(options.values())
