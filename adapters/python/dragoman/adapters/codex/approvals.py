"""Input requests of Codex: approvals, questions of the model, forms of MCP servers. Pure.

The run's policy or its caller decides. What is allowed "for the session" holds as long as the thread is loaded, which
is this run; nothing is ever written to the user's rules.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

from dragoman.adapters.codex.tools import Calls, changed_paths, script_of, tool_call
from dragoman.sdk import Answer, Ask, Output, Withdraw, Write
from dragoman.sdk.fields import Fields, JsonValue, compact, inner, objects, parse_json_object, text
from dragoman.sdk.jsonrpc import METHOD_NOT_FOUND, Peer, Request
from dragoman.sdk.parsing import UserQuestion, put_questions, read_answers
from dragoman.v1 import event_pb2 as pb

ALLOW_ONCE: Final = "allow_once"
ALLOW_ALWAYS: Final = "allow_always"
REJECT_ONCE: Final = "reject_once"

_OPTIONS: Final = (
    pb.InputOption(id=ALLOW_ONCE, kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow once"),
    pb.InputOption(id=ALLOW_ALWAYS, kind=pb.INPUT_OPTION_KIND_ALLOW_ALWAYS, label="Allow for this run"),
    pb.InputOption(id=REJECT_ONCE, kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Reject"),
)
_DENIED: Final = "Declined; Codex does not give the model the reason."


class Approvals:
    """The questions of one attempt.

    Args:
        peer: makes the answers.
        tag: put before Codex's ids, which begin anew in each attempt.
        lineage: returns the nested agent of a thread; None for the main one.
        calls: the calls that need approval.
    """

    def __init__(
        self, peer: Peer[str], tag: str, lineage: Callable[[Fields], pb.Lineage | None], calls: Calls
    ) -> None:
        self._peer = peer
        self._tag = tag
        self._lineage = lineage
        self._open: dict[str, Request] = {}
        self._calls = calls
        self._makers: dict[str, Callable[[Request, str], Ask]] = {
            "item/commandExecution/requestApproval": self._command,
            "item/fileChange/requestApproval": self._patch,
            "item/permissions/requestApproval": self._more_rights,
            "mcpServer/elicitation/request": self._elicitation,
            "item/tool/requestUserInput": self._user_input,
        }

    def take(self, request: Request) -> Output:
        """Return the input request, or an error for an unknown method: without an answer Codex would wait."""
        make = self._makers.get(request.method)
        if make is None:
            return Write(self._peer.error(request.id, METHOD_NOT_FOUND, f"{request.method} is not supported"))
        question_id = f"{self._tag}-{json.dumps(request.id)}"
        self._open[question_id] = request
        ask = make(request, question_id)
        return Ask(ask.request, ask.encode, self._lineage(request.params))

    def resolved(self, request_id: JsonValue) -> list[Output]:
        """Withdraw a question that Codex no longer asks."""
        question_id = f"{self._tag}-{json.dumps(request_id)}"
        return [Withdraw(question_id)] if self._open.pop(question_id, None) is not None else []

    def _answered(self, request: Request, question_id: str, result: Mapping[str, object]) -> bytes:
        self._open.pop(question_id, None)
        return self._peer.result(request.id, result)

    # Permissions.

    def _permission(
        self,
        request: Request,
        question_id: str,
        title: str,
        subject: pb.InputSubject,
        answer_as: Callable[[Answer, str], Mapping[str, object]],
    ) -> Ask:
        asked = pb.InputRequest(id=question_id, kind=pb.INPUT_KIND_PERMISSION, title=title, options=_OPTIONS)
        asked.description = subject.reason
        asked.subject.CopyFrom(subject)

        def encode(answer: Answer) -> bytes:
            if not answer.allowed:
                self._calls.refusals[subject.tool_call_id] = answer.message or _DENIED
            chosen = answer.option.id if answer.option is not None else ""
            return self._answered(request, question_id, answer_as(answer, chosen))

        return Ask(asked, encode)

    def _command(self, request: Request, question_id: str) -> Ask:
        params = request.params
        script = script_of(text(params, "command"))
        network = inner(params, "networkApprovalContext")
        subject = pb.InputSubject(
            tool_call_id=text(params, "itemId"),
            tool_name="exec_command",
            tool_kind=pb.TOOL_KIND_FETCH if network else pb.TOOL_KIND_EXECUTE,
            command=script,
            host=text(network, "host"),
            reason=text(params, "reason"),
        )
        title = f"Connect to {text(network, 'host')}" if network else script.split("\n", 1)[0][:120]
        return self._permission(request, question_id, title or "Run a command", subject, _decision)

    def _patch(self, request: Request, question_id: str) -> Ask:
        item = self._calls.open.get(text(request.params, "itemId"), {})
        call = tool_call(item, "")
        root = text(request.params, "grantRoot")
        subject = pb.InputSubject(
            tool_call_id=text(request.params, "itemId"),
            tool_name="apply_patch",
            tool_kind=call.kind if call is not None else pb.TOOL_KIND_EDIT,
            paths=[*changed_paths(item), *([root] if root else [])],
            reason=text(request.params, "reason"),
        )
        title = call.title if call is not None else "Change files"
        return self._permission(request, question_id, title, subject, _decision)

    def _more_rights(self, request: Request, question_id: str) -> Ask:
        requested = inner(request.params, "permissions")
        subject = pb.InputSubject(
            tool_call_id=text(request.params, "itemId"),
            tool_name="request_permissions",
            tool_kind=pb.TOOL_KIND_OTHER,
            reason=text(request.params, "reason"),
        )

        def answer_as(answer: Answer, chosen: str) -> Mapping[str, object]:
            scope = "session" if chosen == ALLOW_ALWAYS else "turn"
            granted = {key: value for key, value in requested.items() if value is not None} if answer.allowed else {}
            return {"permissions": granted, "scope": scope}

        title = f"Grant more rights: {compact(requested)}"[:120]
        return self._permission(request, question_id, title, subject, answer_as)

    # Questions.

    def _elicitation(self, request: Request, question_id: str) -> Ask:
        meta = inner(request.params, "_meta")
        if text(meta, "codex_approval_kind"):
            return self._mcp_tool(request, question_id, meta)
        title = text(request.params, "message") or "An MCP server asks."
        asked = pb.InputRequest(id=question_id, kind=pb.INPUT_KIND_SCHEMA, title=title)
        asked.description = text(request.params, "url")
        asked.schema_json = compact(inner(request.params, "requestedSchema") or {"type": "object"})

        def encode(answer: Answer) -> bytes:
            content = parse_json_object(answer.value_json.encode() or b"{}") if answer.allowed else None
            return self._answered(
                request, question_id, _elicited("accept" if content is not None else "decline", content)
            )

        return Ask(asked, encode)

    def _mcp_tool(self, request: Request, question_id: str, meta: Fields) -> Ask:
        server, tool = text(request.params, "serverName"), text(meta, "tool_name")
        name = f"mcp__{server}__{tool}"
        calls = (item for item in self._calls.open.values() if text(item, "type") == "mcpToolCall")
        call = next((item for item in calls if (text(item, "server"), text(item, "tool")) == (server, tool)), {})
        subject = pb.InputSubject(tool_call_id=text(call, "id"), tool_name=name, tool_kind=pb.TOOL_KIND_MCP)

        def answer_as(answer: Answer, chosen: str) -> Mapping[str, object]:
            persist: JsonValue = {"persist": "session"} if chosen == ALLOW_ALWAYS else None
            return _elicited("accept" if answer.allowed else "decline", {} if answer.allowed else None, persist)

        title = text(request.params, "message") or f"{server}: {tool}"
        return self._permission(request, question_id, title, subject, answer_as)

    def _user_input(self, request: Request, question_id: str) -> Ask:
        questions = [
            UserQuestion(text(item, "id"), text(item, "question") or text(item, "header"), objects(item, "options"))
            for item in objects(request.params, "questions")
            if text(item, "id")
        ]
        asked = pb.InputRequest(id=question_id)
        asked.subject.tool_call_id = text(request.params, "itemId")
        asked.subject.tool_name, asked.subject.tool_kind = "request_user_input", pb.TOOL_KIND_ASK_USER
        put_questions(asked, questions)
        asked.title = asked.title or "Codex asks."

        def encode(answer: Answer) -> bytes:
            answers = {key: {"answers": words} for key, words in read_answers(asked, questions, answer).items()}
            return self._answered(request, question_id, {"answers": answers})

        return Ask(asked, encode)


def _decision(answer: Answer, chosen: str) -> Mapping[str, object]:
    if not answer.allowed:
        return {"decision": "decline"}
    return {"decision": "acceptForSession" if chosen == ALLOW_ALWAYS else "accept"}


def _elicited(action: str, content: JsonValue, meta: JsonValue = None) -> Mapping[str, object]:
    return {"action": action, "content": content, "_meta": meta}
