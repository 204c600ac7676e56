"""Input requests: of the adapter's plugin before a tool changes anything, and of OpenClaw's own policy. Pure."""

from collections.abc import Iterable

from dragoman.adapters.openclaw import plan
from dragoman.adapters.openclaw.tools import Calls, subject, title
from dragoman.sdk import Answer, Ask, Job, Output, Withdraw, Write
from dragoman.sdk.fields import Fields, JsonValue, compact, inner, parse_json_object, text
from dragoman.v1 import event_pb2 as pb


class Questions:
    """The questions of one attempt.

    Args:
        job: the attempt.
        calls: learns what was denied, and what was changed.
    """

    def __init__(self, job: Job, calls: Calls) -> None:
        self._job = job
        self._calls = calls
        self._cwd = job.settings.cwd

    def fetched(self, frame: Fields) -> Iterable[Output]:
        """Handle a question of the plugin, and fetch the next one."""
        asked = inner(frame, "payload")
        question_id, call_id = text(asked, "id"), text(asked, "call")
        if frame.get("ok") is not True or not question_id:
            return ()
        name, tool_input = text(asked, "tool"), inner(asked, "params")
        request = _permission(question_id, name, tool_input, subject(call_id, name, tool_input, self._cwd))
        request.editable_input_json = compact(tool_input)

        def encode(answer: Answer) -> bytes:
            params: dict[str, JsonValue] = {"id": question_id, "allow": answer.allowed, "message": answer.message}
            changed = parse_json_object(answer.updated_input_json.encode()) if answer.updated_input_json else None
            if not answer.allowed:
                self._calls.denied.add(call_id)
            elif changed is not None:
                self._calls.open[call_id] = (name, changed)
                params["params"] = dict(changed)
            return plan.request(f"answer-{question_id}", "dragoman.answer", params)

        return [Ask(request, encode), Write(plan.next_question(self._job))]

    def approval(self, event: str, payload: Fields) -> Iterable[Output]:
        """Handle a question of OpenClaw's own policy about commands, if its user has tightened that."""
        approval_id, asked = text(payload, "id"), inner(payload, "request")
        if text(asked, "sessionKey") != plan.session_key(self._job) or not approval_id:
            return ()
        if event.endswith(".resolved"):
            return [Withdraw(approval_id)]
        call_id, tool_input = text(asked, "toolCallId"), {"command": text(asked, "command")}
        request = _permission(approval_id, "exec", tool_input, subject(call_id, "exec", tool_input, self._cwd))

        def encode(answer: Answer) -> bytes:
            if not answer.allowed:
                self._calls.denied.add(call_id)
            params = {"id": approval_id, "decision": "allow-once" if answer.allowed else "deny"}
            return plan.request(f"answer-{approval_id}", "exec.approval.resolve", dict(params))

        return [Ask(request, encode)]


def _permission(request_id: str, name: str, tool_input: Fields, about: pb.InputSubject) -> pb.InputRequest:
    kind = pb.INPUT_KIND_PERMISSION
    request = pb.InputRequest(id=request_id, kind=kind, title=title(name, tool_input), subject=about)
    request.options.add(id="allow_once", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow once")
    request.options.add(id="reject_once", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Reject")
    return request
