"""More ways to break a rule: adapters that do what the rule is about, and lose what it is for."""

from collections.abc import Callable

from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.conformance.breaks import answer, error, event, request
from tests.conformance.proxy import Break, Call, Events


def _only_claims(claim: pb.SessionDisposition.ValueType, *, is_copy: bool) -> Break:
    """Return an adapter that says that it resumes or copies a session, and hands no session on to its agent."""

    def forget(execute: api.ExecuteRequest) -> None:
        if execute.session.fork is is_copy:
            execute.ClearField("session")

    claims = event("received=", "started", lambda came: setattr(came.started, "session_disposition", claim))
    return Break(request=request(forget, "received=").request, event=claims.event)


def _status(kind: str, status: int, steps: str = "tool=") -> Break:
    return event(steps, kind, lambda came: setattr(getattr(came, kind), "status", status))


def _fails(change: Callable[[pb.Failure], object]) -> Break:
    return event("fail=", "result", lambda came: change(came.result.failure))


def _another_program(_: Call, came: api.DetectResponse) -> None:
    came.detections[0].executable = "/usr/bin/true"


def _succeed(came: pb.AgentEvent) -> None:
    came.result.ClearField("failure")
    came.result.outcome = pb.OUTCOME_SUCCEEDED


def _lose_words(failure: pb.Failure) -> None:
    failure.kind, failure.message = pb.FAILURE_KIND_INTERNAL, "The agent failed."


def _trace(change: Callable[[Call], str]) -> Break:
    """Return an adapter whose agent gets another TRACEPARENT."""

    def changed(call: Call) -> None:
        if call.method == "Execute" and "env=TRACEPARENT" in call.script:
            call.request.env["TRACEPARENT"] = change(call)

    return Break(request=changed)


def _refuse_malformed(call: Call) -> None:
    if call.trace.startswith("ff"):
        raise error(Reason.INVALID_REQUEST)


async def _break_off(call: Call, events: Events) -> Events:
    async for came in events:
        if "deaf" in call.script and came.HasField("result"):
            raise error(Reason.INTERNAL)
        yield came


def _schema(text: str) -> Break:
    return answer("Describe", lambda _, came: setattr(came, "config_schema_json", text))


STRICTER: dict[tuple[str, str], Break] = {
    ("describe.config-schema", "its $schema is no text"): _schema('{"$schema": 5}'),
    ("describe.config-schema", "is the schema of 'array'"): _schema('{"type": "array"}'),
    ("describe.config-schema", "is no JSON Schema: properties.command.type: 'strng'"): _schema(
        '{"type": "object", "properties": {"command": {"type": "strng"}}}'
    ),
    ("run.progressive", "the run ended as OUTCOME_FAILED (No disk.) without the event that was due"): request(
        lambda execute: execute.env.update({"DRAGOMAN_SCRIPT": "fail=No disk."}), "before the gate"
    ),
    ("session.resumes", "the agent does not receive the ID"): _only_claims(
        pb.SESSION_DISPOSITION_RESUME, is_copy=False
    ),
    ("session.forks", "the agent does not receive the ID"): _only_claims(pb.SESSION_DISPOSITION_FORK, is_copy=True),
    ("tools.results", "RUNNING, which is not that of an end"): _status("tool_result", pb.TOOL_STATUS_RUNNING),
    ("tools.results", "UNSPECIFIED, which is not that of an end"): _status("tool_result", 0),
    ("tools.results", "that succeeded has the status FAILED"): _status("tool_result", pb.TOOL_STATUS_FAILED),
    ("tools.failed", "is_error of a tool that failed is false"): event(
        "failing=", "tool_result", lambda came: setattr(came.tool_result, "is_error", False)
    ),
    ("environment.trace", "not the caller's"): _trace(lambda call: call.trace.replace(call.trace[3:35], "1" * 32)),
    ("environment.trace", "flags of the agent's trace are 00"): _trace(lambda call: call.trace[:-2] + "00"),
    ("environment.no-trace", "traceparent that is none"): _trace(lambda call: call.trace),
    ("environment.no-trace", "that of another call"): _trace(lambda _: f"00-{'1' * 32}-{'2' * 16}-01"),
    ("environment.no-trace", "INVALID_REQUEST"): Break(request=_refuse_malformed),
    ("detect.missing", "the executable is /usr/bin/true"): answer("Detect", _another_program),
    ("detect.missing", "neither a hint nor a problem"): answer(
        "Detect", lambda _, came: came.detections[0].ClearField("hint")
    ),
    ("cancel.grace-zero", "Execute failed"): Break(events=_break_off),
    ("run.missing", "SUCCEEDED where FAILED is due"): event("", "result", _succeed),
    ("run.missing", "the failure has no message"): event(
        "", "result", lambda came: came.result.failure.ClearField("message")
    ),
    ("run.exit-code", "SUCCEEDED where FAILED is due"): event("exit=", "result", _succeed),
    ("run.exit-code", "exit_code is 0"): event("exit=", "result", lambda came: setattr(came.result, "exit_code", 0)),
    ("tools.start", "its status is COMPLETED"): _status("tool_call", pb.TOOL_STATUS_COMPLETED, "call="),
    ("tools.start", "its status is UNSPECIFIED"): _status("tool_call", 0, "call="),
    ("run.failure-is-data", "the failure is INTERNAL"): _fails(_lose_words),
    ("run.failure-reason", "FAILED without failure.kind"): _fails(lambda failure: failure.ClearField("kind")),
    ("run.failure-reason", "FAILED without failure.message"): _fails(lambda failure: failure.ClearField("message")),
}
"""By rule and by words of the message."""
