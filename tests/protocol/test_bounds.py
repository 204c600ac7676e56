"""The table of bounds: said in the contract's comments, and looked up without parsing."""

import re
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.bounds import (
    BOUNDS,
    DEEPEST,
    MOST_VALUES,
    Bound,
    _layout,
    check_request,
    first_violation,
    wrong_duration,
)
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import MAX_REQUEST_BYTES
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

PROTO = "\n".join(path.read_text() for path in sorted(Path("proto/dragoman/v1").glob("*.proto")))
WELL_KNOWN = {"Struct", "ListValue", "Value"}
BOUNDED = {name.split(".")[0] for name in BOUNDS} - {"*"} - WELL_KNOWN | {"DetectRequest", "DetectResponse"}


def comment(message: str, field: str) -> str:
    """Return the comment before a field; of ``*`` the first field of that name that has a message of its own."""
    body = PROTO[PROTO.index(f"message {message} {{") :] if message != "*" else PROTO
    found = re.search(rf"((?:^ *//.*\n)+) *[^/\n]*\b{field} = \d+;", body, re.MULTILINE)
    assert found is not None, (message, field)
    return found[1]


def shown(number: int) -> str:
    if number >= MAX_REQUEST_BYTES:
        return "16 MiB"
    if number >= 1024 * 1024:
        return f"{number // (1024 * 1024)} MiB"
    return f"{number // 1024} KiB" if number > 1024 else f"{number:,}"


@pytest.mark.parametrize("name", [name for name in BOUNDS if name[0] != "*" and name.split(".")[0] not in WELL_KNOWN])
def test_the_contract_says_each_bound(name: str) -> None:
    message, _, field = name.partition(".")
    bound, usual = BOUNDS[name], Bound()
    text = comment(message, field)
    if message in {"SkillFiles", "Fallback"}:
        bound = Bound(entries=bound.entries)  # their texts are bounded by the request, or are adapters' names
    for number, default in ((bound.entries, usual.entries), (bound.text_bytes, usual.text_bytes)):
        assert number == default or shown(number) in text or str(number) in text


@pytest.mark.parametrize("field", ["env", "labels", "task_key"])
def test_the_contract_says_the_bounds_of_fields_that_many_messages_have(field: str) -> None:
    bound = BOUNDS[f"*.{field}"]
    text = comment("ExecuteRequest", field)
    assert shown(bound.text_bytes) in text
    assert bound.entries == Bound().entries or f"{bound.entries:,}" in text


STATED = [
    (message.name, field.name)
    for file in (pb.DESCRIPTOR, event_pb2.DESCRIPTOR)
    for message in file.message_types_by_name.values()
    for field in message.fields
    if message.name in BOUNDED and re.search(r"[Aa]t most \d", comment(message.name, field.name))
    if field.name != "path"  # says how large the file may be
]


def size(text: str) -> int:
    number, _, unit = text.partition(" ")
    return int(number.replace(",", "")) * {"bytes": 1, "KiB": 1024, "MiB": 1024 * 1024}[unit]


@pytest.mark.parametrize(("message", "field"), STATED)
def test_what_the_contract_says_of_a_field_is_its_bound(message: str, field: str) -> None:
    kind = {**pb.DESCRIPTOR.message_types_by_name, **event_pb2.DESCRIPTOR.message_types_by_name}[message]
    described = kind.fields_by_name[field]
    bound = _layout(kind).fields[described.number].bound
    text = re.sub(r"\s*//", "", comment(message, field)).replace("\n", " ")
    of_text = (
        r"[Aa]t most ([\d,]+ (?:bytes|KiB|MiB))" if not described.is_repeated else r"(?:values )?of ([\d,]+ \w+) each"
    )
    for pattern, set_to in (
        (of_text, bound.text_bytes),
        (r"names of ([\d,]+ bytes)", bound.name_bytes),
        (r"and ([\d,]+ KiB) in total", bound.total_bytes),
        (r"values of ([\d,]+ bytes)", bound.text_bytes),
    ):
        if found := re.search(pattern, text):
            assert size(found[1]) == set_to, pattern
    if described.is_repeated:
        found = re.search(r"[Aa]t most ([\d,]+)\b", text)
        assert found is not None
        assert size(f"{found[1]} bytes") == bound.entries


