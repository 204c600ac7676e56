"""What an answer says, found by JSON path (RFC 9535). Pure.

Answers are untrusted: a path that finds nothing, or something of another kind, says nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from dragoman.sdk import JsonValue, Report, as_number, as_string, compact
from dragoman.v1 import event_pb2 as pb

Fields = Mapping[str, JsonValue]
State = Literal["running", "succeeded", "failed"]

DEFAULT_PATHS: Final[Mapping[str, str]] = {
    "text": "$.text",
    "delta": "$.delta",
    "thinking": "$.thinking",
    "done": "$.done",
    "ok": "$.ok",
    "error": "$.error",
    "status": "$.status",
    "statusUrl": "$.statusUrl",
    "cancelUrl": "$.cancelUrl",
    "sessionId": "$.sessionId",
    "model": "$.model",
    "output": "$.output",
    "inputTokens": "$.usage.inputTokens",
    "outputTokens": "$.usage.outputTokens",
    "cachedTokens": "$.usage.cachedTokens",
    "costUsd": "$.usage.costUsd",
}
"""Where things are, unless ``config.paths`` says otherwise."""
RUNNING: Final = ("accepted", "pending", "queued", "running", "in_progress", "processing", "started")
SUCCEEDED: Final = ("succeeded", "success", "completed", "complete", "done", "finished", "ok")
FAILED: Final = ("failed", "failure", "error", "cancelled", "canceled", "expired", "timed_out")

_TOKENS: Final = {"inputTokens": "input", "outputTokens": "output", "cachedTokens": "cache_read"}
_MOST_TOKENS: Final = 2**63 - 1
_LONGEST: Final = 256 * 1024  # characters of an answer that make the summary


class PathError(ValueError):
    """A JSON path that is none."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The compiled paths.

    Raises:
        PathError: by ``compiled``.
        ImportError: by ``compiled``: the extra is not installed.
    """

    _compiled: Mapping[str, Any]

    @classmethod
    def compiled(cls, wanted: Mapping[str, JsonValue]) -> "Paths":
        """Compile the paths that a config gives, over the defaults."""
        import jsonpath  # noqa: PLC0415 - an extra

        made = {}
        for name, text in {**DEFAULT_PATHS, **wanted}.items():
            try:
                made[name] = jsonpath.compile(str(text)) if text else None
            except jsonpath.JSONPathError as error:
                reason = str(error).strip().partition("\n")[0]
                raise PathError(f"{name}: {reason}") from error
        return cls(made)

    def find(self, name: str, fields: Fields) -> JsonValue:
        """Return the first thing that a path finds; None if it finds nothing."""
        import jsonpath  # noqa: PLC0415 - an extra

        path = self._compiled.get(name)
        if path is None:
            return None
        try:
            match = path.match(dict(fields))
        except (jsonpath.JSONPathError, RecursionError, ValueError, TypeError):
            return None
        found: JsonValue = match.obj if match is not None else None
        return found

    def text(self, name: str, fields: Fields) -> str:
        """Return the text that a path finds; other values as JSON; empty if it finds nothing."""
        value = self.find(name, fields)
        if value is None or isinstance(value, str):
            return value or ""
        return compact(value)

    def state(self, fields: Fields) -> State:
        """Say how far a task is: by its word for it, else by what is there."""
        word = self.text("status", fields).casefold()
        if word in FAILED:
            return "failed"
        if word in SUCCEEDED:
            return "succeeded"
        if word:
            return "running"  # known or not: the end has a word of its own
        return "failed" if self.failure(fields) else "succeeded"

    def failure(self, fields: Fields) -> str:
        """Return the error that an answer tells; empty if it tells none."""
        error = self.text("error", fields)
        if self.find("ok", fields) is False:
            return error or "The service says that it failed."
        return error if error not in {"false", "{}", "[]"} else ""

    def report(self, fields: Fields, report: Report) -> None:
        """Note what an answer says of the run; what it does not say stays as it is."""
        report.has_output = True
        report.session_id = as_string(self.find("sessionId", fields), report.session_id)
        report.model = as_string(self.find("model", fields), report.model)
        report.summary = self.text("text", fields)[:_LONGEST] or report.summary
        output = self.find("output", fields)
        if output is not None:
            report.structured_output_json = compact(output)
        usage = self.usage(fields)
        if usage is not None:
            report.usage = usage

    def usage(self, fields: Fields) -> pb.Usage | None:
        """Return tokens and cost; None if neither is said."""
        usage = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
        for name, ours in _TOKENS.items():
            count = self.find(name, fields)
            if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _MOST_TOKENS:
                setattr(usage.tokens, ours, count)
        cost = as_number(self.find("costUsd", fields), -1.0)
        if cost >= 0:
            usage.cost.CopyFrom(pb.Cost(amount=f"{cost:.12g}", currency="USD", basis=pb.COST_BASIS_REPORTED))
        return usage if usage.HasField("tokens") or usage.HasField("cost") else None
