"""What Copilot asks: permissions, and what its model wants to know of a person. Pure."""

import os.path
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.adapters.copilot.tools import decision, permission, subject
from dragoman.sdk import Answer, Ask, Job, JsonValue, Write, compact, decide, jsonrpc
from dragoman.sdk.fields import Fields, inner, text
from dragoman.v1 import event_pb2 as pb

Say = Callable[[str, Mapping[str, object], str], Write]

_NOBODY: str = "Nobody answered. Decide by yourself, or end with the question as your answer."


class Questions:
    """The questions of one attempt.

    Args:
        job: the attempt.
        skill_roots: directories of the run's skills, which may be read.
        say: makes a request to Copilot.
    """

    def __init__(self, job: Job, skill_roots: Sequence[Path], say: Say) -> None:
        self._job = job
        self._skill_roots = skill_roots
        self._say = say
        self._allowed: set[str] = set()
        """What was allowed, as asked: of a path beyond the workspace Copilot asks twice."""

    def permission(self, data: Fields, tool_name: str, lineage: pb.Lineage | None) -> Ask | Write | None:
        """Take ``permission.requested``. None: nobody needs to answer."""
        request, prompt = inner(data, "permissionRequest"), inner(data, "promptRequest")
        request_id = text(data, "requestId")
        if data.get("resolvedByHook") is True or not request_id:
            return None
        about = subject(request, prompt, tool_name)
        key = compact(request)

        def answer(given: Answer) -> bytes:
            if given.allowed:
                self._allowed.add(key)
            return self._answer(request_id, decision(given, request))

        if key in self._allowed or self._is_free(about, text(prompt, "kind")):
            return Write(self._answer(request_id, {"kind": "approve-once"}))
        asked = permission(request_id, about, request, answer)
        return Ask(asked.request, asked.encode, lineage)

    def _answer(self, request_id: str, result: Mapping[str, JsonValue]) -> bytes:
        method = "session.permissions.handlePendingPermissionRequest"
        return self._say(method, {"requestId": request_id, "result": result}, "answer").data

    def _is_free(self, about: pb.InputSubject, prompt: str) -> bool:
        """Tell whether a file may be read without a question, as in Copilot's own runs.

        It is, within the directories of the session, or of a skill, if the policy does not say otherwise.
        """
        permissions = self._job.permissions
        if about.tool_kind != pb.TOOL_KIND_READ or not about.paths:
            return False
        if prompt != "read" and not all(self._is_skill(path) for path in about.paths):
            return False
        asks = any(rule.decision == pb.PERMISSION_DECISION_ASK for rule in permissions.rules)
        attended = pb.Permissions()
        attended.CopyFrom(permissions)
        attended.interactive = True  # else it could not be told whether it is denied, or only not asked
        return not asks and decide(attended, about, cwd=self._job.settings.cwd) != pb.PERMISSION_DECISION_DENY

    def _is_skill(self, path: str) -> bool:
        real = os.path.normpath(path)
        return any(real == str(root) or real.startswith(f"{root}/") for root in self._skill_roots)

    def user_input(self, request: jsonrpc.Request, peer: jsonrpc.Peer[Any]) -> Ask:
        """Take ``userInput.request``: the model asks a person."""
        listed = request.params.get("choices")
        choices = [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []
        asked = pb.InputRequest(
            id=f"user-input-{request.id}",
            kind=pb.INPUT_KIND_CHOICE if choices else pb.INPUT_KIND_TEXT,
            title=text(request.params, "question") or "The agent asks.",
        )
        for index, choice in enumerate(choices):
            asked.options.add(id=f"option_{index + 1}", label=choice)

        def encode(answer: Answer) -> bytes:
            said = answer.text or ", ".join(option.label for option in answer.chosen)
            result = {"answer": said or answer.message or _NOBODY, "wasFreeform": not answer.chosen}
            return jsonrpc.with_length(peer.result(request.id, result))

        return Ask(asked, encode)
