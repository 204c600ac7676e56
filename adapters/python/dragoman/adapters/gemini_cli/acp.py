"""Gemini CLI's ways with the Agent Client Protocol, as measured. Pure."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dragoman.adapters.gemini_cli.classify import failure_of_stream
from dragoman.adapters.gemini_cli.history import History
from dragoman.adapters.gemini_cli.parse import PROVIDER
from dragoman.adapters.gemini_cli.tools import raw_input, tool_name
from dragoman.sdk import (
    Answer,
    Ask,
    CloseInput,
    FailureInfo,
    JsonValue,
    Line,
    Output,
    Stream,
    compact,
    fields,
    parse_json_object,
)
from dragoman.sdk.acp import AcpOptions, AcpParser, Conversation, RpcError, TurnEnd, error_text
from dragoman.sdk.fields import Fields
from dragoman.v1 import event_pb2 as pb

_HEADING: Final = re.compile(r"\A\*\*\*\*\n")
"""What it puts before a thought without a subject."""


def _name(update: Fields) -> str:
    return tool_name(fields.text(update, "toolCallId"))


def _tokens(result: Fields) -> pb.TokenCounts | None:
    """Read its own count, which does not tell what of the input a cache served."""
    counted = fields.inner(fields.inner(fields.inner(result, "_meta"), "quota"), "token_count")
    given, out = fields.count(counted, "input_tokens"), fields.count(counted, "output_tokens")
    if not given and not out:
        return None
    return pb.TokenCounts(input=given, output=out)


def _unheard(end: TurnEnd) -> FailureInfo | None:
    """Say that a turn without a token is none: a stream that broke off, and an empty answer, end so, and well."""
    quota = fields.inner(fields.inner(end.result, "_meta"), "quota")
    if not quota or _tokens(end.result) is not None:
        return None
    return failure_of_stream(
        "Model stream ended without a finish reason." if end.text else "The model was not heard."
    )


def _lost(error: RpcError) -> bool:
    said = error_text(error)
    return "previous sessions" in said or "Invalid session identifier" in said


WAYS: Final = AcpOptions(
    sets_model=False,
    tool_name=_name,
    tokens=_tokens,
    turn_failure=_unheard,
    lost_session=_lost,
    provider=PROVIDER,
    elicitation=False,
    slash_commands=True,  # kept from running by the plan: a blank, the usual way, does not stop them here
)


class GeminiAcpParser:
    """The shared parser, with what Gemini CLI leaves out put in.

    It tells neither a tool's parameters nor what became of a call that was refused, and repeats a loaded session only
    after it has said that it is loaded; see `History`. What it says on standard error, of retries above all, comes
    when it ends.

    Args:
        wanted: what this attempt wants of the agent.
        options: its ways in this run.
        version: the adapter's.
    """

    def __init__(self, wanted: Conversation, options: AcpOptions, version: str) -> None:
        self._inner = AcpParser(replace(wanted, mode=""), options, version)
        self.report = self._inner.report
        self._refused: dict[str, str] = {}
        self._history = History(wanted.session_id)

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        frame = parse_json_object(line.data) if stream == "stdout" else None
        if frame is None:
            return self._inner.line(stream, line)
        try:
            return self._take(stream, line, frame)
        except RecursionError:  # nested so deeply that it can be read but not written
            return self._inner.line(stream, line)

    def _take(self, stream: Stream, line: Line, frame: dict[str, JsonValue]) -> list[Output]:
        params = fields.inner(frame, "params")
        update = fields.inner(params, "update")
        kind = fields.text(update, "sessionUpdate")
        of_history = self._history.take(frame, kind)
        if of_history is not None:
            return of_history
        outputs: list[Output] = []
        for call_id, session_id in list(self._refused.items()):
            outputs += self._inner.line(stream, line._replace(data=_ended(session_id, call_id)))
            del self._refused[call_id]
        completed = _completed(frame, params, update, kind)
        if completed is not None:
            line = line._replace(data=compact(completed).encode())
        heard = (self._history.hold(output) for output in self._inner.line(stream, line))
        return [*outputs, *(self._watched(output, params) for output in heard)]

    def _watched(self, output: Output, params: Fields) -> Output:
        """Note when a permission is refused: it says nothing more of such a call."""
        if not isinstance(output, Ask) or output.request.kind != pb.INPUT_KIND_PERMISSION:
            return output
        call_id, session_id, encode = (
            output.request.subject.tool_call_id,
            fields.text(params, "sessionId"),
            output.encode,
        )

        def encoded(answer: Answer) -> bytes:
            if not answer.allowed and call_id:
                self._refused[call_id] = session_id
            return encode(answer)

        return replace(output, encode=encoded)

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        return self._inner.finish()

    def interrupt(self) -> Iterable[Output]:
        """Ask the agent to stop."""
        outputs = self._inner.interrupt()
        return [CloseInput()] if self._history.drop_prompt() else outputs


def _ended(session_id: str, call_id: str) -> bytes:
    """Return the update that Gemini CLI does not send: a call that was refused has failed."""
    said = [{"type": "content", "content": {"type": "text", "text": "It was not allowed."}}]
    update = {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": "failed", "content": said}
    params = {"sessionId": session_id, "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def _completed(frame: dict[str, JsonValue], params: Fields, update: Fields, kind: str) -> dict[str, object] | None:
    """Return a frame with what it leaves out; None if it leaves out nothing."""
    if kind == "agent_thought_chunk":
        content = fields.inner(update, "content")
        words = _HEADING.sub("", fields.text(content, "text"))
        said = {**update, "content": {**content, "text": words}}
        return {**frame, "params": {**params, "update": said}}
    if kind in {"tool_call", "tool_call_update"}:
        given = raw_input(_name(update), update)
        return {**frame, "params": {**params, "update": {**update, "rawInput": given}}} if given else None
    if fields.text(frame, "method") == "session/request_permission":
        call = fields.inner(params, "toolCall")
        given = raw_input(_name(call), call)
        return {**frame, "params": {**params, "toolCall": {**call, "rawInput": given}}} if given else None
    return None
