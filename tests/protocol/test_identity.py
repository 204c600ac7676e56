"""Ids, near names, and when two requests are the same."""

import random
import re

import pytest
from dragoman.protocol.identity import (
    RequestDigests,
    is_adapter_type,
    is_run_id,
    near_names,
    new_instance_id,
    new_run_id,
)
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("text", ["a", "Z", "0", "run-1", "a.b_c-D9", "x" * 128])
def test_run_ids(text: str) -> None:
    assert is_run_id(text)


@pytest.mark.parametrize("text", ["", "-a", ".a", "_a", "x" * 129, "a/b", "a b", "a\n", "\na", "é", "a\x00", "run:1"])
def test_what_is_no_run_id(text: str) -> None:
    assert not is_run_id(text)


@pytest.mark.parametrize("text", ["a", "claude_code", "x" * 64, "a0_"])
def test_adapter_types(text: str) -> None:
    assert is_adapter_type(text)


@pytest.mark.parametrize("text", ["", "A", "0a", "_a", "claude-code", "x" * 65, "a\n", "ä"])
def test_what_is_no_adapter_type(text: str) -> None:
    assert not is_adapter_type(text)


def test_new_ids_are_new_and_valid() -> None:
    runs = {new_run_id() for _ in range(1000)}
    assert len(runs) == 1000
    assert all(is_run_id(run) for run in runs)
    instances = {new_instance_id() for _ in range(1000)}
    assert len(instances) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", instance) for instance in instances)


KNOWN = ["claude_code", "process", "codex", "copilot", "cursor_agent", "gemini"]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("claude", "claude_code"),
        ("claude-code", "claude_code"),
        ("Claude_Code", "claude_code"),
        ("claud_code", "claude_code"),
        ("claude_code_local", "claude_code"),
        ("codx", "codex"),
        ("gemini-cli", "gemini"),
        ("proces", "process"),
    ],
)
def test_near_names_come_best_first(name: str, first: str) -> None:
    assert near_names(name, KNOWN)[0] == first


def test_far_names_are_none() -> None:
    assert near_names("zzz", KNOWN) == []
    assert near_names("", KNOWN) == []
    assert near_names("codex", []) == []


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=10))
def test_near_names_are_known_few_and_different(name: str, known: list[str]) -> None:
    found = near_names(name, known)
    assert set(found) <= set(known)
    assert len(found) == len(set(found)) <= 3


# --- the same request


def request(order: list[int] | None = None) -> pb.ExecuteRequest:
    """Return a request with content everywhere, its maps filled in an order."""
    execute_request = pb.ExecuteRequest(run_id="run-1", adapter="process", prompt="hello", auth_token="secret-a")
    execute_request.workspace.cwd = "/somewhere"
    execute_request.relay.first_sequence = 3
    execute_request.batching.SetInParent()
    execute_request.orphan_after.FromSeconds(30)
    execute_request.labels["a"] = "b"
    for number in order or range(20):
        execute_request.env[f"KEY_{number}"] = str(number)
        execute_request.config[f"key{number}"] = number
        execute_request.config.get_or_create_struct("deep")[f"key{number}"] = "x"
    return execute_request


def test_the_order_of_maps_does_not_matter() -> None:
    digests = RequestDigests()
    shuffled = list(range(20))
    random.Random(1).shuffle(shuffled)
    assert digests.digest(request()) == digests.digest(request(shuffled))


CLEARED = {"relay", "auth_token", "batching", "orphan_after", "labels", "admission"}


@pytest.mark.parametrize("name", [field.name for field in pb.ExecuteRequest.DESCRIPTOR.fields])
def test_every_field_counts_but_those_that_do_not_change_the_run(name: str) -> None:
    digests = RequestDigests()
    one = request()
    other = request()
    change(other, name)
    assert one != other
    assert (digests.digest(one) == digests.digest(other)) is (name in CLEARED)


def change(message: pb.ExecuteRequest, name: str) -> None:
    """Make one field, of whatever type, different from what ``request`` puts there."""
    field = message.DESCRIPTOR.fields_by_name[name]
    if name in {"labels", "env"}:
        getattr(message, name)["CHANGED"] = "yes"
    elif name in {"skills", "mcp_servers", "attachments"}:
        getattr(message, name).add().name = "changed"
    elif name == "required_capabilities":
        message.required_capabilities.append(event_pb2.FEATURE_RESUME)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if message.HasField(name):  # type: ignore[arg-type]  # the name is one of its fields
            message.ClearField(name)  # type: ignore[arg-type]  # as above
        else:
            getattr(message, name).SetInParent()
    elif field.type == FieldDescriptor.TYPE_BOOL:
        setattr(message, name, True)
    else:
        setattr(message, name, f"{getattr(message, name)}-changed")


def test_unknown_fields_of_a_later_revision_count_too() -> None:
    digests = RequestDigests()
    later = pb.ExecuteRequest.FromString(request().SerializeToString() + b"\xfa\x3f\x01x")
    assert digests.digest(later) != digests.digest(request())


def test_digests_mean_nothing_to_another_process() -> None:
    assert RequestDigests().digest(request()) != RequestDigests().digest(request())


def test_digesting_leaves_the_request_alone() -> None:
    execute_request = request()
    RequestDigests().digest(execute_request)
    assert execute_request == request()
