"""An adapter for newagent: it turns the JSON lines of the agent into events.

What to change for your agent: the handlers, ``KINDS``, ``spec`` and ``plan``. They do no I/O.
"""

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
from dragoman.sdk.parsing import JsonLinesParser, ToolCalls
from dragoman.v1 import event_pb2 as pb

KINDS = {"read": pb.TOOL_KIND_READ, "write": pb.TOOL_KIND_EDIT, "shell": pb.TOOL_KIND_EXECUTE}
"""The kinds of the agent's tools; other tools are of the kind OTHER."""


class NewagentParser(JsonLinesParser):
    """Turns lines into events: one method for each type of line. Other lines become log events."""

    def __init__(self) -> None:
        super().__init__(
            {
                "assistant": self._assistant,
                "tool_call": self._tool_call,
                "tool_result": self._tool_result,
                "result": self._result,
            }
        )
        self._calls = ToolCalls(KINDS)

    def _assistant(self, frame: Fields) -> Iterable[Output]:
        take = self.texts.piece if frame.get("delta") is True else self.texts.complete
        return take(text(frame, "text"))

    def _tool_call(self, frame: Fields) -> Iterable[Output]:
        yield from self.texts.pause()
        yield from self._calls.running(text(frame, "id"), text(frame, "name"), inner(frame, "input"))

    def _tool_result(self, frame: Fields) -> Iterable[Output]:
        failed = frame.get("isError") is True
        return self._calls.result(text(frame, "toolUseId"), text(frame, "content"), is_error=failed)

    def _result(self, frame: Fields) -> Iterable[Output]:
        if frame.get("isError") is False:
            self.report.summary = text(frame, "text") or self.texts.last_text
            self.report.terminal = Terminal(succeeded=True)
        else:
            failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, text(frame, "text"), "newagent_error")
            self.report.terminal = Terminal(succeeded=False, failure=failure)
        return self.texts.pause()


class NewagentAdapter(CommandLineAdapter):
    """Says what the agent is and how it is run."""

    spec = AgentSpec(
        type="newagent",
        label="Newagent",
        version="0.1.0",
        executables=("newagent",),
        install_hint="Copy newagent to a directory on the PATH.",
        configuration_doc="Use when: (say what this agent is good at). Don't use when: (and what it is not).",
        config_schema={
            "type": "object",
            "additionalProperties": False,
            "properties": {"command": {"type": "string", "description": "Another executable than newagent."}},
        },
        capabilities=capabilities(
            *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_TOOL_START), permission_mode=pb.PERMISSION_MODE_NONE
        ),
    )

    def plan(self, job: Job) -> Plan:
        """Return the command line, and what the program reads from standard input."""
        return Plan((job.executable,), stdin=job.prompt.encode())

    def parser(self, job: Job) -> Parser:
        """Return a fresh parser for an attempt."""
        return NewagentParser()


def adapter() -> NewagentAdapter:
    """Return the adapter; the entry point in pyproject.toml names this."""
    return NewagentAdapter()


if __name__ == "__main__":
    serve(adapter())
