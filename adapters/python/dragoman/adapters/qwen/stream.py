"""What Qwen Code says in its stream of JSON lines, the way without questions. Pure.

Its last line can be cut at 64 KiB, as it exits before the pipe is drained; so the text is taken from what came
before, and a last line of which only the beginning is there still shows how the run ended.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dragoman.sdk import Evidence, FailureInfo, Line, Output, Stream, Terminal
from dragoman.sdk.failures import failure_of_text, unknown_session
from dragoman.sdk.fields import Fields, as_string_list, compact, count, inner, objects, parse_json_object, text
from dragoman.sdk.parsing import FileTool, Handler, JsonLinesParser, ToolCalls, call_usage, run_usage
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

KINDS: Final = {
    "read_file": pb.TOOL_KIND_READ,
    "glob": pb.TOOL_KIND_SEARCH,
    "grep_search": pb.TOOL_KIND_SEARCH,
    "write_file": pb.TOOL_KIND_EDIT,
    "edit": pb.TOOL_KIND_EDIT,
    "notebook_edit": pb.TOOL_KIND_EDIT,
    "run_shell_command": pb.TOOL_KIND_EXECUTE,
    "web_fetch": pb.TOOL_KIND_FETCH,
    "skill": pb.TOOL_KIND_SKILL,
    "agent": pb.TOOL_KIND_SUBAGENT,
}
FILES: Final = {
    "write_file": FileTool("file_path", content="content"),
    "edit": FileTool("file_path", replaces=("old_string", "new_string")),
}
_CUT_SUCCESS: Final = b'{"type":"result","subtype":"success"'


class QwenStreamParser(JsonLinesParser):
    """Understands one attempt.

    Args:
        roots: the workspace, its working directory first.
    """

    def __init__(self, roots: Sequence[str] = ()) -> None:
        super().__init__(
            {
                "system": self._system,
                "stream_event": lambda frame: self._piece(inner(frame, "event")),
                "assistant": lambda frame: self._assistant(inner(frame, "message")),
                "user": lambda frame: self._results(inner(frame, "message")),
                "result": self._end,
            },
            other=lambda _: None,
        )
        self._calls = ToolCalls(KINDS, FILES, roots)
        self._items = 0
        self._item = "text-0"

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        is_cut = stream == "stdout" and not line.complete and line.data.startswith(_CUT_SUCCESS)
        if is_cut and parse_json_object(line.data) is None:
            self.report.terminal = Terminal(succeeded=True, subtype="success")
            return []
        return super().line(stream, line)

    def read(self, handler: Handler, frame: Fields) -> list[Output] | None:
        """Read an object, which may be of a nested agent."""
        found = handler(frame)
        outputs, parent = None if found is None else list(found), text(frame, "parent_tool_use_id")
        for output in outputs or () if parent else ():
            if isinstance(output, pb.AgentEvent):
                output.lineage.parent_tool_call_id = parent
        return outputs

    def _system(self, frame: Fields) -> list[pb.AgentEvent] | None:
        if text(frame, "subtype") == "retry":
            return self.retries.begin()
        if text(frame, "subtype") != "init":
            return None
        self.report.session_id, self.report.model = text(frame, "session_id"), text(frame, "model")
        session = pb.Session(
            native_id=self.report.session_id, model=self.report.model, mode=text(frame, "permission_mode")
        )
        session.tools.extend(as_string_list(frame.get("tools")))
        return [pb.AgentEvent(session=session)]

    def _piece(self, event: Fields) -> Iterator[Output]:
        kind, delta, block = text(event, "type"), inner(event, "delta"), inner(event, "content_block")
        if kind.startswith("content_block"):
            yield from self.retries.end()
        if kind == "content_block_start":
            self._items += 1
            self._item = f"{text(block, 'type')}-{self._items}"
            if text(block, "type") == "tool_use":
                yield from self._calls.pending(text(block, "id"), text(block, "name"))
        elif text(delta, "type") == "text_delta":
            yield from self.texts.delta(self._item, text(delta, "text"))
        elif text(delta, "type") == "thinking_delta":
            yield from self.texts.delta(self._item, text(delta, "thinking"), "thinking")
        elif kind == "content_block_stop":
            yield from self.texts.end(self._item)

    def _assistant(self, message: Fields) -> Iterator[Output]:
        for part in objects(message, "content"):
            if text(part, "type") == "tool_use":
                arguments = inner(part, "input")
                input_json = compact(arguments) if arguments else ""
                yield from self._calls.running(text(part, "id"), text(part, "name"), arguments, input_json=input_json)
            elif text(part, "type") == "text":
                self.report.summary = text(part, "text")
        tokens = _tokens(inner(message, "usage"))
        if tokens is not None:
            yield pb.AgentEvent(usage=call_usage(tokens))

    def _results(self, message: Fields) -> Iterator[Output]:
        for part in objects(message, "content"):
            if text(part, "type") == "tool_result":
                yield from self._calls.ended(_result(part))

    def _end(self, frame: Fields) -> Iterable[Output]:
        report, subtype = self.report, text(frame, "subtype")
        report.session_id = text(frame, "session_id") or report.session_id
        report.turns = count(frame, "num_turns")
        tokens = _tokens(inner(frame, "usage"))  # those of calls that no event shows among them
        if tokens is not None:
            report.usage = run_usage(tokens)
        failure = None
        if frame.get("is_error") is not False:
            failure = failure_of_words(text(inner(frame, "error"), "message") or subtype)
        report.terminal = Terminal(succeeded=failure is None, subtype=subtype, failure=failure)
        return ()


def failure_of_words(message: str) -> FailureInfo:
    """Return what an error means, in its own words."""
    words = message.removeprefix("[API Error: ").removesuffix("]")
    known = failure_of_text(words, "qwen_error", status_leads=True)
    unknown = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, words, "qwen_error")
    return replace(known or unknown, errors=(message,))


def classify_stream(evidence: Evidence) -> FailureInfo | None:
    """Return what a run means that ended before it had a word: a session that is not there."""
    if evidence.report.terminal is None and evidence.resumed and unknown_session(evidence.stderr_tail):
        message = "Qwen Code knows no such session."
        return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, "qwen_session", (evidence.stderr_tail.strip(),))
    return None


def _result(part: Fields) -> pb.ToolResult:
    is_error = part.get("is_error") is True
    status = pb.TOOL_STATUS_FAILED if is_error else pb.TOOL_STATUS_COMPLETED
    tool_result = pb.ToolResult(tool_call_id=text(part, "tool_use_id"), status=status, is_error=is_error)
    tool_result.content = text(part, "content") or "\n".join(text(item, "text") for item in objects(part, "content"))
    return tool_result


def _tokens(usage: Fields) -> pb.TokenCounts | None:
    taken, out, cached = (count(usage, f"{name}_tokens") for name in ("input", "output", "cache_read_input"))
    if not taken and not out:  # zero is what it says of what it has not counted
        return None
    tokens = pb.TokenCounts(input=max(0, (taken or 0) - (cached or 0)), output=out or 0)
    if cached is not None:
        tokens.cache_read = cached
    return tokens
