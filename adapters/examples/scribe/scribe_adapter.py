"""An adapter for an agent that prints JSON lines, as `docs/guides/write-an-adapter.md` explains it."""

from collections.abc import Iterable

from dragoman.sdk import (
    AgentSpec,
    CommandLineAdapter,
    FailureInfo,
    Job,
    Output,
    Parser,
    Plan,
    Terminal,
    capabilities,
    serve,
)
from dragoman.sdk.fields import Fields, inner, text
from dragoman.sdk.parsing import JsonLinesParser, ToolCalls, run_usage, token_counts
from dragoman.v1 import event_pb2 as pb

KINDS = {"read": pb.TOOL_KIND_READ, "write": pb.TOOL_KIND_EDIT, "shell": pb.TOOL_KIND_EXECUTE}
TOKENS = {"input": "input", "output": "output"}


class ScribeParser(JsonLinesParser):
    """Turns lines into events: one method for each type of line. Other lines become log events."""

    def __init__(self) -> None:
        super().__init__(
            {
                "text": self._text,
                "tool_start": self._tool_start,
                "tool_end": self._tool_end,
                "done": self._done,
                "error": self._error,
            }
        )
        self._calls = ToolCalls(KINDS)

    def _text(self, frame: Fields) -> Iterable[Output]:
        return self.texts.complete(text(frame, "text"))

    def _tool_start(self, frame: Fields) -> Iterable[Output]:
        return self._calls.running(text(frame, "id"), text(frame, "name"), inner(frame, "input"))

    def _tool_end(self, frame: Fields) -> Iterable[Output]:
        return self._calls.result(text(frame, "id"), text(frame, "output"), is_error=frame.get("ok") is not True)

    def _done(self, frame: Fields) -> Iterable[Output]:
        self.report.usage = run_usage(token_counts(inner(frame, "tokens"), TOKENS))
        self.report.summary = text(frame, "summary")
        self.report.terminal = Terminal(succeeded=True)
        return ()

    def _error(self, frame: Fields) -> Iterable[Output]:
        message = text(frame, "message")
        failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, "scribe_error", (message,))
        self.report.terminal = Terminal(succeeded=False, failure=failure)
        return ()


class ScribeAdapter(CommandLineAdapter):
    """Says what the agent is and how it is run."""

    spec = AgentSpec(
        type="scribe",
        label="Scribe",
        version="1",
        executables=("scribe",),
        configuration_doc="Use when: something is to be noted. Don't use when: you want an answer.",
        config_schema={
            "type": "object",
            "additionalProperties": False,
            "properties": {"command": {"type": "string", "description": "Another executable than `scribe`."}},
        },
        capabilities=capabilities(
            pb.FEATURE_PROMPT,
            pb.FEATURE_WORKSPACE,
            pb.FEATURE_TOOL_START,
            permission_mode=pb.PERMISSION_MODE_NONE,
        ),
    )

    def plan(self, job: Job) -> Plan:
        return Plan((job.executable,), stdin=job.prompt.encode())

    def parser(self, job: Job) -> Parser:
        return ScribeParser()


def adapter() -> ScribeAdapter:
    """Return the adapter; an entry point names this."""
    return ScribeAdapter()


if __name__ == "__main__":
    serve(adapter())
