"""Adapters that leak a secret in other places than the agent's words, each of which breaks ``secrets.echo``."""

from typing import Any

from dragoman.v1 import event_pb2 as pb

from tests.conformance.breaks import SECRET
from tests.conformance.proxy import Break, Call

_HANDLE = pb.SessionHandle(adapter="scripted", native_id=SECRET)


def _leak(body: str, value: Any) -> Break:
    """Return a break that says a secret in another body than a text."""

    def changed(call: Call, came: pb.AgentEvent) -> None:
        if "env=CONFORMANCE_TOKEN" in call.script and came.text.whole == "[redacted]":
            getattr(came, body).CopyFrom(value)

    return Break(event=changed)


LEAKS: dict[str, Break] = {
    "notice": _leak("notice", pb.Notice(code="broken", message=f"It is {SECRET}.")),
    "tool_call": _leak("tool_call", pb.ToolCall(id="9", name="write", input_json=f'{{"text": "{SECRET}"}}')),
    "attempt_ended": _leak("attempt_ended", pb.AttemptEnded(failure=pb.Failure(message=SECRET))),
    "log": _leak("log", pb.Log(text="[redacted]", raw=SECRET.encode() + b"\xff")),
}
"""What breaks ``secrets.echo`` in other places than the agent's words."""
HANDLES = {
    "id": _leak("tool_call", pb.ToolCall(id=SECRET, name="write")),
    "handle": _leak("attempt_ended", pb.AttemptEnded(session=pb.SessionUpdate(handle=_HANDLE))),
}
"""Where a secret is no leak: a caller needs these unchanged."""
