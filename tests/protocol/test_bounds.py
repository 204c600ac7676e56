"""The table of bounds: said in the contract's comments, and looked up without parsing."""

import re
from pathlib import Path

import pytest
from dragoman.protocol.bounds import BOUNDS, Bound, check_request, first_violation, wrong_duration
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import MAX_REQUEST_BYTES
from dragoman.v1 import adapter_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

PROTO = "\n".join(path.read_text() for path in sorted(Path("proto/dragoman/v1").glob("*.proto")))
WELL_KNOWN = {"Struct", "ListValue", "Value"}


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
