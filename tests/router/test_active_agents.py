"""The active agents of tasks at a router: which stored agent runs a request that names its task alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.stored import TaskId
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2

from tests.router.harness import PATIENCE_S, Caller, failure
from tests.router.store.databases import run_log
from tests.router.test_agents import World, agent, paths, world
from tests.router.test_scopes import holders, reason, user_of_its_own

__all__ = ["run_log", "user_of_its_own", "world"]


async def use(at: Caller, name: str, task: str = "t", company: str = "") -> str:
    """Set a task's agent; return the one before."""
    request = router_pb2.SetActiveAgentRequest(task_key=task, company_id=company, agent_name=name)
    return (await at.router.SetActiveAgent(request, timeout=PATIENCE_S)).previous_agent_name


async def active(at: Caller, task: str = "t", company: str = "") -> str:
    request = router_pb2.GetAgentRequest(task_key=task, company_id=company)
    return (await at.router.GetAgent(request, timeout=PATIENCE_S)).agent.name


async def run_task(world: World, run_id: str = "r", at: Caller | None = None, **fields: Any) -> pb.ExecuteRequest:
    """Run the active agent of a task; return what the adapter got."""
    return await world.ran(run_id, at, **{"agent_name": "", "task_key": "t", **fields})


async def refused(world: World, **fields: Any) -> DragomanError:
    return await world.not_run(**{"agent_name": "", "task_key": "t", **fields})


async def test_a_task_runs_its_active_agent_at_any_router(world: World) -> None:
    await world.create(model="m", labels={"team": "core"})
    await world.create(name="writer", model="w")
    assert await use(world.caller, "reviewer") == ""
    assert await active(world.other) == "reviewer"
    assert (await run_task(world, "r1", world.other)).model == "m"
    run = (await world.caller.run("r1")).run
    assert (run.agent_name, run.task_key, dict(run.labels)) == ("reviewer", "t", {"team": "core"})
    assert await use(world.other, "writer") == "reviewer"
    assert (await run_task(world, "r2")).model == "w"
    for name, run_id in (("reviewer", "r1"), ("writer", "r2")):
        listed = await world.other.router.ListRuns(router_pb2.ListRunsRequest(agent_name=name))
        assert [run.run_id for run in listed.runs] == [run_id]
    assert await use(world.caller, "") == "writer"
    assert await use(world.caller, "") == ""
    assert (await refused(world)).reason is Reason.ADAPTER_REQUIRED


async def test_a_request_that_names_an_adapter_or_an_agent_gets_that(world: World) -> None:
    await world.create(model="m")
    await world.create(name="writer", model="w")
    await use(world.caller, "reviewer")
    assert (await run_task(world, "r1", adapter="fake")).model == ""
    assert (await world.caller.run("r1")).run.agent_name == ""
    assert (await run_task(world, "r2", agent_name="writer")).model == "w"


async def test_a_task_without_an_active_agent_says_what_to_do(world: World) -> None:
    error = await refused(world)
    assert error.reason is Reason.ADAPTER_REQUIRED
    assert error.message.startswith("Task 't' has no active agent; name an adapter or an agent in the request")
    assert "SetActiveAgent" in error.message
    assert "names no adapter" in (await refused(world, task_key="")).message
    request = router_pb2.GetAgentRequest(task_key="t")
    unknown = await failure(world.caller.router.GetAgent(request))
    assert unknown.reason is Reason.AGENT_NOT_FOUND
    assert "SetActiveAgent" in unknown.message


async def test_companies_have_tasks_of_their_own(world: World) -> None:
    for name in ("reviewer", "writer"):
        await world.create(name=name, model=name)
    await use(world.caller, "reviewer", company="a")
    await use(world.caller, "writer", company="b")
    for number, (company, name) in enumerate((("a", "reviewer"), ("b", "writer"))):
        assert await active(world.caller, company=company) == name
        request = await run_task(world, f"r{number}", agent=pb.Agent(company_id=company, id="x"))
        assert request.model == name
    assert (await refused(world)).reason is Reason.ADAPTER_REQUIRED
    assert (await refused(world, agent=pb.Agent(company_id="c"))).reason is Reason.ADAPTER_REQUIRED


async def test_deleting_an_agent_leaves_its_tasks_without_one(world: World) -> None:
    await world.create()
    await world.create(name="writer")
    await use(world.caller, "reviewer")
    await use(world.caller, "writer", task="other")
    await world.caller.router.DeleteAgent(router_pb2.DeleteAgentRequest(name="reviewer"))
    await world.create()
    assert (await refused(world)).reason is Reason.ADAPTER_REQUIRED, "nor is one created anew the task's"
    assert await active(world.other, task="other") == "writer"


async def test_an_unknown_agent_is_not_set(world: World) -> None:
    await world.create()
    await use(world.caller, "reviewer")
    request = router_pb2.SetActiveAgentRequest(task_key="t", agent_name="reviewr")
    error = await failure(world.caller.router.SetActiveAgent(request))
    assert (error.reason, error.metadata["did_you_mean"]) == (Reason.AGENT_NOT_FOUND, "reviewer")
    assert await active(world.caller) == "reviewer"


