"""An adapter that declares no duty: what the router does for its runs, or refuses."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.duties import ALL_DUTIES, is_set
from dragoman.protocol.errors import Reason
from dragoman.router.policy.duties import rewritten
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import Caller, Stream, config, routing
from tests.router.sidecar import Sidecar, serving

DONE = json.dumps([{"end": "SUCCEEDED"}])
CLOSED = '{"properties": {"speed": {}}, "additionalProperties": false}'


@contextlib.asynccontextmanager
async def bare(folder: Path, **fields: Any) -> AsyncIterator[tuple[Caller, Sidecar]]:
    """A router in front of an adapter that declares no duty."""
    sidecar, address = Sidecar("fake", duties=fields.pop("duties", ()), **fields), f"unix:{folder}/a.sock"
    async with serving(sidecar, address), routing(config(folder, addresses=(address,))) as (_router, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        yield caller, sidecar


def execute(caller: Caller, **fields: Any) -> Stream:
    fields = {"adapter": "fake", "prompt": DONE, **fields}
    return Stream(caller.adapter.Execute(pb.ExecuteRequest(**fields)))


def codes(events: list[event_pb2.AgentEvent]) -> list[str]:
    return [event.notice.code for event in events if event.HasField("notice")]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("model", {"model": "m"}),
        ("system_prompt", {"system_prompt": "s"}),
        ("instructions", {"instructions": pb.Instructions(text="t")}),
        ("skills", {"skills": [pb.Skill(name="s")]}),
        ("mcp_servers", {"mcp_servers": [pb.McpServer(name="m")]}),
        ("config", {"config": {"speed": 1}}),
        ("permissions.auto_approve", {"permissions": event_pb2.Permissions(auto_approve=True)}),
        (
            "session.handle",
            {"session": pb.SessionSelector(handle=event_pb2.SessionHandle(adapter="fake", native_id="s"))},
        ),
    ],
)
async def test_what_an_adapter_does_not_declare_is_refused_before_it_gets_it(
    folder: Path, path: str, fields: dict[str, Any]
) -> None:
    async with bare(folder) as (caller, sidecar):
        error = await execute(caller, **fields).error()
        assert error.reason is Reason.NOT_SUPPORTED
        assert [item.path for item in error.violations] == [path]
        assert sidecar.requests("Execute") == []


async def test_a_missing_capability_is_refused_and_a_declared_one_is_no_longer_asked_for(folder: Path) -> None:
    declared, missing = event_pb2.FEATURE_PROMPT, event_pb2.FEATURE_FORK
    async with bare(folder, features=[declared]) as (caller, sidecar):
        error = await execute(caller, required_capabilities=[declared, missing]).error()
        assert error.reason is Reason.CAPABILITY_MISSING
        assert error.metadata == {"missing": "FEATURE_FORK"}
        later = pb.ExecuteRequest(adapter="fake", prompt=DONE).SerializeToString() + b"\xd2\x01\x02\x8f\x4e"
        error = await Stream(caller.adapter.Execute(pb.ExecuteRequest.FromString(later))).error()
        assert error.metadata == {"missing": "9999"}
        await execute(caller, required_capabilities=[declared]).rest()
        (got,) = sidecar.requests("Execute")
        assert not got.required_capabilities


async def test_a_setting_that_a_closed_schema_lacks_is_refused(folder: Path) -> None:
    async with bare(folder, schema=CLOSED) as (caller, sidecar):
        error = await execute(caller, config={"speed": 1, "height": 2}).error()
        assert error.reason is Reason.INVALID_REQUEST
        assert [item.path for item in error.violations] == ["config.height"]
        await execute(caller, config={"speed": 1}).rest()
        assert len(sidecar.requests("Execute")) == 1


async def test_a_fallback_adapter_that_cannot_honour_the_request_is_skipped(folder: Path) -> None:
    first, second = Sidecar("one", features=[event_pb2.FEATURE_SYSTEM_PROMPT]), Sidecar("two", duties=())
    addresses = (f"unix:{folder}/1.sock", f"unix:{folder}/2.sock")
    async with (
        serving(first, addresses[0]),
        serving(second, addresses[1]),
        routing(config(folder, addresses=addresses)) as (_router, caller),
    ):
        for name in ("one", "two"):
            await caller.until(name, router_pb2.ADAPTER_STATE_READY)
        fallback = pb.Fallback(adapters=["two"], on=[event_pb2.FAILURE_KIND_AUTH_REQUIRED])
        prompt = json.dumps([{"failed": "AUTH_REQUIRED"}])
        events = await execute(caller, adapter="one", prompt=prompt, system_prompt="s", fallback=fallback).rest()
        assert "fallback_refused" in codes(events)
        assert events[-1].result.failure.kind == event_pb2.FAILURE_KIND_AUTH_REQUIRED
        assert second.requests("Execute") == []


async def test_a_template_reaches_the_adapter_as_a_prompt(folder: Path) -> None:
    async with bare(folder) as (caller, sidecar):
        template = '[{"says": "{{agent.name}}{{context.absent}}"}, {"end": "SUCCEEDED"}]'
        stream = execute(caller, prompt=None, prompt_template=template, agent=pb.Agent(name="Ada {{runId}}"))
        events = await stream.rest()
        assert events[-1].result.summary == "Ada {{runId}}"
        assert codes(events) == ["template_value_missing"]
        (got,) = sidecar.requests("Execute")
        assert got.WhichOneof("task") == "prompt"


async def test_values_that_are_too_long_for_a_template_are_refused(folder: Path) -> None:
    async with bare(folder) as (caller, sidecar):
        fields = {"prompt": None, "prompt_template": "{{company.big}}" * 20, "company": {"big": "x" * 1_000_000}}
        error = await execute(caller, **fields).error()
        assert error.reason is Reason.INVALID_REQUEST
        assert [item.path for item in error.violations] == ["prompt_template"]
        error = await execute(caller, prompt=None, prompt_template="{{agent}}", company={"n": float("inf")}).error()
        assert [item.path for item in error.violations] == ["prompt_template"]
        assert sidecar.requests("Execute") == []


async def test_an_adapter_that_declares_all_gets_the_request_as_it_came(folder: Path) -> None:
    async with bare(folder, duties=ALL_DUTIES) as (caller, sidecar):
        await execute(caller, prompt=None, prompt_template=DONE, model="m", required_capabilities=[9]).rest()
        (got,) = sidecar.requests("Execute")
        assert got.prompt_template == DONE
        assert got.model == "m"
        assert list(got.required_capabilities) == [9]


def test_a_request_with_neither_prompt_nor_template_gets_the_default_behind_what_is_handed_over() -> None:
    request = pb.ExecuteRequest(agent=pb.Agent(id="7", name="Ada"))
    request.session.fresh, request.session.handover = True, "Before {{runId}}."
    following, missing = rewritten(request, frozenset())
    assert following.prompt == "Before {{runId}}.\n\nYou are agent 7 (Ada). Continue your Dragoman work."
    assert not missing
    assert not is_set(following, "session.handover")
    assert following.session.fresh
    assert rewritten(request, frozenset([pb.DUTY_TEMPLATES]))[0] == request
