"""Stored agents, and the active ones of tasks, in the run log's database."""

from typing import Final, cast

from dragoman.router.model.stored import TaskId
from dragoman.router.storage.database import Table, Value
from dragoman.v1 import router_pb2
from msgspec.structs import asdict

TOUCH_S: Final = 86400.0
"""How old the time of the last use may be: that a task is in use is written once a day, not with every run."""


class AgentTable(Table):
    """The agents."""

    async def get(self, name: str) -> router_pb2.StoredAgent | None:
        """Return an agent; ``None`` if there is none."""
        rows = await self._database.fetch("SELECT state FROM agents WHERE name = :name", {"name": name})
        return router_pb2.StoredAgent.FromString(cast("bytes", rows[0][0])) if rows else None

    async def insert(self, agent: router_pb2.StoredAgent) -> bool:
        """Store a new agent; False if there is one with its name."""
        sql = (
            "INSERT INTO agents (name, created_at, version, state) VALUES (:name, :created_at, :version, :state)"
            " ON CONFLICT (name) DO NOTHING"
        )
        return await self._change(sql, _values(agent)) > 0

    async def replace(self, agent: router_pb2.StoredAgent) -> bool:
        """Store an agent in place of the one of the version before; False if that is not what there is."""
        sql = (
            "UPDATE agents SET version = :version, state = :state"
            " WHERE name = :name AND version = :version - 1 AND created_at = :created_at"
        )
        return await self._change(sql, _values(agent)) > 0

    async def delete(self, name: str, version: int) -> bool:
        """Delete an agent of one version; False if there is none."""
        sql = "DELETE FROM agents WHERE name = :name AND version = :version"
        return await self._change(sql, {"name": name, "version": version}) > 0

    async def page(self, after: str, size: int) -> list[router_pb2.StoredAgent]:
        """Return the agents whose names follow one, in order, at most ``size``."""
        sql = "SELECT state FROM agents WHERE name > :after ORDER BY name LIMIT :size"
        rows = await self._database.fetch(sql, {"after": after, "size": size})
        return [router_pb2.StoredAgent.FromString(cast("bytes", state)) for (state,) in rows]

    async def names(self, most: int) -> list[str]:
        """Return the names of the agents, at most so many."""
        rows = await self._database.fetch("SELECT name FROM agents ORDER BY name LIMIT :most", {"most": most})
        return [cast("str", name) for (name,) in rows]


class ActiveTable(Table):
    """The tasks that have an active agent.

    A task's row goes with its agent.
    """

    async def get(self, task: TaskId) -> tuple[str, float] | None:
        """Return a task's agent, and when it was last used, in seconds since the epoch; ``None`` if it has none."""
        sql = "SELECT agent_name, used_at FROM active_agents WHERE company_id = :company_id AND task_key = :task_key"
        rows = await self._database.fetch(sql, asdict(task))
        return (cast("str", rows[0][0]), cast("float", rows[0][1])) if rows else None

    async def put(self, task: TaskId, agent_name: str, used_at: float) -> bool:
        """Give a task an agent in place of the one before; False if there is no such agent."""
        sql = (
            "INSERT INTO active_agents (company_id, task_key, agent_name, used_at)"
            " SELECT :company_id, :task_key, name, :used_at FROM agents WHERE name = :agent_name"
            " ON CONFLICT (company_id, task_key)"
            " DO UPDATE SET agent_name = excluded.agent_name, used_at = excluded.used_at"
        )
        (stored,) = await self._database.execute(
            [(sql, {**asdict(task), "agent_name": agent_name, "used_at": used_at})]
        )
        return stored > 0

    async def touch(self, task: TaskId, used_at: float) -> None:
        """Note that a task's agent was used."""
        sql = "UPDATE active_agents SET used_at = :used_at WHERE company_id = :company_id AND task_key = :task_key"
        await self._change(sql, {**asdict(task), "used_at": used_at})

    async def delete(self, task: TaskId) -> None:
        """Leave a task without an agent."""
        sql = "DELETE FROM active_agents WHERE company_id = :company_id AND task_key = :task_key"
        await self._change(sql, asdict(task))

    async def delete_unused(self, *, before: float) -> int:
        """Leave tasks that last used theirs before a time, in seconds since the epoch, without; return how many."""
        sql = "DELETE FROM active_agents WHERE used_at < :before"
        return await self._change(sql, {"before": before})


def _values(agent: router_pb2.StoredAgent) -> dict[str, Value]:
    return {
        "name": agent.name,
        "created_at": agent.created_at.ToNanoseconds(),
        "version": agent.version,
        "state": agent.SerializeToString(),
    }
