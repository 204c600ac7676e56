"""Agents that a router stores: kept, changed by version, deleted, and run by name."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.conformance.check import check, expect
from dragoman.conformance.kit import Kit, ask_router, expect_reason, refusal
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2, router_pb2

_SECRET = "k7Qz-9fRw2-conformance-Xy31"  # noqa: S105 - made up
_ABSENT = "conformance-no-such-agent"


def _agent(kit: Kit) -> router_pb2.StoredAgent:
    """Return an agent of a new name, not stored yet."""
    name = f"conformance-{secrets.token_hex(6)}"
    return router_pb2.StoredAgent(name=name, adapter=kit.adapter, description="Of the kit.", labels={"kit": name})


@asynccontextmanager
async def _stored(kit: Kit) -> AsyncIterator[router_pb2.StoredAgent]:
    """Store an agent; it is deleted in the end."""
    sent = _agent(kit)
    created = (await ask_router(kit, "CreateAgent", agent=sent)).agent
    try:
        expect(created.name == sent.name, f"CreateAgent answers the agent {created.name!r}")
        expect(created.version == 1, f"a new agent has the version {created.version}")
        yield created
    finally:
        await ask_router(kit, "DeleteAgent", name=sent.name)


async def _listed(kit: Kit) -> dict[str, router_pb2.StoredAgent]:
    found, token = {}, ""
    while True:
        page = await ask_router(kit, "ListAgents", page_token=token)
        found.update({agent.name: agent for agent in page.agents})
        if not (token := page.next_page_token):
            return found


@check("router.agents")
async def agents(kit: Kit) -> None:
    """Store an agent, read it, list all, and delete it."""
    async with _stored(kit) as created:
        read = (await ask_router(kit, "GetAgent", name=created.name)).agent
        expect(read == created, "GetAgent answers another agent than CreateAgent")
        expect(read.description == "Of the kit.", "an agent is not stored as it was sent")
        expect((await _listed(kit)).get(created.name) == created, "ListAgents does not list an agent as it is stored")
    expect(created.name not in await _listed(kit), "an agent that was deleted is listed")


@check("router.agent-exists")
async def agent_exists(kit: Kit) -> None:
    """Store two agents with one name."""
    async with _stored(kit) as created:
        second = router_pb2.StoredAgent(name=created.name, adapter=kit.adapter)
        expect_reason(await refusal(ask_router(kit, "CreateAgent", agent=second)), Reason.AGENT_EXISTS)


@check("router.agent-unknown")
async def agent_unknown(kit: Kit) -> None:
    """Get, change and delete an agent that never was, and run it."""
    absent = _agent(kit)
    absent.name = _ABSENT
    expect_reason(await refusal(ask_router(kit, "GetAgent", name=_ABSENT)), Reason.AGENT_NOT_FOUND)
    absent.version = 1
    expect_reason(await refusal(ask_router(kit, "UpdateAgent", agent=absent)), Reason.AGENT_NOT_FOUND)
    await ask_router(kit, "DeleteAgent", name=_ABSENT)
    request = kit.request()
    request.agent_name = _ABSENT
    expect_reason(await kit.rejected(request), Reason.AGENT_NOT_FOUND)


@check("router.agent-version")
async def agent_version(kit: Kit) -> None:
    """Change an agent, then again as if it had not been changed, and delete it so."""
    async with _stored(kit) as created:
        changed = router_pb2.StoredAgent()
        changed.CopyFrom(created)
        changed.labels["kit"] = "changed"
        updated = (await ask_router(kit, "UpdateAgent", agent=changed)).agent
        expect(updated.version == 2, f"a changed agent has the version {updated.version}")
        expect_reason(await refusal(ask_router(kit, "UpdateAgent", agent=created)), Reason.VERSION_MISMATCH)
        stale = ask_router(kit, "DeleteAgent", name=created.name, version=1)
        expect_reason(await refusal(stale), Reason.VERSION_MISMATCH)
        left = (await ask_router(kit, "GetAgent", name=created.name)).agent
        expect(left.labels["kit"] == "changed", "an agent is changed or lost by a call with an earlier version")


@check("router.agent-secret")
async def agent_secret(kit: Kit) -> None:
    """Store an agent with a secret in it."""
    agent = _agent(kit)
    agent.env["CONFORMANCE_TOKEN"] = _SECRET
    error = await refusal(ask_router(kit, "CreateAgent", agent=agent))
    expect_reason(error, Reason.INVALID_REQUEST)
    expect(_SECRET not in error.message, "the refusal holds the secret")
    expect(bool(error.violations), "BadRequest names no field")


@check("router.agent-run")
async def agent_run(kit: Kit) -> None:
    """Run an agent by its name."""
    async with _stored(kit) as created:
        run = await _ran(kit, created, agent_name=created.name)
        expect(run.labels["kit"] == created.name, "a run does not get the labels of its agent")
        found = (await ask_router(kit, "ListRuns", agent_name=created.name)).runs
        expect([item.run_id for item in found] == [run.run_id], "ListRuns does not list a run by its agent_name")


@check("router.agent-active")
async def agent_active(kit: Kit) -> None:
    """Make an agent the active one of a task, run the task, and delete the agent."""
    async with _stored(kit) as created:
        task = created.name
        kept = (await ask_router(kit, "SetActiveAgent", task_key=task, agent_name=created.name)).previous_agent_name
        expect(not kept, f"a new task has the active agent {kept!r}")
        read = (await ask_router(kit, "GetAgent", task_key=task)).agent
        expect(read.name == created.name, f"the active agent of the task is {read.name!r}")
        await _ran(kit, created, task_key=task)
    expect_reason(await kit.rejected(_request(kit, task_key=task)), Reason.ADAPTER_REQUIRED)
    expect_reason(await refusal(ask_router(kit, "GetAgent", task_key=task)), Reason.AGENT_NOT_FOUND)


def _request(kit: Kit, **names: str) -> adapter_pb2.ExecuteRequest:
    """Return a request that names a stored agent, or a task that has one."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.ClearField("adapter")
    request.MergeFrom(adapter_pb2.ExecuteRequest(**names))  # type: ignore[arg-type]
    return request


async def _ran(kit: Kit, created: router_pb2.StoredAgent, **names: str) -> router_pb2.RunSummary:
    """Run a stored agent, and return what the router knows of the run."""
    request = _request(kit, **names)
    await kit.run(request)
    run: router_pb2.RunSummary = (await ask_router(kit, "GetRun", run_id=request.run_id)).run
    expect(run.adapter == kit.described.adapter, f"a run of a stored agent is of the adapter {run.adapter!r}")
    expect(run.agent_name == created.name, f"GetRun: agent_name is {run.agent_name!r}")
    return run
