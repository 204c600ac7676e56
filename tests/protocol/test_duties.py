"""Who does what: the table is complete, names what exists, and is the one that the contract's comments show."""

import json
import re
from pathlib import Path

import pytest
from dragoman.protocol.duties import ALL_DUTIES, declarations, duties, fields, is_set, meanings, unsupported
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2
from google.protobuf.descriptor import Descriptor

PROTO = Path(__file__).parents[2] / "proto/dragoman/v1"
STUBS = Path(pb.__file__).parent
REQUEST = pb.ExecuteRequest.DESCRIPTOR
ROWS = {rule.name for rule in fields()}


def uncovered(message: Descriptor, prefix: str = "") -> set[str]:
    """Return the fields that have no row, neither themselves nor by all fields of their message."""
    found = set()
    for field in message.fields:
        path = f"{prefix}{field.name}"
        if path in ROWS:
            continue
        inner = field.message_type if any(row.startswith(f"{path}.") for row in ROWS) else None
        found |= uncovered(inner, f"{path}.") if inner is not None else {path}
    return found


def test_each_field_of_a_request_has_a_row() -> None:
    """Red? A new field needs a row in duties.json that says who honours it."""
    assert uncovered(REQUEST) == set()


@pytest.mark.parametrize("rule", fields(), ids=lambda rule: rule.name)
def test_each_row_is_about_a_field(rule: object) -> None:
    name = getattr(rule, "name", "")
    message: Descriptor | None = REQUEST
    *path, last = name.split(".")
    for part in path:
        assert message is not None
        message = message.fields_by_name[part].message_type
    assert message is not None
    assert last in message.fields_by_name
    assert [one.name for one in fields()].count(name) == 1


@pytest.mark.parametrize("rule", [*fields(), *duties()], ids=lambda rule: rule.name)
def test_what_declares_it_can_be_declared(rule: object) -> None:
    who, declared_by = getattr(rule, "who", ""), getattr(rule, "declared_by", ())
    assert who in meanings()
    assert bool(declared_by) == (who in {"adapter_or_router", "adapter_or_refused"}) or who == "optional"
    known = {*pb.Duty.keys(), *event_pb2.Feature.keys(), *event_pb2.PermissionMode.keys()}
    assert set(declared_by) <= known | set(pb.DescribeResponse.DESCRIPTOR.fields_by_name)


def test_each_duty_that_can_be_declared_is_in_the_table() -> None:
    named = {name for rule in (*fields(), *duties()) for name in rule.declared_by}
    assert {pb.Duty.Name(duty) for duty in ALL_DUTIES} <= named
    assert len(ALL_DUTIES) == len(pb.Duty.keys()) - 1


def test_the_comment_of_the_request_has_the_same_table() -> None:
    comment = (PROTO / "adapter.proto").read_text(encoding="utf-8").partition("\nmessage ExecuteRequest")[0]
    table = comment.rpartition("// | --- | --- |\n")[2]
    shown = [names.split(", ") for names in re.findall(r"^// \| [^|]+ \| ([^|]+) \|$", table, re.MULTILINE)]
    assert shown == [[rule.name for rule in fields() if rule.who == who] for who in meanings()]


@pytest.mark.parametrize("name", ["duties.json", "order.json"])
def test_what_is_beside_the_stubs_is_what_is_beside_the_contract(name: str) -> None:
    """Red? ``make proto``."""
    assert (STUBS / name).read_bytes() == (PROTO / name).read_bytes()


def described(**fields_of: object) -> frozenset[str]:
    return declarations(pb.DescribeResponse(**fields_of))  # type: ignore[arg-type]  # whatever a test gives


def test_what_a_description_declares() -> None:
    capabilities = event_pb2.Capabilities(permission_mode=event_pb2.PERMISSION_MODE_STRICT)
    capabilities.items.add(feature=event_pb2.FEATURE_SKILLS)
    declared = described(
        duties=[pb.DUTY_LIMITS], capabilities=capabilities, batching=True, config_schema_json='{"type": "object"}'
    )
    assert declared == {
        *("DUTY_LIMITS", "FEATURE_SKILLS", "PERMISSION_MODE_STRICT"),
        *("batching", "config_schema_json"),
    }


def test_what_a_later_revision_declares_is_left_out() -> None:
    duty_99 = b"\x68\x63"
    later = pb.DescribeResponse.FromString(pb.DescribeResponse(duties=[pb.DUTY_LIMITS]).SerializeToString() + duty_99)
    assert len(later.duties) == 2
    assert "DUTY_LIMITS" in declarations(later)


@pytest.mark.parametrize(
    ("request_", "path", "expected"),
    [
        (pb.ExecuteRequest(), "model", False),
        (pb.ExecuteRequest(model="m"), "model", True),
        (pb.ExecuteRequest(prompt=""), "prompt", True),
        (pb.ExecuteRequest(skills=[pb.Skill()]), "skills", True),
        (pb.ExecuteRequest(instructions=pb.Instructions()), "instructions", False),
        (pb.ExecuteRequest(instructions=pb.Instructions(text="t")), "instructions", True),
        (pb.ExecuteRequest(session=pb.SessionSelector(fresh=True)), "session.fork", False),
        (pb.ExecuteRequest(session=pb.SessionSelector(fork=True)), "session.fork", True),
        (pb.ExecuteRequest(permissions=event_pb2.Permissions(interactive=True)), "permissions.rules", False),
    ],
)
def test_whether_a_field_is_set(request_: pb.ExecuteRequest, path: str, expected: bool) -> None:
    assert is_set(request_, path) == expected


def test_every_field_that_an_adapter_may_reject_is_found() -> None:
    request = pb.ExecuteRequest(
        system_prompt="s",
        instructions=pb.Instructions(text="t"),
        skills=[pb.Skill(name="s")],
        mcp_servers=[pb.McpServer(name="m")],
        model="m",
        session=pb.SessionSelector(handle=event_pb2.SessionHandle(native_id="n"), fork=True),
        permissions=event_pb2.Permissions(
            rules=[event_pb2.PermissionRule()],
            default_decision=event_pb2.PERMISSION_DECISION_ALLOW,
            native_mode="n",
            auto_approve=True,
        ),
        track_changes=True,
        attachments=[pb.Attachment()],
    )
    request.config["a"] = 1
    expected = [rule.name for rule in fields() if rule.who == "adapter_or_refused"]
    assert [rule.name for rule in unsupported(request, frozenset())] == expected
    everything = frozenset(name for rule in fields() for name in rule.declared_by)
    assert unsupported(request, everything) == []


def test_the_table_has_no_row_that_no_one_reads() -> None:
    table = json.loads((PROTO / "duties.json").read_text(encoding="utf-8"))
    assert set(table) == {"about", "who", "fields", "duties"}
    rows = [*table["fields"], *table["duties"]]
    assert {key for row in rows for key in row} == {"field", "duty", "who", "declared_by", "rule"}
