"""One broken adapter per rule of an agent or a directory that is missing, of exit codes, and of tools that fail."""

from pathlib import Path

from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.conformance.breaks import answer, event, rejected
from tests.conformance.proxy import Break, Call


def _has_no_directory(call: Call) -> bool:
    return call.method == "TestEnvironment" and not Path(call.request.workspace.cwd).exists()


def _only_warned(_: Call, came: api.TestEnvironmentResponse) -> None:
    """Report a missing program as a warning."""
    for item in came.checks:
        if item.code == "agent_unavailable":
            item.level, came.status = pb.SEVERITY_WARNING, api.TEST_STATUS_WARN


def _crashed(came: pb.AgentEvent) -> None:
    """Report a missing program as a crash."""
    if came.result.failure.kind == pb.FAILURE_KIND_NOT_INSTALLED:
        came.result.failure.kind = pb.FAILURE_KIND_PROCESS_CRASHED


MISSING_BREAKS: dict[str, Break] = {
    "detect.missing": answer("Detect", lambda _, came: setattr(came.detections[0], "available", True)),
    "test.invalid-is-data": rejected(_has_no_directory, Reason.INVALID_REQUEST),
    "test.missing": answer("TestEnvironment", _only_warned),
    "run.missing": event("", "result", _crashed),
    "run.exit-code": event("exit=", "result", lambda came: came.result.ClearField("exit_code")),
    "tools.failed": event(
        "failing=", "tool_result", lambda came: setattr(came.tool_result, "status", pb.TOOL_STATUS_COMPLETED)
    ),
}
"""What breaks each of these rules."""
