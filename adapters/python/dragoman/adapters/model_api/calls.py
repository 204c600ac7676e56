"""The model's tool calls: permitted, run, and reported."""

import asyncio
import time
from collections.abc import Collection, Sequence

from dragoman.adapters.model_api.reply import Call
from dragoman.adapters.model_api.tools import READ, Done, run_tool, subject, tool_call
from dragoman.adapters.model_api.transcripts import result_block
from dragoman.adapters.model_api.workspace import RefusedError, Workspace
from dragoman.sdk import Answer, Turn
from dragoman.sdk.fields import Fields, JsonValue, compact, parse_json_object
from dragoman.sdk.run import decide
from dragoman.v1 import event_pb2 as pb

_REFUSED = "Not allowed."


class Calls:
    """The tool calls of one run.

    Args:
        turn: the attempt.
        offered: names of the tools that the model has.
    """

    def __init__(self, turn: Turn, offered: Collection[str]) -> None:
        self._turn = turn
        self._offered = offered
        self._workspace = Workspace(turn.job.settings.cwd)
        self._others = [Workspace(path) for path in turn.job.settings.additional_directories]
        self._always: set[str] = set()
        """Tools that are allowed for the rest of the run."""

    async def run(self, calls: Sequence[Call]) -> list[JsonValue]:
        """Run calls one after the other, and return the results for the model."""
        return [await self._run(call) for call in calls]

    async def _run(self, call: Call) -> JsonValue:
        fields = call.input if call.input is not None else {}
        event = tool_call(call.id, call.name, fields, pb.TOOL_STATUS_RUNNING)
        self._turn.run.emit(pb.AgentEvent(tool_call=event))
        began = time.monotonic()
        try:
            status, done = await self._permitted(call, fields)
        except asyncio.CancelledError:
            self._emit_result(call, pb.TOOL_STATUS_CANCELLED, Done("The run was stopped."), began)
            raise
        if done.change is not None:
            self._turn.run.emit(pb.AgentEvent(file_change=done.change))
        self._emit_result(call, status, done, began)
        return result_block(call.id, done.content, failed=status != pb.TOOL_STATUS_COMPLETED)

    def _emit_result(self, call: Call, status: pb.ToolStatus.ValueType, done: Done, began: float) -> None:
        result = pb.ToolResult(tool_call_id=call.id, status=status, content=done.content)
        result.is_error = status != pb.TOOL_STATUS_COMPLETED
        result.duration.FromNanoseconds(int((time.monotonic() - began) * 1e9))
        self._turn.run.emit(pb.AgentEvent(tool_result=result))

    async def _permitted(self, call: Call, fields: Fields) -> tuple[pb.ToolStatus.ValueType, Done]:
        if call.name not in self._offered:
            names = ", ".join(self._offered)
            return pb.TOOL_STATUS_FAILED, Done(f"There is no tool {call.name!r}; there are {names}.", failed=True)
        if call.input is None:
            return pb.TOOL_STATUS_FAILED, Done("The input is no JSON object.", failed=True)
        try:
            workspace = self._workspace_of(call.name, fields)
            about = subject(call.id, call.name, fields, workspace)
        except RefusedError as error:  # no permission can allow it
            return pb.TOOL_STATUS_FAILED, Done(str(error), failed=True)
        answer = await self._answer(call, fields, about)
        if not answer.allowed:
            return pb.TOOL_STATUS_DENIED, Done(answer.message or _REFUSED, failed=True)
        updated = parse_json_object(answer.updated_input_json.encode()) if answer.updated_input_json else None
        if updated is not None:
            fields, workspace = updated, self._workspace_of(call.name, updated)
        done = run_tool(call.id, call.name, fields, workspace)
        return (pb.TOOL_STATUS_FAILED if done.failed else pb.TOOL_STATUS_COMPLETED), done

    def _workspace_of(self, name: str, fields: Fields) -> Workspace:
        """Return the workspace of a call's path: outside the working directory, files can only be read."""
        path = fields.get("file_path")
        if name == READ and isinstance(path, str):
            for other in self._others:
                if path.startswith(f"{other.root.rstrip('/')}/"):
                    return other
        return self._workspace

    async def _answer(self, call: Call, fields: Fields, about: pb.InputSubject) -> Answer:
        """Return whether a call may run. Reading may, unless a rule or a default of DENY applies."""
        policy = pb.Permissions()
        policy.CopyFrom(self._turn.job.permissions)
        if call.name == READ and policy.default_decision != pb.PERMISSION_DECISION_DENY:
            policy.default_decision = pb.PERMISSION_DECISION_ALLOW
        decision = decide(policy, about, cwd=self._turn.job.settings.cwd)
        if decision == pb.PERMISSION_DECISION_ALLOW:
            return Answer(allowed=True)
        if decision == pb.PERMISSION_DECISION_ASK and call.name in self._always:
            return Answer(allowed=True)
        answer = await self._turn.ask(_question(call, fields, about))
        if answer.option is not None and answer.option.kind == pb.INPUT_OPTION_KIND_ALLOW_ALWAYS:
            self._always.add(call.name)
        return answer


def _question(call: Call, fields: Fields, about: pb.InputSubject) -> pb.InputRequest:
    request = pb.InputRequest(
        id=f"permission-{call.id}",
        kind=pb.INPUT_KIND_PERMISSION,
        title=f"{call.name} {about.paths[0]}",
        subject=about,
        editable_input_json=compact(dict(fields)),
    )
    request.options.add(id="allow_once", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow once")
    request.options.add(
        id="allow_always", kind=pb.INPUT_OPTION_KIND_ALLOW_ALWAYS, label=f"Allow {call.name} for the rest of this run"
    )
    request.options.add(id="reject_once", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Reject")
    return request