@pytest.mark.parametrize(
    ("rpc", "fields", "path"),
    [
        ("SetActiveAgent", {"agent_name": "reviewer"}, "task_key"),
        ("SetActiveAgent", {"agent_name": "reviewer", "task_key": "a\0"}, "task_key"),
        ("SetActiveAgent", {"agent_name": "reviewer", "task_key": "a", "company_id": "\0"}, "company_id"),
        ("SetActiveAgent", {"agent_name": "reviewer", "task_key": "x" * 513}, "task_key"),
        ("GetAgent", {"name": "reviewer", "task_key": "t"}, "task_key"),
        ("GetAgent", {"name": "reviewer", "company_id": "c"}, "company_id"),
        ("GetAgent", {"task_key": "\0"}, "task_key"),
        ("GetAgent", {"task_key": "t", "company_id": "\0"}, "company_id"),
        ("ListSessions", {"agent_name": "\0"}, "agent_name"),
    ],
)
async def test_wrong_requests_name_the_field(world: World, rpc: str, fields: dict[str, str], path: str) -> None:
    await world.create()
    request = getattr(router_pb2, f"{rpc}Request")(**fields)
    error = await failure(getattr(world.caller.router, rpc)(request))
    assert (error.reason, paths(error)) == (Reason.INVALID_REQUEST, [path])


async def test_the_same_request_joins_its_run_after_another_agent_was_set(world: World) -> None:
    for name in ("reviewer", "writer"):
        await world.create(name=name, model=name)
    await use(world.caller, "reviewer")
    await run_task(world)
    await use(world.caller, "writer")
    assert (await run_task(world, at=world.other)).model == "reviewer"
    await use(world.caller, "")
    assert (await run_task(world)).model == "reviewer"


async def test_a_request_can_only_narrow_the_active_agent(world: World) -> None:
    await world.create(permissions=event_pb2.Permissions())
    await use(world.caller, "reviewer")
    error = await refused(world, permissions=event_pb2.Permissions(auto_approve=True))
    assert (error.reason, paths(error)) == (Reason.INVALID_REQUEST, ["permissions.auto_approve"])


async def test_sessions_are_listed_by_the_agent_of_their_last_run(world: World) -> None:
    for name in ("reviewer", "writer"):
        await world.create(name=name)
    handle = '[{"set": "n1"}, {"end": "SUCCEEDED"}]'

    async def named(name: str, at: Caller) -> list[str]:
        listed = await at.router.ListSessions(router_pb2.ListSessionsRequest(agent_name=name))
        assert {session.agent_name for session in listed.sessions} <= {name}
        return [session.key.task_key for session in listed.sessions]

    await use(world.caller, "reviewer")
    await run_task(world, "r1", prompt=handle)
    await run_task(world, "r2", prompt=handle, task_key="u", agent_name="writer")
    await run_task(world, "r3", prompt=handle, task_key="v", adapter="fake")
    for at in (world.caller, world.other):
        assert await named("reviewer", at) == ["t"]
        assert await named("writer", at) == ["u"]
        assert len((await at.router.ListSessions(router_pb2.ListSessionsRequest())).sessions) == 3
    await use(world.caller, "writer")
    await run_task(world, "r4", prompt=handle)
    assert await named("reviewer", world.other) == []
    assert await named("writer", world.other) == ["t", "u"]


async def test_the_policy_applies_to_the_active_agent(folder: Path) -> None:
    policy = folder / "policy.toml"
    policy.write_text("[limits]\nwall_s = 60\n")
    async with holders(
        folder, policy=policy, runner="run:fake", reader="read", boss="admin", other="run:other"
    ) as at:
        limits = event_pb2.Limits(wall=duration_pb2.Duration(seconds=90))
        for one in (agent(), agent(name="bad", limits=limits)):
            await at["boss"].router.CreateAgent(router_pb2.CreateAgentRequest(agent=one))
        request = router_pb2.SetActiveAgentRequest(task_key="t", agent_name="reviewer")
        for name in ("runner", "reader"):
            assert await reason(at[name].router.SetActiveAgent(request)) is Reason.NOT_PERMITTED
        await at["boss"].router.SetActiveAgent(request)
        get = router_pb2.GetAgentRequest(task_key="t")
        assert (await at["reader"].router.GetAgent(get)).agent.name == "reviewer"
        assert await at["runner"].execute("", {"end": "SUCCEEDED"}, task_key="t").rest()
        refused = await at["other"].execute("", {"end": "SUCCEEDED"}, task_key="t").error()
        assert refused.reason is Reason.NOT_PERMITTED
        await at["boss"].router.SetActiveAgent(router_pb2.SetActiveAgentRequest(task_key="t", agent_name="bad"))
        denied = await at["runner"].execute("", {"end": "SUCCEEDED"}, task_key="t").error()
        assert (denied.reason, paths(denied)) == (Reason.POLICY_DENIED, ["limits.wall"])


async def test_many_routers_set_one_task_at_once(world: World) -> None:
    names = [f"a{number}" for number in range(4)]
    for name in names:
        await world.create(name=name)
    await asyncio.gather(*(use(at, name) for name in names for at in (world.caller, world.other)))
    assert await active(world.caller) in names
    assert await active(world.caller) == await active(world.other)


async def test_tasks_that_are_no_longer_used_lose_their_agent(folder: Path) -> None:
    store = Store(SqliteDatabase(folder / "runs.db"))
    await store.open()
    kept = agent(version=1)
    await store.agents.insert(kept)
    for key, used_at in (("old", 1.0), ("touched", 1.0), ("new", 9.0)):
        assert await store.active.put(TaskId("c", key), "reviewer", used_at)
    assert not await store.active.put(TaskId("c", "none"), "absent", 1.0)
    await store.active.touch(TaskId("c", "touched"), 8.0)
    assert await store.active.delete_unused(before=5.0) == 1
    found = [await store.active.get(TaskId("c", key)) for key in ("old", "touched", "new", "none")]
    assert found == [None, ("reviewer", 8.0), ("reviewer", 9.0), None]
    await store.close()
