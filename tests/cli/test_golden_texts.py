"""What people read of each event and of each result, whatever their fields hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.cli.display import summary
from dragoman.cli.display.renderer import Renderer
from dragoman.testkit.fakes.adapter import EventFactory
from dragoman.v1 import event_pb2 as pb
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"
EMPTY = {"batch"}
"""Bodies that the renderer never gets."""


def filled(message: Message, *, number: int = 3, words: str = "", depth: int = 3) -> Any:
    """Return the message with a value in each of its fields; lists get two."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and (not depth or field.message_type.GetOptions().map_entry):
            continue
        if _is_second_choice(field):
            continue
        if field.is_repeated:
            for _ in range(2):
                if field.message_type is not None:
                    filled(getattr(message, field.name).add(), number=number, words=words, depth=depth - 1)
                else:
                    getattr(message, field.name).append(_value(field, number, words))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            filled(getattr(message, field.name), number=number, words=words, depth=depth - 1)
        else:
            setattr(message, field.name, _value(field, number, words))
    return message


def _is_second_choice(field: Any) -> bool:
    choice = field.containing_oneof
    return choice is not None and not choice.name.startswith("_") and choice.fields[0].name != field.name


def _value(field: Any, number: int, words: str) -> Any:
    if field.enum_type is not None:
        values = field.enum_type.values
        return values[number % len(values)].number
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = f"{field.name}{words}"
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return number % 2 == 1
    return number * 1000


def variants(make: Any) -> Iterator[tuple[str, Any]]:
    """Yield messages of one kind: empty, with everything, with each value of its enums, and with long texts."""
    yield "empty", make()
    for number in range(1, 13):
        yield f"filled {number}", filled(make(), number=number)
    yield "long", filled(make(), words=" and on and on" * 200)
    yield "lines", filled(make(), words="\n\x1b[31mred" * 12)


def rendered(event: pb.AgentEvent, *, debug: bool) -> str:
    renderer = Renderer(debug=debug)
    segments = [*renderer.render(event), *renderer.break_line()]
    shown = "".join(f"<{segment.style.name}>{segment.text}" if segment.text != "\n" else "\n" for segment in segments)
    return "\n".join(f"{row[:120]}… {len(row)}" if len(row) > 160 else row for row in shown.split("\n"))


def event_lines() -> Iterator[str]:
    for field in pb.AgentEvent.DESCRIPTOR.oneofs_by_name["body"].fields:
        if field.name in EMPTY:
            continue
        seen = set()
        for name, body in variants(type(getattr(pb.AgentEvent(), field.name))):
            event = EventFactory("run-1").event(**{field.name: body})
            for debug in (False, True):
                shown = rendered(event, debug=debug)
                if shown not in seen:
                    yield f"## {field.name}, {name}{', debug' if debug else ''}\n{shown}"
                seen.add(shown)


def test_what_is_shown_of_each_event() -> None:
    assert_golden(GOLDEN / "events.txt", "\n".join(event_lines()) + "\n")


def results() -> Iterator[tuple[str, pb.Result]]:
    for outcome in pb.Outcome.values():
        yield pb.Outcome.Name(outcome), pb.Result(outcome=outcome)
        for dead in (False, True):
            yield f"{pb.Outcome.Name(outcome)}, dead: {dead}", pb.Result(outcome=outcome, tree_confirmed_dead=dead)
    yield from variants(pb.Result)
    counted = pb.ModelUsage(tokens=pb.TokenCounts(input=1, output=2, cache_read=3))
    for name, models in (("two models", [counted, counted]), ("one that is unknown", [counted, pb.ModelUsage()])):
        yield name, pb.Result(usage=pb.Usage(models=models))
    partly = pb.ModelUsage(tokens=pb.TokenCounts(output=5))
    yield "partly unknown", pb.Result(usage=pb.Usage(models=[counted, partly]))


def test_the_summary_of_each_result() -> None:
    lines = (
        f"{name}: {summary.last_line(result, 'run-1')[:200]}; {summary.processes(result)};"
        f" exit {summary.exit_code(result)}, {summary.outcome_style(result).name},"
        f" unconfirmed: {summary.has_unconfirmed_processes(result)}, dead: {summary.is_confirmed_dead(result)}"
        for name, result in results()
    )
    assert_golden(GOLDEN / "summaries.txt", "\n".join(lines) + "\n")
