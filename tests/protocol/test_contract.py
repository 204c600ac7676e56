"""What the contract's own text promises: names, comments, and a status for every reason.

buf checks the style of the files (tests/tooling); here is what buf cannot know.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf.descriptor import Descriptor, MethodDescriptor

PROTO = Path(__file__).parents[2] / "proto/dragoman/v1"
FILES = {"adapter": adapter_pb2.DESCRIPTOR, "event": event_pb2.DESCRIPTOR, "router": router_pb2.DESCRIPTOR}
SOURCES = {name: (PROTO / f"{name}.proto").read_text(encoding="utf-8") for name in FILES}

STREAM_THE_SAME_EVENTS = {"Execute", "Attach"}
NO_CONDITIONS = "No conditions beyond the common ones"

METHODS: dict[str, MethodDescriptor] = {
    f"{service.name}.{method.name}": method
    for file in FILES.values()
    for service in file.services_by_name.values()
    for method in service.methods
}


# --- the two exceptions to buf's naming rules, and no third


@pytest.mark.parametrize("name", METHODS)
def test_requests_and_responses_are_named_after_their_rpc(name: str) -> None:
    method = METHODS[name]
    assert method.input_type.name == f"{method.name}Request"
    if method.name in STREAM_THE_SAME_EVENTS:
        assert method.output_type.name == "AgentEvent"
        assert method.server_streaming
    else:
        assert method.output_type.name == f"{method.name}Response"


def test_no_message_is_the_request_or_response_of_two_rpcs() -> None:
    used: list[Descriptor] = []
    for method in METHODS.values():
        used.append(method.input_type)
        if method.name not in STREAM_THE_SAME_EVENTS:
            used.append(method.output_type)
    names = [descriptor.full_name for descriptor in used]
    assert len(names) == len(set(names))
    assert "dragoman.v1.AgentEvent" not in names


# --- comments


def declarations() -> Iterator[tuple[str, str]]:
    """Yield each declared element with the comment above it."""
    for name, source in SOURCES.items():
        comment: list[str] = []
        for line in source.splitlines():
            text = line.strip()
            if text.startswith("//"):
                comment.append(text.removeprefix("//").strip())
            elif text.startswith(("message ", "enum ", "service ", "rpc ", "oneof ")) or re.match(r".+ = \d+;", text):
                yield f"{name}: {text.split('{')[0].split('(')[0]}", "\n".join(comment)
                comment = []
            else:
                comment = []


def test_every_element_has_a_comment() -> None:
    elements = list(declarations())
    assert len(elements) > 600
    assert [element for element, comment in elements if len(comment) < 4] == []


def comment_of(declaration: str) -> str:
    (comment,) = (comment for element, comment in declarations() if element.endswith(f": {declaration}"))
    return comment


def rows(comment: str) -> list[tuple[str, str, str]]:
    """Return the rows of the table of conditions in a comment, without its heads; none for any other table."""
    found = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in comment.splitlines()
        if line.startswith("|")
    ]
    if not found or found[0] != ("condition", "status, reason", "what the caller does"):
        return []
    assert set(found[1]) == {"---"}
    return [(row[0], row[1], row[2]) for row in found[2:]]


@pytest.mark.parametrize("service", ["AdapterService", "RouterService"])
def test_a_service_states_the_conditions_common_to_its_rpcs(service: str) -> None:
    assert len(rows(comment_of(f"service {service} "))) >= 2


@pytest.mark.parametrize("name", METHODS)
def test_every_rpc_states_its_conditions(name: str) -> None:
    comment = comment_of(f"rpc {METHODS[name].name}")
    assert bool(rows(comment)) != (NO_CONDITIONS in comment)


def named_reasons() -> Iterator[tuple[str, str]]:
    """Yield (status, reason) of every row of every table."""
    for _, comment in declarations():
        for condition, status, _ in rows(comment):
            if re.match(r"OK\b", status):
                continue
            named = re.match(r"([A-Z_]+) ([A-Z_]+)(?:\s|,|$)", status)
            assert named, f"no status and reason for: {condition}"
            yield named[1], named[2]


def test_the_contract_and_the_code_name_the_same_reasons_with_the_same_statuses() -> None:
    assert set(named_reasons()) == {(reason.status.name, reason.value) for reason in Reason}
    assert grpc.StatusCode.OK not in {reason.status for reason in Reason}


# --- what the layout promises


def test_the_sequence_is_first_the_bodies_next_and_the_envelope_last() -> None:
    event = event_pb2.AgentEvent.DESCRIPTOR
    body = {field.number for field in event.oneofs_by_name["body"].fields}
    envelope = {field.number for field in event.fields} - body - {1}
    assert event.fields_by_number[1].name == "sequence"
    assert event.fields_by_number[1].type == event.fields_by_number[1].TYPE_FIXED64
    assert all(2 <= number <= 99 for number in body)
    assert all(number >= 100 for number in envelope)


@pytest.mark.parametrize("file", FILES)
def test_every_enum_has_an_unspecified_zero(file: str) -> None:
    for enum in FILES[file].enum_types_by_name.values():
        assert enum.values_by_number[0].name.endswith("_UNSPECIFIED"), enum.name


def test_what_may_be_absent_is_not_zero() -> None:
    """Counts and facts an agent may not report have presence."""
    optional = {
        "TokenCounts": ["input", "output", "cache_read", "cache_write", "reasoning"],
        "Result": ["exit_code", "tree_confirmed_dead", "usage", "failure", "duration"],
        "ToolResult": ["is_error", "exit_code", "duration"],
        "Usage": ["tokens", "cost", "context_used", "context_size"],
        "State": ["pid", "process_group_id"],
    }
    for message, names in optional.items():
        fields = event_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_name
        assert all(fields[name].has_presence for name in names), message
