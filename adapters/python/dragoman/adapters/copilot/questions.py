"""Input requests of Copilot: permissions, and questions of its model. Pure."""

import os.path
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.adapters.copilot.tools import decision, permission, subject
from dragoman.sdk import Answer, Ask, Job, Write, jsonrpc
from dragoman.sdk.fields import Fields, JsonValue, as_string_list, compact, inner, text
from dragoman.sdk.run import decide
from dragoman.v1 import event_pb2 as pb

Send = Callable[[str, Mapping[str, object], str], Write]

_UNANSWERED: str = "No one answered. Decide by yourself, or end with the question as your answer."


class Questions:
    """The questions of one attempt.

    Args:
        job: the attempt.
        skill_roots: directories of the run's skills, which may be read.
        send: makes a request to Copilot.
    """

    def __init__(self, job: Job, skill_roots: Sequence[Path], send: Send) -> None:
        self._job = job
        self._skill_roots = skill_roots
        self._send = send
        self._allowed: set[str] = set()
        """Requests that were allowed: for a path beyond the workspace Copilot asks twice."""

    def permission(self, data: Fields, tool_name: str, lineage: pb.Lineage | None) -> Ask | Write | None:
        """Handle ``permission.requested``. None: it needs no answer."""
        request, prompt = inner(data, "permissionRequest"), inner(data, "promptRequest")
        request_id = text(data, "requestId")
        if data.get("resolvedByHook") is True or not request_id:
            return None
        about = subject(request, prompt, tool_name)
        key = compact(request)

        def encode(answer: Answer) -> bytes:
            if answer.allowed:
                self._allowed.add(key)
            return self._answer(request_id, decision(answer, request))

        if key in self._allowed or self._is_free(about, text(prompt, "kind")):
            return Write(self._answer(request_id, {"kind": "approve-once"}))
        asked = permission(request_id, about, request, encode)
        return Ask(asked.request, asked.encode, lineage)

    def _answer(self, request_id: str, result: Mapping[str, JsonValue]) -> bytes:
        method = "session.permissions.handlePendingPermissionRequest"
        return self._send(method, {"requestId": request_id, "result": result}, "answer").data

    def _is_free(self, about: pb.InputSubject, prompt: str) -> bool:
        """Return whether a file may be read without a question, as in Copilot's own runs.

        It may, within the directories of the session or of a skill, unless a permission rule applies.
        """
        permissions = self._job.permissions
        if about.tool_kind != pb.TOOL_KIND_READ or not about.paths:
            return False
        if prompt != "read" and not all(self._is_skill(path) for path in about.paths):
            return False
        asks = any(rule.decision == pb.PERMISSION_DECISION_ASK for rule in permissions.rules)
        attended = pb.Permissions()
        attended.CopyFrom(permissions)
        attended.interactive = True  # else a missing answer would look like a denial
        return not asks and decide(attended, about, cwd=self._job.settings.cwd) != pb.PERMISSION_DECISION_DENY

    def _is_skill(self, path: str) -> bool:
        real = os.path.normpath(path)
        return any(real == str(root) or real.startswith(f"{root}/") for root in self._skill_roots)

    def user_input(self, request: jsonrpc.Request, peer: jsonrpc.Peer[Any]) -> Ask:
        """Handle ``userInput.request``: a question of the model."""
        choices = as_string_list(request.params.get("choices"))
        asked = pb.InputRequest(
            id=f"user-input-{request.id}",
            kind=pb.INPUT_KIND_CHOICE if choices else pb.INPUT_KIND_TEXT,
            title=text(request.params, "question") or "The agent asks.",
        )
        for index, choice in enumerate(choices):
            asked.options.add(id=f"option_{index + 1}", label=choice)

        def encode(answer: Answer) -> bytes:
            reply = answer.text or ", ".join(option.label for option in answer.chosen)
            result = {"answer": reply or answer.message or _UNANSWERED, "wasFreeform": not answer.chosen}
            return jsonrpc.with_length(peer.result(request.id, result))

        return Ask(asked, encode)
