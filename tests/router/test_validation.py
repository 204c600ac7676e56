"""What a router objects to in a request before anything else is done with it: the field, and what is right."""

from typing import Any

import pytest
from dragoman.router.api.validation import execute_objection, list_objection
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
EMPTY = "is empty; set task_key, agent_id or company_id, here or in the request"
KEYLESS = pb.SessionSelector(key=pb.SessionKey())


@pytest.mark.parametrize(
    ("fields", "objection"),
    [
        ({}, None),
        ({"run_id": "a.b-c_D"}, None),
        ({"run_id": ".a"}, ("run_id", f"must match {PATTERN}")),
        ({"run_id": "a" * 129}, ("run_id", f"must match {PATTERN}")),
        ({"relay": pb.Relay()}, ("relay", "is set by routers only; leave it out")),
        ({"session": KEYLESS}, ("session.key", EMPTY)),
        ({"session": KEYLESS, "task_key": "t"}, None),
        ({"session": KEYLESS, "agent": pb.Agent(id="a")}, None),
        ({"session": KEYLESS, "agent": pb.Agent(company_id="c")}, None),
        *(
            ({"session": pb.SessionSelector(key=pb.SessionKey(**{name: "x"}))}, None)
            for name in ("task_key", "agent_id", "company_id")
        ),
        ({"session": pb.SessionSelector(resume_run_id="r")}, None),
        (
            {"session": pb.SessionSelector(resume_run_id="")},
            ("session.resume_run_id", f"is not a valid run ID: {PATTERN}"),
        ),
        (
            {"limits": event_pb2.Limits(budget=event_pb2.Budget(turns=0))},
            ("limits.budget.turns", "must be from 1 to 1,000,000,000,000,000"),
        ),
        *(
            (fields, (path, "must not contain a zero byte"))
            for path, fields in {
                "task_key": {"task_key": "a\0"},
                "agent.id": {"agent": pb.Agent(id="\0")},
                "agent.company_id": {"agent": pb.Agent(company_id="\0")},
                "session.key.task_key": {"session": pb.SessionSelector(key=pb.SessionKey(task_key="\0"))},
                "session.key.agent_id": {"session": pb.SessionSelector(key=pb.SessionKey(agent_id="\0"))},
                "session.key.company_id": {"session": pb.SessionSelector(key=pb.SessionKey(company_id="\0"))},
                "labels.a": {"labels": {"a": "\0"}},
                f"labels.{'n' * 40}": {"labels": {"n" * 41 + "\0": ""}},
            }.items()
        ),
    ],
)
def test_the_first_objection(fields: dict[str, Any], objection: tuple[str, str] | None) -> None:
    assert execute_objection(pb.ExecuteRequest(adapter="fake", prompt="p", **fields)) == objection


def test_a_filter_of_a_list_has_no_zero_byte() -> None:
    assert list_objection({"task_key": "t", "agent_id": ""}) is None
    assert list_objection({"task_key": "t", "agent_id": "\0"}) == ("agent_id", "must not contain a zero byte")
