"""The active agents of tasks in the run log's database."""

from typing import Final, cast

from dragoman.router.model.stored import TaskId
from dragoman.router.storage.database import Database
from msgspec.structs import asdict

TOUCH_S: Final = 86400.0
"""How old the time of the last use may be: that a task is in use is written once a day, not with every run."""


class ActiveTable:
    """The tasks that have an active agent. What the database cannot do raises ``StoreError``.

    A task's row goes with its agent.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

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
        await self._database.execute([(sql, {**asdict(task), "used_at": used_at})])

    async def delete(self, task: TaskId) -> None:
        """Leave a task without an agent."""
        sql = "DELETE FROM active_agents WHERE company_id = :company_id AND task_key = :task_key"
        await self._database.execute([(sql, asdict(task))])

    async def delete_unused(self, *, before: float) -> int:
        """Leave tasks that last used theirs before a time, in seconds since the epoch, without; return how many."""
        sql = "DELETE FROM active_agents WHERE used_at < :before"
        (deleted,) = await self._database.execute([(sql, {"before": before})])
        return deleted
