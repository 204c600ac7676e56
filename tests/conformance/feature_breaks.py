"""One broken adapter per rule of what an adapter may declare, as ``breaks`` has the others."""

from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.conformance.breaks import answer, event, reason, request
from tests.conformance.proxy import Break, Call, Events


def _allow_all(execute: api.ExecuteRequest) -> None:
    if not execute.HasField("permissions"):
        execute.permissions.auto_approve = True


def _ask_first(execute: api.ExecuteRequest) -> None:
    if execute.permissions.default_decision == pb.PERMISSION_DECISION_ALLOW:
        execute.ClearField("permissions")


def _allow_denied(execute: api.ExecuteRequest) -> None:
    if execute.permissions.default_decision == pb.PERMISSION_DECISION_DENY:
        execute.permissions.default_decision = pb.PERMISSION_DECISION_ALLOW


def _at_once(execute: api.ExecuteRequest) -> None:
    if execute.orphan_after.seconds == 2:
        execute.ClearField("orphan_after")


def _another_answer(call: Call) -> None:
    if call.method == "Respond" and call.request.answer.text:
        call.request.answer.text = "another"


async def _after_its_end(call: Call, events: Events) -> Events:
    kept = []
    async for came in events:
        kept.append(came)
        if came.HasField("result") or not call.script.startswith("call=conformance\nwait="):
            while kept:
                yield kept.pop(0)


def _count_steer(call: Call) -> None:
    if call.method == "Send" and call.request.mode == pb.INPUT_MODE_STEER:
        call.proxy.count(("steer", call.request.run_id))


def _unsteered(call: Call, came: pb.AgentEvent) -> None:
    """Drop an input for the present turn."""
    if came.message.input_id and ("steer", came.run_id) in call.proxy.counts:
        came.input_dropped.CopyFrom(pb.InputDropped(input_id=came.message.input_id, reason="refused"))


FEATURE_BREAKS: dict[str, Break] = {
    "send.steered": Break(request=_count_steer, event=_unsteered),
    "update.refused": reason(Reason.NOT_SUPPORTED, Reason.RUN_FINISHED, method="UpdateRun"),
    "update.invalid": reason(Reason.INVALID_REQUEST, Reason.NOT_SUPPORTED, method="UpdateRun"),
    "update.taken": answer("UpdateRun", lambda _, came: setattr(came, "sequence", came.sequence + 1)),
    "update.finished": reason(Reason.RUN_FINISHED, Reason.RUN_NOT_FOUND, method="UpdateRun"),
    "update.unknown-run": reason(Reason.RUN_NOT_FOUND, Reason.RUN_FINISHED, method="UpdateRun"),
    "run.orphan-after": request(_at_once),
    "tools.start": Break(events=_after_its_end),
    "tools.output": event("output=", "tool_output", lambda came: setattr(came.tool_output, "text", "another")),
    "tools.input": event("tool=", "tool_call", lambda came: setattr(came.tool_call, "input_json", "{")),
    "usage.per-call": event("model=", "usage", lambda came: came.usage.ClearField("scope")),
    "usage.per-model": event("model=", "result", lambda came: came.result.usage.ClearField("models")),
    "usage.cost": event("cost=", "result", lambda came: setattr(came.result.usage.cost, "amount", "free")),
    "reports.text-deltas": event("one half", "text", lambda came: setattr(came.text, "whole", came.text.delta)),
    "reports.thinking": event("think=", "thinking", lambda came: came.log.CopyFrom(pb.Log(text="thinks"))),
    "reports.plan": event("plan=", "plan", lambda came: came.plan.ClearField("entries")),
    "reports.file-changes": event(
        "change=", "file_change", lambda came: setattr(came.file_change, "path", "relative.txt")
    ),
    "reports.subagents": event("nested=", "text", lambda came: came.ClearField("lineage")),
    "respond.question": Break(request=_another_answer),
    "permissions.strict": request(_allow_all, "write="),
    "permissions.allowed": request(_ask_first, "write="),
    "permissions.denied": request(_allow_denied, "write="),
}
"""What breaks each of these rules."""
