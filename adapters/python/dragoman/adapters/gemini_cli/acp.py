"""How Gemini CLI's Agent Client Protocol differs, as measured. Pure."""

import json
import re
from collections.abc import Iterable
from typing import Final

from dragoman.adapters.gemini_cli.classify import failure_of_stream
from dragoman.adapters.gemini_cli.history import History
from dragoman.adapters.gemini_cli.parse import PROVIDER
from dragoman.adapters.gemini_cli.tools import KINDS, raw_input, tool_name
from dragoman.sdk import Answer, Ask, CloseInput, FailureInfo, Line, Output, Stream, fields
from dragoman.sdk.acp import AcpOptions, AcpParser, Conversation, RpcError, TurnEnd, error_text
from dragoman.sdk.fields import Fields, JsonValue, compact, parse_json_object
from dragoman.sdk.parsing import Update, token_counts
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

_HEADING: Final = re.compile(r"\A\*\*\*\*\n")
"""Begins a thought without a subject."""

_MODES: Final = {"auto_edit": "autoEdit"}
"""Modes that are spelled otherwise on the command line."""


def _name(update: Fields) -> str:
    return tool_name(fields.text(update, "toolCallId"))


def _tokens(result: Fields) -> pb.TokenCounts | None:
    """Return its own counts, where tokens read from a cache are part of the input."""
    counted = fields.inner(fields.inner(fields.inner(result, "_meta"), "quota"), "token_count")
    tokens = token_counts(counted, {"input_tokens": "input", "output_tokens": "output"})
    return tokens if tokens is not None and (tokens.input or tokens.output) else None


def _failure_of_turn(end: TurnEnd) -> FailureInfo | None:
    """Return the failure of a turn without tokens: broken streams and empty answers are reported as successes."""
    quota = fields.inner(fields.inner(end.result, "_meta"), "quota")
    if not quota or _tokens(end.result) is not None:
        return None
    return failure_of_stream(
        "Model stream ended without a finish reason." if end.text else "The model did not answer."
    )


def _lost(error: RpcError) -> bool:
    message = error_text(error)
    return "previous sessions" in message or "Invalid session identifier" in message


ACP_OPTIONS: Final = AcpOptions(
    sets_model=False,
    tool_name=_name,
    tool_kinds=KINDS,
    tokens=_tokens,
    turn_failure=_failure_of_turn,
    lost_session=_lost,
    provider=PROVIDER,
    elicitation=False,
    slash_commands=True,  # the plan escapes them: a blank before them, as usual, does not here
)


class GeminiAcpParser:
    """The SDK's parser, with additions where Gemini CLI's messages are incomplete.

    They have neither a tool's parameters nor the end of a denied call, and repeat a loaded session only after the
    answer to the request to load it; see `History`. Standard error, with the retries, comes when it ends.
    """

    def __init__(self, conversation: Conversation, options: AcpOptions, version: str) -> None:
        self._inner = AcpParser(replace(conversation, mode=""), options, version)
        self.report = self._inner.report
        self._denied: dict[str, str] = {}
        self._history = History(conversation.session_id)
        self._announced: set[str] = set()
        """Texts with which Gemini CLI announces modes that it was asked for, as if its model had said them."""

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Read a line."""
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
        if kind == "agent_message_chunk" and fields.text(fields.inner(update, "content"), "text") in self._announced:
            return []
        outputs: list[Output] = []
        for call_id, session_id in list(self._denied.items()):
            outputs += self._inner.line(stream, line._replace(data=_ended(session_id, call_id)))
            del self._denied[call_id]
        completed = _completed(frame, params, update, kind)
        if completed is not None:
            line = line._replace(data=compact(completed).encode())
        read = (self._history.defer(output) for output in self._inner.line(stream, line))
        return [*outputs, *(self._note_denial(output, params) for output in read)]

    def _note_denial(self, output: Output, params: Fields) -> Output:
        """Note when a permission is denied: Gemini CLI does not report the end of such a call."""
        if not isinstance(output, Ask) or output.request.kind != pb.INPUT_KIND_PERMISSION:
            return output
        call_id, session_id, encode = (
            output.request.subject.tool_call_id,
            fields.text(params, "sessionId"),
            output.encode,
        )

        def encoded(answer: Answer) -> bytes:
            if not answer.allowed and call_id:
                self._denied[call_id] = session_id
            return encode(answer)

        return replace(output, encode=encoded)

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        return self._inner.finish()

    def update(self, update: Update) -> Iterable[Output] | None:
        """Give the agent a change once its turn runs; before, `History` sets the mode that the session has."""
        if self._history.is_on:
            return None
        mode = _MODES.get(update.permission_mode, update.permission_mode)
        if mode:
            self._announced.add(f"[MODE_UPDATE] {mode}")
        return self._inner.update(replace(update, permission_mode=mode))

    def interrupt(self) -> Iterable[Output]:
        """Ask the agent to stop."""
        outputs = self._inner.interrupt()
        return [CloseInput()] if self._history.drop_prompt() else outputs


def _ended(session_id: str, call_id: str) -> bytes:
    """Return the update that Gemini CLI does not send: a denied call has failed."""
    content = [{"type": "content", "content": {"type": "text", "text": "It was not allowed."}}]
    update = {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": "failed", "content": content}
    params = {"sessionId": session_id, "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def _completed(frame: dict[str, JsonValue], params: Fields, update: Fields, kind: str) -> dict[str, object] | None:
    """Return a frame with additions; None if it needs none."""
    if kind == "agent_thought_chunk":
        content = fields.inner(update, "content")
        words = _HEADING.sub("", fields.text(content, "text"))
        update = {**update, "content": {**content, "text": words}}
        return {**frame, "params": {**params, "update": update}}
    if kind in {"tool_call", "tool_call_update"}:
        parameters = raw_input(_name(update), update)
        update = {**update, "rawInput": parameters}
        return {**frame, "params": {**params, "update": update}} if parameters else None
    if fields.text(frame, "method") == "session/request_permission":
        call = fields.inner(params, "toolCall")
        parameters = raw_input(_name(call), call)
        call = {**call, "rawInput": parameters}
        return {**frame, "params": {**params, "toolCall": call}} if parameters else None
    return None
