"""The values in an answer, by JSON path (RFC 9535). Pure.

Answers are untrusted: a path that finds nothing, or a value of another type, reads as absent.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from dragoman.sdk import Report
from dragoman.sdk.fields import Fields, JsonValue, as_number, as_string, compact
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

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
"""The paths, unless ``config.paths`` has others."""
SUCCEEDED: Final = ("succeeded", "success", "completed", "complete", "done", "finished", "ok")
FAILED: Final = ("failed", "failure", "error", "cancelled", "canceled", "expired", "timed_out")

_TOKENS: Final = {"inputTokens": "input", "outputTokens": "output", "cachedTokens": "cache_read"}
_MOST_TOKENS: Final = 2**63 - 1
_LONGEST: Final = 256 * 1024  # characters of an answer that make the summary


class PathError(ValueError):
    """An invalid JSON path."""


class Paths(Struct, frozen=True):
    """The compiled paths.

    Raises:
        PathError: by ``compiled``.
    """

    _compiled: Mapping[str, Any]

    @classmethod
    def compiled(cls, configured: Mapping[str, JsonValue]) -> "Paths":
        """Compile the paths of a config, over the defaults."""
        import jsonpath  # noqa: PLC0415 - rarely needed

        paths = {}
        for name, text in {**DEFAULT_PATHS, **configured}.items():
            try:
                paths[name] = jsonpath.compile(str(text)) if text else None
            except jsonpath.JSONPathError as error:
                reason = str(error).strip().partition("\n")[0]
                raise PathError(f"{name}: {reason}") from error
        return cls(paths)

    def find(self, name: str, fields: Fields) -> JsonValue:
        """Return the first value that a path finds; None if it finds nothing."""
        import jsonpath  # noqa: PLC0415 - rarely needed

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
        """Return the state of a task: by its status, else by its error."""
        status = self.text("status", fields).casefold()
        if status in FAILED:
            return "failed"
        if status in SUCCEEDED:
            return "succeeded"
        if status:
            return "running"  # an unknown status is none of the final ones
        return "failed" if self.failure(fields) else "succeeded"

    def is_done(self, fields: Fields) -> bool:
        """Return whether a frame of a stream is the last."""
        return self.find("done", fields) not in (None, False, "", 0) or bool(self.failure(fields))

    def failure(self, fields: Fields) -> str:
        """Return the error of an answer; empty if it has none."""
        error = self.text("error", fields)
        if self.find("ok", fields) is False:
            return error or "The service reports a failure."
        return error if error not in {"false", "{}", "[]"} else ""

    def report(self, fields: Fields, report: Report) -> None:
        """Note the values of an answer; values that it does not have stay as they are."""
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
        """Return tokens and cost; None if the answer has neither."""
        usage = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
        for name, ours in _TOKENS.items():
            count = self.find(name, fields)
            if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _MOST_TOKENS:
                setattr(usage.tokens, ours, count)
        cost = as_number(self.find("costUsd", fields), -1.0)
        if cost >= 0:
            usage.cost.CopyFrom(pb.Cost(amount=f"{cost:.12g}", currency="USD", basis=pb.COST_BASIS_REPORTED))
        return usage if usage.HasField("tokens") or usage.HasField("cost") else None