def violated(**fields: Any) -> tuple[str, str]:
    violation = first_violation(pb.ExecuteRequest.DESCRIPTOR, pb.ExecuteRequest(**fields).SerializeToString())
    assert violation is not None
    return violation.path, violation.description


def test_a_violation_names_the_field_as_people_write_it_and_its_bound() -> None:
    kib = 1024
    nested: dict[str, Any] = {"a": {"b": [{"c": 1}]}}
    for _ in range(DEEPEST):
        nested = {"n": nested}
    assert [
        violated(run_id="x" * 257),
        violated(agent=pb.Agent(id="x" * 513)),
        violated(mcp_servers=[pb.McpServer(), pb.McpServer(http=pb.McpHttp(url="x" * (8 * kib + 1)))]),
        violated(workspace=pb.Workspace(additional_directories=["", "x" * (4 * kib + 1)])),
        violated(labels={"n" * 129: ""}),
        violated(labels={"n": "x" * (kib + 1)}),
        violated(env={f"{n}": "x" * 100 * kib for n in range(6)}),
        violated(fallback=pb.Fallback(on=[event_pb2.FAILURE_KIND_AUTH_REQUIRED] * 65)),
        violated(config={"k" * (kib + 1): 1}),
        violated(config={"k": [0] * (MOST_VALUES + 1)}),
        violated(limits=event_pb2.Limits(wall=Duration(seconds=-1))),
        violated(config=nested)[1:],
    ] == [
        ("run_id", "must not be longer than 256 bytes"),
        ("agent.id", "must not be longer than 512 bytes"),
        ("mcp_servers[1].http.url", "must not be longer than 8,192 bytes"),
        ("workspace.additional_directories[1]", "must not be longer than 4,096 bytes"),
        ("labels", "a name in it must not be longer than 128 bytes"),
        ("labels.n", "must not be longer than 1,024 bytes"),
        ("env", "its names and values must not have more than 524,288 bytes together"),
        ("fallback.on", "must not have more than 64 entries"),
        ("config", "a name in it must not be longer than 1,024 bytes"),
        ("config.k", "the objects of the request have more than 2,000 values together; the one too many is here"),
        ("limits.wall", "must not be negative"),
        ("must not be nested more than 32 levels deep",),
    ]


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_are_left_to_the_parser(data: bytes) -> None:
    violation = first_violation(pb.ExecuteRequest.DESCRIPTOR, data)
    try:
        request = pb.ExecuteRequest.FromString(data)
    except DecodeError:
        return
    if violation is not None:  # so short a one can only have a wrong duration
        again = first_violation(pb.ExecuteRequest.DESCRIPTOR, request.SerializeToString())
        assert "must not be" in violation.description
        assert again is None or again.path == violation.path


def test_a_bound_is_what_is_still_taken() -> None:
    bound = BOUNDS["*.labels"]
    fits = pb.ExecuteRequest(labels={f"{n:0128}": "x" * bound.text_bytes for n in range(bound.entries)})
    check_request(pb.ExecuteRequest.DESCRIPTOR, fits.SerializeToString())
    fits.labels["one more"] = ""
    with pytest.raises(DragomanError) as caught:
        check_request(pb.ExecuteRequest.DESCRIPTOR, fits.SerializeToString())
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert str(caught.value).startswith("labels: must not have more than 64 entries")


@pytest.mark.parametrize(
    ("seconds", "nanos", "is_right"),
    [
        (0, 0, True),
        (315_360_000, 0, True),
        (315_360_001, 0, False),
        (1 << 62, 0, False),
        (1, -1, False),
        (-1, 1, False),
        (0, 999_999_999, True),
        (0, 1_000_000_000, False),
    ],
)
def test_durations(seconds: int, nanos: int, is_right: bool) -> None:
    sent = Duration(seconds=seconds, nanos=nanos)
    assert (wrong_duration(sent) is None) is is_right
    request = pb.CancelRequest(run_id="r", grace=sent)
    violation = first_violation(pb.CancelRequest.DESCRIPTOR, request.SerializeToString())
    assert (violation is None) is is_right
