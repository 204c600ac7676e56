"""The README's example of an adapter."""

from dragoman.sdk import AdapterInfo, CommandLineAdapter, Job, Parser, Plan, Report, capabilities, log_event, serve
from dragoman.v1 import event_pb2 as pb


class ShoutParser:
    """Every line that begins with "> " is the agent's answer; the rest is a log."""

    def __init__(self):
        self.report = Report(has_output=True)

    def line(self, stream, line):
        text = line.data.decode("utf-8", "replace")
        if not text.startswith("> "):
            return [log_event(stream, line)]
        self.report.summary = text[2:]
        return [pb.AgentEvent(text=pb.Text(item_id="answer", delta=text[2:] + "\n"))]

    def finish(self):
        return []


class ShoutAdapter(CommandLineAdapter):
    executables = ("sed",)
    needs_terminal = False  # the exit code says how it went

    def info(self) -> AdapterInfo:
        return AdapterInfo(
            type="shout",
            label="Shout",
            version="1",
            configuration_doc="Use when: you want your words back, louder. Don't use when: you want an answer.",
            config_schema={"type": "object", "additionalProperties": False, "properties": {}},
            capabilities=capabilities(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_TEXT_DELTAS),
        )

    def plan(self, job: Job) -> Plan:
        return Plan((job.executable, "s/^/> /; s/$/!/"), stdin=job.prompt.encode())

    def parser(self, job: Job) -> Parser:
        return ShoutParser()


if __name__ == "__main__":
    serve(ShoutAdapter())
