"""What the scripted adapter reports beside its words."""

from collections.abc import Callable
from pathlib import Path

from dragoman.sdk import Report
from dragoman.sdk.parsing import add_call, call_usage, cost_in_dollars, run_usage
from dragoman.v1 import event_pb2 as pb

NESTED = pb.Lineage(subagent_id="nested-1")


def reported(step: str, value: str, report: Report) -> pb.AgentEvent:
    """Return the event of a step; what belongs to the result goes into the report."""
    return _STEPS[step](value, report)


def _model(value: str, report: Report) -> pb.AgentEvent:
    model, inputs, outputs = value.split(",")
    usage = call_usage(pb.TokenCounts(input=int(inputs), output=int(outputs)), model)
    report.usage = add_call(report.usage, usage)
    return pb.AgentEvent(usage=usage)


def _cost(value: str, report: Report) -> pb.AgentEvent:
    report.usage = run_usage()
    report.usage.cost.CopyFrom(cost_in_dollars(float(value)))
    return pb.AgentEvent(usage=report.usage)


def _change(value: str, _report: Report) -> pb.AgentEvent:
    Path(value).touch()
    change = pb.FileChange(path=value, operation=pb.FILE_OPERATION_CREATE, provenance=pb.PROVENANCE_NATIVE)
    return pb.AgentEvent(file_change=change)


def _output(value: str, _report: Report) -> pb.AgentEvent:
    return pb.AgentEvent(tool_output=pb.ToolOutput(tool_call_id="1", stream=pb.OUTPUT_STREAM_STDOUT, text=value))


_STEPS: dict[str, Callable[[str, Report], pb.AgentEvent]] = {
    "output": _output,
    "think": lambda value, _: pb.AgentEvent(thinking=pb.Thinking(item_id="thought", whole=value)),
    "plan": lambda value, _: pb.AgentEvent(plan=pb.Plan(entries=[pb.PlanEntry(content=value)])),
    "change": _change,
    "nested": lambda value, _: pb.AgentEvent(text=pb.Text(item_id="nested", whole=value), lineage=NESTED),
    "model": _model,
    "cost": _cost,
}
