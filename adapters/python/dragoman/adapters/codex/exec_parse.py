"""The JSON lines of ``codex exec --json``, read as notifications of the app server. Pure.

There are no deltas and no input requests. Usage is the thread's, from its first run on: the session handle has the
total of the runs before, and without it the run's usage stays unknown.
"""

from collections.abc import Iterable
from typing import Final

from dragoman.adapters.codex.classify import failure_of
from dragoman.adapters.codex.parse import structured
from dragoman.adapters.codex.plan import TOTALS_KEY, session_param
from dragoman.adapters.codex.thread import ThreadEvents, notice
from dragoman.adapters.codex.tools import Calls
from dragoman.adapters.codex.usage import dump, load, minus, read_counts, token_counts
from dragoman.sdk import Job, Output, Terminal
from dragoman.sdk.fields import Fields, JsonValue, compact, inner, objects, text
from dragoman.sdk.parsing import JsonLinesParser, run_usage
from dragoman.v1 import event_pb2 as pb

_TYPES: Final = {
    "agent_message": "agentMessage",
    "reasoning": "reasoning",
    "command_execution": "commandExecution",
    "file_change": "fileChange",
    "mcp_tool_call": "mcpToolCall",
    "collab_tool_call": "collabAgentToolCall",
    "web_search": "webSearch",
}
_KEYS: Final = {
    "aggregated_output": "aggregatedOutput",
    "exit_code": "exitCode",
    "input_tokens": "inputTokens",
    "cached_input_tokens": "cachedInputTokens",
    "cache_write_input_tokens": "cacheWriteInputTokens",
    "output_tokens": "outputTokens",
    "reasoning_output_tokens": "reasoningOutputTokens",
}


class ExecParser(JsonLinesParser):
    """Reads one attempt of ``codex exec``."""

    def __init__(self, job: Job) -> None:
        super().__init__(
            {
                "thread.started": self._opened,
                "item.started": lambda frame: self._item("item/started", frame),
                "item.updated": self._updated,
                "item.completed": lambda frame: self._item("item/completed", frame),
                "error": self._error,
                "turn.completed": self._completed,
                "turn.failed": self._failed,
            },
            silent=("turn.started",),
            names_frames=job.request.include_native,
        )
        self._job = job
        self._thread = ThreadEvents(Calls(job.settings.cwd))

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        self.report.summary = self._thread.last_message
        return list(self._thread.end())

    def _opened(self, frame: Fields) -> Iterable[Output]:
        self.report.session_id = text(frame, "thread_id")
        model = self._job.settings.model
        return list(self._thread.changed(native_id=self.report.session_id, model=model, mode="never"))

    def _item(self, method: str, frame: Fields) -> Iterable[Output]:
        item = inner(frame, "item")
        kind = text(item, "type")
        if kind == "error":  # a warning, despite its name
            return [notice(pb.SEVERITY_WARNING, "codex_warning", text(item, "message"))]
        if kind == "todo_list":
            return self._updated(frame)
        return list(self._thread.take(method, {"item": _as_app_server(item)}) or ())

    def _updated(self, frame: Fields) -> Iterable[Output]:
        steps: list[JsonValue] = [
            {"step": text(item, "text"), "status": "completed" if item.get("completed") is True else "pending"}
            for item in objects(inner(frame, "item"), "items")
        ]
        return list(self._thread.take("turn/plan/updated", {"plan": steps}) or ()) if steps else []

    def _error(self, frame: Fields) -> Iterable[Output]:
        words = text(frame, "message")
        if not words.startswith("Reconnecting"):
            return []  # the turn's end repeats it
        return list(self._thread.take("error", {"error": {"message": words}, "willRetry": True}) or ())

    def _completed(self, frame: Fields) -> Iterable[Output]:
        self._end(frame, Terminal(succeeded=True, subtype="completed"))
        return list(self._thread.end())

    def _failed(self, frame: Fields) -> Iterable[Output]:
        failure = failure_of(inner(frame, "error"))
        self._end(frame, Terminal(succeeded=False, subtype="failed", failure=failure))
        return list(self._thread.end())

    def _end(self, frame: Fields, terminal: Terminal) -> None:
        report = self.report
        report.terminal = terminal
        report.summary = self._thread.last_message
        report.model = self._job.settings.model
        report.raw_json = compact(frame)
        report.structured_output_json = structured(self._job, report.summary)
        total = read_counts({new: inner(frame, "usage").get(old) for old, new in _KEYS.items()})
        if not total:
            return
        report.session_params[TOTALS_KEY] = dump(total)
        before = load(session_param(self._job, TOTALS_KEY)) if self._job.session.resumes else {}
        if before is not None:
            report.usage = run_usage(token_counts(minus(total, before)))


def _as_app_server(item: Fields) -> dict[str, JsonValue]:
    """Return an item in the app server's form."""
    converted: dict[str, JsonValue] = {_KEYS.get(key, key): value for key, value in item.items()}
    converted["type"] = _TYPES.get(text(item, "type"), text(item, "type"))
    if converted["type"] == "reasoning":
        converted["summary"] = [text(item, "text")]
    if converted["type"] == "fileChange":
        converted["changes"] = [
            {"path": text(change, "path"), "kind": {"type": text(change, "kind")}}
            for change in objects(item, "changes")
        ]
    return converted
