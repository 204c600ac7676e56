"""What becomes of the model's tool calls: asked about where the policy says so, done, told."""

import asyncio
import time
from collections.abc import Collection, Sequence

from dragoman.adapters.model_api.reply import Call, Fields
from dragoman.adapters.model_api.tools import READ, Done, run_tool, subject, tool_call
from dragoman.adapters.model_api.transcripts import result_block
from dragoman.adapters.model_api.workspace import RefusedError, Workspace
from dragoman.sdk import Answer, JsonValue, Turn, compact, decide, parse_json_object
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
        self._always: set[str] = set()
        """Tools that its caller has allowed for the rest of the run."""

    async def do(self, calls: Sequence[Call]) -> list[JsonValue]:
        """Do what the model asks for, one after the other, and return the results for it."""
        return [await self._do(call) for call in calls]

    async def _do(self, call: Call) -> JsonValue:
        fields = call.input if call.input is not None else {}
        self._tell(call, fields)
        began = time.monotonic()
        try:
            status, done = await self._permitted(call, fields)
        except asyncio.CancelledError:
            self._told(call, pb.TOOL_STATUS_CANCELLED, Done("The run was stopped."), began)
            raise
        if done.change is not None:
            self._turn.run.emit(pb.AgentEvent(file_change=done.change))
        self._told(call, status, done, began)
        return result_block(call.id, done.content, failed=status != pb.TOOL_STATUS_COMPLETED)

    def _tell(self, call: Call, fields: Fields) -> None:
        event = tool_call(call.id, call.name, fields, pb.TOOL_STATUS_RUNNING)
        self._turn.run.emit(pb.AgentEvent(tool_call=event))

    def _told(self, call: Call, status: pb.ToolStatus.ValueType, done: Done, began: float) -> None:
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
            wanted = subject(call.id, call.name, fields, self._workspace)
        except RefusedError as error:  # whatever anybody allows
            return pb.TOOL_STATUS_FAILED, Done(str(error), failed=True)
        answer = await self._answer(call, fields, wanted)
        if not answer.allowed:
            return pb.TOOL_STATUS_DENIED, Done(answer.message or _REFUSED, failed=True)
        updated = parse_json_object(answer.updated_input_json.encode()) if answer.updated_input_json else None
        done = run_tool(call.id, call.name, fields if updated is None else updated, self._workspace)
        return (pb.TOOL_STATUS_FAILED if done.failed else pb.TOOL_STATUS_COMPLETED), done

    async def _answer(self, call: Call, fields: Fields, wanted: pb.InputSubject) -> Answer:
        """Return whether a call may be done. Reading is, unless a rule or a default of DENY says otherwise."""
        policy = pb.Permissions()
        policy.CopyFrom(self._turn.job.permissions)
        if call.name == READ and policy.default_decision != pb.PERMISSION_DECISION_DENY:
            policy.default_decision = pb.PERMISSION_DECISION_ALLOW
        decision = decide(policy, wanted, cwd=self._turn.job.settings.cwd)
        if decision == pb.PERMISSION_DECISION_ALLOW:
            return Answer(allowed=True)
        if decision == pb.PERMISSION_DECISION_ASK and call.name in self._always:
            return Answer(allowed=True)
        answer = await self._turn.ask(_question(call, fields, wanted))
        if answer.option is not None and answer.option.kind == pb.INPUT_OPTION_KIND_ALLOW_ALWAYS:
            self._always.add(call.name)
        return answer


def _question(call: Call, fields: Fields, wanted: pb.InputSubject) -> pb.InputRequest:
    asked = pb.InputRequest(
        id=f"permission-{call.id}",
        kind=pb.INPUT_KIND_PERMISSION,
        title=f"{call.name} {wanted.paths[0]}",
        subject=wanted,
        editable_input_json=compact(dict(fields)),
    )
    asked.options.add(id="allow_once", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow once")
    asked.options.add(
        id="allow_always", kind=pb.INPUT_OPTION_KIND_ALLOW_ALWAYS, label=f"Allow {call.name} for the rest of this run"
    )
    asked.options.add(id="reject_once", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Reject")
    return asked
