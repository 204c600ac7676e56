"""Active agents at their bounds: when a use is noted, a task of one company alone, an agent that goes meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.api.active_agents import ActiveAgents
from dragoman.router.api.agent_service import AgentServicer
from dragoman.router.model.stored import TaskId
from dragoman.router.storage.agent_table import TOUCH_S
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, config, failure, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_agents import agent

OURS, THEIRS = TaskId("a", "t"), TaskId("b", "t")


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[Store]:
    """A store with two agents."""
    opened = Store(SqliteDatabase(folder / "runs.db"))
    await opened.open()
    for name in ("reviewer", "writer"):
        await opened.agents.insert(agent(name=name, version=1))
    yield opened
    await opened.close()


async def test_a_use_is_noted_once_a_day(store: Store) -> None:
    now = 1000.0
    clock: Any = SimpleNamespace(time=lambda: now)
    run_log: Any = SimpleNamespace(store=store)
    tested = ActiveAgents(run_log, clock)
    assert await tested.set(OURS, "reviewer")
    now += TOUCH_S
    assert await tested.use(OURS) == "reviewer"
    assert await store.active.get(OURS) == ("reviewer", 1000.0)
    now += 1
    assert await tested.use(OURS) == "reviewer"
    assert await store.active.get(OURS) == ("reviewer", now)


async def test_another_agent_is_used_since_it_was_set(store: Store) -> None:
    await store.active.put(OURS, "reviewer", 1.0)
    await store.active.put(OURS, "writer", 5.0)
    assert await store.active.get(OURS) == ("writer", 5.0)


async def test_a_task_of_another_company_is_left_alone(store: Store) -> None:
    for task in (OURS, THEIRS):
        await store.active.put(task, "reviewer", 1.0)
    await store.active.touch(OURS, 5.0)
    assert await store.active.get(THEIRS) == ("reviewer", 1.0)
    await store.active.delete(OURS)
    assert await store.active.get(OURS) is None
    assert await store.active.get(THEIRS) == ("reviewer", 1.0)


class Vanishing:
    """Stored agents of which one is deleted between being read and being set."""

    def __init__(self, *, is_created_anew: bool) -> None:
        self.read = 0
        self._is_created_anew = is_created_anew
        self.active = self

    async def get(self, name: str) -> router_pb2.StoredAgent:
        self.read += 1
        if self.read == 2 and not self._is_created_anew:
            raise DragomanError(Reason.AGENT_NOT_FOUND, "It is gone.")
        return agent(name=name)

    async def name(self, _task: TaskId) -> str:
        return "before"

    async def set(self, _task: TaskId, _name: str) -> bool:
        return self.read > 1


@pytest.mark.parametrize("is_created_anew", [False, True])
async def test_an_agent_that_is_deleted_meanwhile_is_looked_for_again(is_created_anew: bool) -> None:
    agents: Any = Vanishing(is_created_anew=is_created_anew)
    drain: Any = SimpleNamespace(refuse_new=lambda: None)
    request = router_pb2.SetActiveAgentRequest(task_key="t", agent_name="reviewer")
    context: Any = None
    setting = asyncio.ensure_future(AgentServicer(agents, drain).SetActiveAgent(request, context))
    if is_created_anew:
        assert (await setting).previous_agent_name == "before"
    else:
        with pytest.raises(DragomanError) as caught:
            await setting
        assert caught.value.reason is Reason.AGENT_NOT_FOUND
    assert agents.read == 2


async def test_none_is_set_while_the_router_drains(folder: Path) -> None:
    sidecar, address = Sidecar("one"), f"unix:{folder}/one.sock"
    async with serving(sidecar, address), routing(config(folder, addresses=(address,))) as (router, caller):
        await caller.until("one", router_pb2.ADAPTER_STATE_READY)
        lasting = caller.execute("one", "a", {"gate": "g"}, {"end": "SUCCEEDED"})
        await lasting.until("text")
        stopping = asyncio.ensure_future(router.stop(4 * PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            while await caller.execute("one", {"end": "SUCCEEDED"}).rest_or_error() is not Reason.DRAINING:
                pass
        request = router_pb2.SetActiveAgentRequest(task_key="t")
        assert (await failure(caller.router.SetActiveAgent(request))).reason is Reason.DRAINING
        sidecar.open("g")
        await stopping
