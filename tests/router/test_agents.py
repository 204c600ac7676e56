"""Stored agents at a router: kept in its run log, and put into the requests that name them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2, struct_pb2

from tests.router.harness import PATIENCE_S, Caller, config, failure, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.store.databases import run_log
from tests.router.test_scopes import holders, reason, user_of_its_own

__all__ = ["run_log", "user_of_its_own"]

END = json.dumps([{"end": "SUCCEEDED"}])
SCHEMA = json.dumps(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "level": {"type": "integer", "maximum": 9},
            "apiKey": {"type": "string"},
            "timeoutSec": {"type": "number"},
            "cwd": {"type": "string"},
        },
    }
)
BUDGET = event_pb2.Limits(budget=event_pb2.Budget(cost="1"))
BAD_BUDGET = event_pb2.Limits(budget=event_pb2.Budget(cost="much"))
ALL_FEATURES = [value for value in event_pb2.Feature.values() if value]


class World:
    """A router, its adapter, and a second router of the same run log."""

    def __init__(self, caller: Caller, other: Caller, sidecar: Sidecar, secrets: Path) -> None:
        self.caller, self.other, self.sidecar, self.secrets = caller, other, sidecar, secrets

    async def create(self, **fields: Any) -> router_pb2.StoredAgent:
        request = router_pb2.CreateAgentRequest(agent=agent(**fields))
        return (await self.caller.router.CreateAgent(request, timeout=PATIENCE_S)).agent

    async def refused(self, **fields: Any) -> DragomanError:
        return await failure(self.caller.router.CreateAgent(router_pb2.CreateAgentRequest(agent=agent(**fields))))

    async def update(self, changed: router_pb2.StoredAgent, at: Caller | None = None) -> router_pb2.StoredAgent:
        router = (at or self.caller).router
        return (await router.UpdateAgent(router_pb2.UpdateAgentRequest(agent=changed), timeout=PATIENCE_S)).agent

    async def get(self, name: str = "reviewer", at: Caller | None = None) -> router_pb2.StoredAgent:
        router = (at or self.caller).router
        return (await router.GetAgent(router_pb2.GetAgentRequest(name=name), timeout=PATIENCE_S)).agent

    async def ran(self, run_id: str = "r", at: Caller | None = None, **fields: Any) -> pb.ExecuteRequest:
        """Run an agent; return what the adapter got."""
        request = pb.ExecuteRequest(run_id=run_id, **{"agent_name": "reviewer", "prompt": END, **fields})
        events = [event async for event in (at or self.caller).adapter.Execute(request, timeout=PATIENCE_S)]
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        return self.sidecar.runs[run_id].request

    async def not_run(self, **fields: Any) -> DragomanError:
        request = pb.ExecuteRequest(**{"agent_name": "reviewer", "prompt": END, **fields})
        return await failure(self.caller.adapter.Execute(request).read())


def agent(**fields: Any) -> router_pb2.StoredAgent:
    """Return an agent; its config may be a mapping."""
    settings = fields.pop("config", None)
    stored = router_pb2.StoredAgent(**{"name": "reviewer", "adapter": "fake", **fields})
    if settings is not None:
        stored.config.SetInParent()
        stored.config.update(settings)
    return stored


@pytest.fixture
async def world(folder: Path, run_log: str) -> AsyncIterator[World]:
    sidecar = Sidecar(features=ALL_FEATURES, schema=SCHEMA, aliases=["false"])
    address = f"unix:{folder}/a.sock"
    secrets = folder / "secrets"
    secrets.mkdir()
    common: dict[str, Any] = {"addresses": (address,), "run_log": run_log, "secrets": secrets}
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(serving(sidecar, address))
        _, caller = await held.enter_async_context(routing(config(folder, **common)))
        _, other = await held.enter_async_context(
            routing(config(folder, listen=(f"unix:{folder}/o.sock",), **common))
        )
        for one in (caller, other):
            await one.until("fake", router_pb2.ADAPTER_STATE_READY)
        yield World(caller, other, sidecar, secrets)


def paths(error: DragomanError) -> list[str]:
    return [violation.path for violation in error.violations]


async def test_an_agent_is_kept_for_all_routers_of_a_run_log(world: World) -> None:
    created = await world.create(description="Reviews.", config={"level": 3}, model="m", labels={"team": "core"})
    assert (created.version, created.created_at) == (1, created.updated_at)
    assert await world.get(at=world.other) == created
    created.model = "other"
    changed = await world.update(created, at=world.other)
    assert (changed.version, changed.model, changed.created_at) == (2, "other", created.created_at)
    assert changed.updated_at.ToNanoseconds() >= created.updated_at.ToNanoseconds()
    assert await world.get() == changed
    request = router_pb2.DeleteAgentRequest(name="reviewer", version=2)
    assert (await world.caller.router.DeleteAgent(request)).deleted
    assert not (await world.other.router.DeleteAgent(request)).deleted
    assert (await failure(world.other.router.GetAgent(router_pb2.GetAgentRequest(name="reviewer")))).reason is (
        Reason.AGENT_NOT_FOUND
    )


async def test_an_agent_outlives_its_router(folder: Path) -> None:
    async with serving(Sidecar(), f"unix:{folder}/a.sock"):
        for time in ("first", "second"):
            async with routing(config(folder, addresses=(f"unix:{folder}/a.sock",))) as (_router, caller):
                await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
                if time == "first":
                    await caller.router.CreateAgent(router_pb2.CreateAgentRequest(agent=agent()))
                got = await caller.router.GetAgent(router_pb2.GetAgentRequest(name="reviewer"))
                assert got.agent.version == 1


async def test_a_name_is_taken_once(world: World) -> None:
    await world.create()
    error = await world.refused(model="other")
    assert (error.reason, error.metadata["version"]) == (Reason.AGENT_EXISTS, "1")
    assert (await world.get()).model == ""


async def test_of_two_changes_of_one_version_one_wins(world: World) -> None:
    created = await world.create()
    calls = [
        at.router.UpdateAgent(router_pb2.UpdateAgentRequest(agent=agent(version=created.version, model=f"m{number}")))
        for number, at in enumerate([world.caller, world.other] * 4)
    ]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    answered = [one for one in outcomes if not isinstance(one, BaseException)]
    assert len(answered) == 1
    now = await world.get()
    assert (now.version, now.model) == (2, answered[0].agent.model)


async def test_another_version_is_not_replaced_or_deleted(world: World) -> None:
    created = await world.create()
    await world.update(created)
    error = await failure(world.caller.router.UpdateAgent(router_pb2.UpdateAgentRequest(agent=created)))
    assert (error.reason, error.metadata) == (Reason.VERSION_MISMATCH, {"agent": "reviewer", "version": "2"})
    stale = router_pb2.DeleteAgentRequest(name="reviewer", version=1)
    assert (await failure(world.caller.router.DeleteAgent(stale))).reason is Reason.VERSION_MISMATCH
    huge = router_pb2.DeleteAgentRequest(name="reviewer", version=2**64 - 1)
    assert (await failure(world.caller.router.DeleteAgent(huge))).reason is Reason.VERSION_MISMATCH


async def test_an_agent_that_was_created_anew_is_another_one(world: World) -> None:
    old = await world.create()
    await world.caller.router.DeleteAgent(router_pb2.DeleteAgentRequest(name="reviewer"))
    await world.create()
    error = await failure(world.caller.router.UpdateAgent(router_pb2.UpdateAgentRequest(agent=old)))
    assert error.reason is Reason.VERSION_MISMATCH
    assert "created anew" in error.message
    old.ClearField("created_at")
    assert (await world.update(old)).version == 2


async def test_agents_are_listed_in_pages_by_name(world: World) -> None:
    names = ["b", "a.1", "a-1", "0", "z_z"]
    for name in names:
        await world.create(name=name)
    found, token = [], ""
    while True:
        request = router_pb2.ListAgentsRequest(page_size=2, page_token=token)
        page = await world.other.router.ListAgents(request)
        assert len(page.agents) <= 2
        found += [one.name for one in page.agents]
        if not (token := page.next_page_token):
            break
    assert sorted(found) == sorted(names)
    for wrong in ("x", "WzFd", "WyJhIiwgMV0="):  # no token, [1], ["a", 1]
        error = await failure(world.caller.router.ListAgents(router_pb2.ListAgentsRequest(page_token=wrong)))
        assert error.reason is Reason.INVALID_PAGE_TOKEN


@pytest.mark.parametrize(
    ("fields", "expected", "path"),
    [
        ({"name": "Reviewer"}, Reason.INVALID_REQUEST, "agent.name"),
        ({"name": ""}, Reason.INVALID_REQUEST, "agent.name"),
        ({"name": "a" * 65}, Reason.INVALID_REQUEST, "agent.name"),
        ({"name": "a\0"}, Reason.INVALID_REQUEST, "agent.name"),
        ({"adapter": ""}, Reason.ADAPTER_REQUIRED, ""),
        ({"adapter": "fakee"}, Reason.ADAPTER_NOT_FOUND, ""),
        ({"config": {"level": "high"}}, Reason.INVALID_REQUEST, "agent.config.level"),
        ({"config": {"level": 10}}, Reason.INVALID_REQUEST, "agent.config.level"),
        ({"config": {"levle": 1}}, Reason.INVALID_REQUEST, "agent.config"),
        ({"env": {"API_KEY": "sk-not-stored-1"}}, Reason.INVALID_REQUEST, "agent.env.API_KEY"),
        ({"env": {"API_KEY": "x${key}"}}, Reason.INVALID_REQUEST, "agent.env.API_KEY"),
        ({"env": {"API_KEY": "${../key}"}}, Reason.INVALID_REQUEST, "agent.env.API_KEY"),
        ({"env": {"PLAIN": "${key}"}}, Reason.INVALID_REQUEST, "agent.env.PLAIN"),
        ({"config": {"apiKey": "sk-not-stored-1"}}, Reason.INVALID_REQUEST, "agent.config.apiKey"),
        ({"limits": BAD_BUDGET}, Reason.INVALID_REQUEST, "agent.limits.budget.cost"),
        ({"labels": {"a": "\0"}}, Reason.INVALID_REQUEST, "agent.labels.a"),
        ({"fallback": pb.Fallback(adapters=[""])}, Reason.INVALID_REQUEST, "agent.fallback.adapters"),
        ({"instructions": pb.Instructions(text="x" * 1024 * 1024)}, Reason.INVALID_REQUEST, "agent"),
        ({"description": "x" * 1025}, Reason.INVALID_REQUEST, "agent.description"),
        (
            {"limits": event_pb2.Limits(wall=duration_pb2.Duration(seconds=-1))},
            Reason.INVALID_REQUEST,
            "agent.limits.wall",
        ),
        (
            {
                "mcp_servers": [
                    pb.McpServer(name="m", http=pb.McpHttp(url="u", headers={"Authorization": "Bearer x1y2z3"}))
                ]
            },
            Reason.INVALID_REQUEST,
            "agent.mcp_servers[0].http.headers.Authorization",
        ),
    ],
)
async def test_a_wrong_agent_is_refused_and_not_kept(
    world: World, fields: dict[str, Any], expected: Reason, path: str
) -> None:
    error = await world.refused(**fields)
    assert (error.reason, paths(error)) == (expected, [path] if path else [])
    assert not (await world.caller.router.ListAgents(router_pb2.ListAgentsRequest())).agents
    text = f"{error.message} {error.violations}"
    assert "not-stored" not in text
    assert "x1y2z3" not in text


async def test_what_the_adapter_cannot_do_is_not_stored(folder: Path) -> None:
    address = f"unix:{folder}/a.sock"
    async with (
        serving(Sidecar(duties=()), address),
        routing(config(folder, addresses=(address,))) as (_router, caller),
    ):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        request = router_pb2.CreateAgentRequest(agent=agent(system_prompt="s", model="m"))
        error = await failure(caller.router.CreateAgent(request))
        assert (error.reason, paths(error)) == (Reason.NOT_SUPPORTED, ["agent.system_prompt", "agent.model"])


async def test_a_request_gets_what_it_leaves_out(world: World) -> None:
    await world.create(
        config={"level": 3},
        model="m",
        system_prompt="s",
        instructions=pb.Instructions(text="i"),
        env={"A": "agent", "B": "agent"},
        labels={"team": "core", "x": "agent"},
        skills=[pb.Skill(name="one", directory="/agent")],
    )
    request = await world.ran(
        env={"B": "request"}, labels={"x": "request"}, skills=[pb.Skill(name="one", directory="/request")]
    )
    assert (request.adapter, request.agent_name, request.model) == ("fake", "", "m")
    assert (request.system_prompt, request.instructions.text) == ("s", "i")
    assert dict(request.env) == {"A": "agent", "B": "request"}
    assert [skill.directory for skill in request.skills] == ["/request"]
    assert request.config["level"] == 3
    run = (await world.caller.run("r")).run
    assert (run.agent_name, dict(run.labels)) == ("reviewer", {"team": "core", "x": "request"})
    assert (await world.ran("r2", model="own", adapter="false")).model == "own"


async def test_runs_are_listed_by_agent_at_any_router(world: World) -> None:
    await world.create()
    await world.create(name="other")
    await world.ran("r1")
    await world.ran("r2", agent_name="other")
    await world.ran("r3", agent_name="", adapter="fake")
    for at in (world.caller, world.other):
        listed = await at.router.ListRuns(router_pb2.ListRunsRequest(agent_name="reviewer"))
        assert [run.run_id for run in listed.runs] == ["r1"]


async def test_secrets_are_put_in_when_a_run_starts(world: World) -> None:
    (world.secrets / "key").write_text("s3cr3t-one\n")
    await world.create(
        env={"API_KEY": "${key}"},
        config={"apiKey": "${key}"},
        mcp_servers=[pb.McpServer(name="m", http=pb.McpHttp(url="u", headers={"Authorization": "${key}"}))],
    )
    assert "s3cr3t" not in str(await world.get())
    request = await world.ran()
    assert request.env["API_KEY"] == request.config["apiKey"] == "s3cr3t-one"
    assert request.mcp_servers[0].http.headers["Authorization"] == "s3cr3t-one"
    (world.secrets / "key").write_text("s3cr3t-two")
    assert (await world.ran("r2", at=world.other)).env["API_KEY"] == "s3cr3t-two"


async def test_no_secret_is_in_the_database(folder: Path) -> None:
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("s3cr3t-value")
    address = f"unix:{folder}/a.sock"
    sidecar = Sidecar(schema=SCHEMA)
    async with (
        serving(sidecar, address),
        routing(config(folder, addresses=(address,), secrets=secrets)) as (_router, caller),
    ):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        await caller.router.CreateAgent(router_pb2.CreateAgentRequest(agent=agent(env={"API_KEY": "${key}"})))
        request = pb.ExecuteRequest(run_id="r", agent_name="reviewer", prompt=END)
        assert [event async for event in caller.adapter.Execute(request, timeout=PATIENCE_S)]
        assert sidecar.runs["r"].request.env["API_KEY"] == "s3cr3t-value"
    files = [path for path in (folder / "s").rglob("*") if path.is_file()]
    assert any(path.name.startswith("runs.db") for path in files)
    assert all(b"s3cr3t-value" not in path.read_bytes() for path in files)


@pytest.mark.parametrize("content", [None, "", "word", "abc", "a\0b-12345", "x" * 40_000])
async def test_a_run_without_a_usable_secret_does_not_start(world: World, content: str | None) -> None:
    if content is not None:
        (world.secrets / "key").write_text(content)
    await world.create(env={"API_KEY": "${key}"})
    error = await world.not_run()
    assert (error.reason, error.metadata["secrets"]) == (Reason.AGENT_INCOMPLETE, "key")
    assert "'reviewer'" in error.message


async def test_a_secret_is_a_file_of_the_directory_alone(world: World, folder: Path) -> None:
    (folder / "outside").write_text("s3cr3t-value")
    for name in ("../outside", "/etc/passwd", ".hidden", ""):
        error = await world.refused(env={"API_KEY": f"${{{name}}}"})
        assert error.reason is Reason.INVALID_REQUEST, name


@pytest.mark.parametrize(
    ("fields", "asked", "path"),
    [
        ({"config": {}}, {"config": {"fields": {}}}, "config"),
        ({"config": {}}, {"agent": pb.Agent(adapter_config=struct_pb2.Struct())}, "agent.adapter_config"),
        ({"fallback": pb.Fallback(adapters=["x"])}, {"fallback": pb.Fallback()}, "fallback"),
        ({"permissions": event_pb2.Permissions()}, {"config": {}}, "config"),
        (
            {"permissions": event_pb2.Permissions()},
            {"agent": pb.Agent(adapter_config=struct_pb2.Struct())},
            "agent.adapter_config",
        ),
        ({"permissions": event_pb2.Permissions()}, {"fallback": pb.Fallback()}, "fallback"),
        ({}, {"adapter": "other"}, "adapter"),
        (
            {"limits": BUDGET},
            {"limits": BAD_BUDGET},
            "limits.budget.cost",
        ),
        (
            {"permissions": event_pb2.Permissions()},
            {"permissions": event_pb2.Permissions(auto_approve=True)},
            "permissions.auto_approve",
        ),
    ],
)
async def test_a_request_that_would_loosen_its_agent_is_refused(
    world: World, fields: dict[str, Any], asked: dict[str, Any], path: str
) -> None:
    await world.create(**fields)
    error = await world.not_run(**asked)
    assert (error.reason, paths(error)) == (Reason.INVALID_REQUEST, [path])


async def test_the_same_request_joins_its_run_after_the_agent_was_changed(world: World) -> None:
    created = await world.create(model="m")
    await world.ran("r")
    created.model = "other"
    await world.update(created)
    assert (await world.ran("r", at=world.other)).model == "m"
    await world.caller.router.DeleteAgent(router_pb2.DeleteAgentRequest(name="reviewer"))
    assert (await world.ran("r")).model == "m"
    error = await world.not_run(run_id="r", model="x")
    assert error.reason is Reason.RUN_ID_REUSED


async def test_an_unknown_agent_names_similar_ones(world: World) -> None:
    await world.create()
    error = await world.not_run(agent_name="reviewr")
    assert (error.reason, error.metadata["did_you_mean"]) == (Reason.AGENT_NOT_FOUND, "reviewer")


async def test_an_agent_that_no_longer_suits_its_adapter_says_so(folder: Path) -> None:
    address = f"unix:{folder}/a.sock"
    configured = config(folder, addresses=(address,))
    async with serving(Sidecar(schema=SCHEMA), address), routing(configured) as (_router, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        await caller.router.CreateAgent(router_pb2.CreateAgentRequest(agent=agent(config={"level": 3})))
    narrower = json.dumps({"type": "object", "additionalProperties": False})
    request = pb.ExecuteRequest(agent_name="reviewer", prompt=END)
    async with serving(Sidecar(schema=narrower), address), routing(configured) as (_router, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        error = await failure(caller.adapter.Execute(request).read())
        assert (error.reason, paths(error)) == (Reason.AGENT_INCOMPLETE, ["config"])
        assert "update the agent" in error.message
    async with routing(config(folder)) as (_router, caller):
        error = await failure(caller.adapter.Execute(request).read())
        assert error.reason is Reason.AGENT_INCOMPLETE
        assert "'fake' is not known here" in error.message


async def test_the_policy_applies_to_what_an_agent_asks_for(folder: Path) -> None:
    policy = folder / "policy.toml"
    policy.write_text("[limits]\nwall_s = 60\n")
    async with holders(
        folder, policy=policy, runner="run:fake", reader="read", boss="admin", other="run:other"
    ) as at:
        for name in ("runner", "reader"):
            call = at[name].router.CreateAgent(router_pb2.CreateAgentRequest(agent=agent()))
            assert await reason(call) is Reason.NOT_PERMITTED
        for one in (agent(), agent(name="bad", limits=event_pb2.Limits(wall=duration_pb2.Duration(seconds=90)))):
            await at["boss"].router.CreateAgent(router_pb2.CreateAgentRequest(agent=one))
        listed = await at["reader"].router.ListAgents(router_pb2.ListAgentsRequest())
        assert [one.name for one in listed.agents] == ["bad", "reviewer"]
        assert await at["runner"].execute("", {"end": "SUCCEEDED"}, agent_name="reviewer").rest()
        denied = await at["runner"].execute("", {"end": "SUCCEEDED"}, agent_name="bad").error()
        assert (denied.reason, paths(denied)) == (Reason.POLICY_DENIED, ["limits.wall"])
        secret = agent(name="incomplete", env={"API_KEY": "${missing}"})
        await at["boss"].router.CreateAgent(router_pb2.CreateAgentRequest(agent=secret))
        for name in ("reviewer", "incomplete"):
            refused = await at["other"].execute("", agent_name=name).error()
            assert refused.reason is Reason.NOT_PERMITTED, "before its secrets are read"
        unknown = await at["runner"].execute("", agent_name="reviewr").error()
        assert (unknown.reason, unknown.metadata["did_you_mean"]) == (Reason.AGENT_NOT_FOUND, "")
