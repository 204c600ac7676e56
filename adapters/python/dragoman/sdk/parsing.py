"""What parsers are made of besides the types that they return.

A parser for an agent that prints JSON objects, one a line::

    class AcmeParser(JsonLinesParser):
        def __init__(self) -> None:
            super().__init__({"word": self._word, "done": self._done}, silent=("ping",))

        def _word(self, frame: Fields) -> Iterable[Output]:
            return self.texts.piece(text(frame, "word"))

        def _done(self, frame: Fields) -> Iterable[Output]:
            self.report.summary = self.texts.last_text
            self.report.terminal = Terminal(succeeded=frame.get("ok") is True)
            return self.texts.pause()
"""

from dragoman.sdk._encoding.lines import LineSplitter, without_terminal_orders
from dragoman.sdk._output.diffs import unified_diff, whole_file_diff
from dragoman.sdk._output.json_lines import Handler, JsonLinesParser
from dragoman.sdk._output.mcp_names import mcp_server_of
from dragoman.sdk._output.parser import (
    NotUpdated,
    Steering,
    Steers,
    Untaken,
    Update,
    Updated,
    Updates,
    compaction_event,
    notice_event,
    plan_entry,
    text_event,
)
from dragoman.sdk._output.pending_inputs import PendingInputs
from dragoman.sdk._output.retries import Retries
from dragoman.sdk._output.session_facts import SessionFacts, version_notice
from dragoman.sdk._output.text_items import TextItems
from dragoman.sdk._output.tool_calls import FileTool, Kinds, ToolCalls, host_of, one_line
from dragoman.sdk._output.usage import (
    UsageTotals,
    add_call,
    call_usage,
    context_used,
    cost_in_dollars,
    rate_limit,
    run_usage,
    token_counts,
)
from dragoman.sdk._output.user_questions import UserQuestion, put_questions, read_answers

__all__ = [
    "FileTool",
    "Handler",
    "JsonLinesParser",
    "Kinds",
    "LineSplitter",
    "NotUpdated",
    "PendingInputs",
    "Retries",
    "SessionFacts",
    "Steering",
    "Steers",
    "TextItems",
    "ToolCalls",
    "Untaken",
    "Update",
    "Updated",
    "Updates",
    "UsageTotals",
    "UserQuestion",
    "add_call",
    "call_usage",
    "compaction_event",
    "context_used",
    "cost_in_dollars",
    "host_of",
    "mcp_server_of",
    "notice_event",
    "one_line",
    "plan_entry",
    "put_questions",
    "rate_limit",
    "read_answers",
    "run_usage",
    "text_event",
    "token_counts",
    "unified_diff",
    "version_notice",
    "whole_file_diff",
    "without_terminal_orders",
]
