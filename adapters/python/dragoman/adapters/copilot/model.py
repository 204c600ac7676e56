"""The calls of the model: its text, its retries, its errors and the tokens that it uses. Pure.

Each method takes the data of an event, and the nested agent that it is of: empty for the main one.
"""

from collections.abc import Iterable
from typing import Final

from dragoman.adapters.copilot.classify import failure_of_error, output_limit, refusal, retry_cause
from dragoman.adapters.copilot.frames import Events, notice
from dragoman.sdk import FailureInfo, Report
from dragoman.sdk.fields import Fields, count, text
from dragoman.sdk.parsing import Retries, TextItems, add_call, call_usage, context_used, notice_event, token_counts
from dragoman.v1 import event_pb2 as pb

_TOKENS: Final = {
    "inputTokens": "input",
    "outputTokens": "output",
    "cacheReadTokens": "cache_read",
    "cacheWriteTokens": "cache_write",
    "reasoningTokens": "reasoning",
}


class ModelEvents:
    """Follows the calls of the model of one attempt."""

    def __init__(self, report: Report) -> None:
        self.texts = TextItems(once=True)
        self.retries = Retries()
        self.error: FailureInfo | None = None
        """What the main agent's last call failed of, if it did."""
        self._report = report
        self._failure: Fields = {}
        """The last ``model.call_failure`` since the model answered."""
        self._retry_count = 0
        self._context_size: int | None = None

    def turn_started(self, data: Fields, agent: str) -> Events:
        """Handle ``assistant.turn_start``."""
        del data
        if not agent:
            self._report.turns = (self._report.turns or 0) + 1
        return ()

    def call_failed(self, data: Fields, agent: str) -> Events:
        """Handle ``model.call_failure``."""
        if not agent:
            self._failure = data
        return ()

    def failed(self, data: Fields, agent: str) -> Events:
        """Handle ``session.error``."""
        if not agent:
            self.error = failure_of_error(data, self._failure)
        return [notice(pb.SEVERITY_ERROR, text(data, "errorType") or "error", text(data, "message"))]

    def retried(self, data: Fields, agent: str) -> Iterable[pb.AgentEvent]:
        """Handle ``assistant.turn_retry``."""
        yield from self.texts.retract(*self.texts.open(agent))
        if agent:
            return
        self._retry_count += 1
        reason, status = text(data, "reason"), count(self._failure, "statusCode")
        details = f"{reason or 'error'} (HTTP status {status})" if status is not None else reason
        yield from self.retries.begin(details, attempt=self._retry_count, cause=retry_cause(reason, status))

    def text_delta(self, data: Fields, agent: str) -> Events:
        """Handle ``assistant.message_delta``."""
        return self.texts.delta(text(data, "messageId") or "message", text(data, "deltaContent"), owner=agent)

    def thinking_delta(self, data: Fields, agent: str) -> Events:
        """Handle ``assistant.reasoning_delta``."""
        item_id, words = text(data, "reasoningId") or "reasoning", text(data, "deltaContent")
        return self.texts.delta(item_id, words, "thinking", owner=agent)

    def message(self, data: Fields, agent: str) -> Events:
        """Handle ``assistant.message``."""
        if not agent:
            self._report.summary = text(data, "content") or self._report.summary
        return self.texts.whole(text(data, "messageId") or "message", text(data, "content"), owner=agent)

    def thinking(self, data: Fields, agent: str) -> Events:
        """Handle ``assistant.reasoning``."""
        item_id = text(data, "reasoningId") or "reasoning"
        return self.texts.whole(item_id, text(data, "content"), "thinking", owner=agent)

    def context(self, data: Fields, agent: str) -> Events:
        """Handle ``session.usage_info``."""
        if not agent:
            self._context_size = count(data, "tokenLimit")
        return ()

    def usage(self, data: Fields, agent: str) -> Events:
        """Handle ``assistant.usage``, which ends a call."""
        call, report = _call_usage(data), self._report
        report.usage = add_call(report.usage, call)
        provider = text(data, "modelProvider")
        report.provider = report.provider if provider in {"", "other"} else provider
        if not agent:
            self._retry_count, self._failure, self.error = 0, {}, None
            if data.get("contentFilterTriggered") is True or text(data, "finishReason") == "content_filter":
                self.error = refusal(text(data, "finishReason"))
            elif text(data, "finishReason") == "length":
                self.error = output_limit()  # unless it continues, and gets a whole answer
                yield notice_event("output_limit", self.error.message)
            if self._context_size is not None:
                call.context_size = report.usage.context_size = self._context_size
            if call.HasField("context_used"):
                report.usage.context_used = call.context_used
        yield pb.AgentEvent(usage=call)


def _call_usage(data: Fields) -> pb.Usage:
    """Return what one call of the model used. Copilot counts cached tokens as input too."""
    tokens = token_counts(data, _TOKENS, input_has_cached=True)
    usage = call_usage(tokens, text(data, "model"))
    if tokens is not None:
        usage.MergeFrom(pb.Usage(context_used=context_used(tokens)))
    return usage
