"""Stored agents in the run log's database."""

from typing import cast

from dragoman.router.storage.database import Database, Value
from dragoman.v1 import router_pb2


class AgentTable:
    """The agents. What the database cannot do raises ``StoreError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        (inserted,) = await self._database.execute([(sql, _values(agent))])
        return inserted > 0

    async def replace(self, agent: router_pb2.StoredAgent) -> bool:
        """Store an agent in place of the one of the version before; False if that is not what there is."""
        sql = (
            "UPDATE agents SET version = :version, state = :state"
            " WHERE name = :name AND version = :version - 1 AND created_at = :created_at"
        )
        (replaced,) = await self._database.execute([(sql, _values(agent))])
        return replaced > 0

    async def delete(self, name: str, version: int) -> bool:
        """Delete an agent of one version; False if there is none."""
        sql = "DELETE FROM agents WHERE name = :name AND version = :version"
        (deleted,) = await self._database.execute([(sql, {"name": name, "version": version})])
        return deleted > 0

    async def page(self, after: str, size: int) -> list[router_pb2.StoredAgent]:
        """Return the agents whose names follow one, in order, at most ``size``."""
        sql = "SELECT state FROM agents WHERE name > :after ORDER BY name LIMIT :size"
        rows = await self._database.fetch(sql, {"after": after, "size": size})
        return [router_pb2.StoredAgent.FromString(cast("bytes", state)) for (state,) in rows]

    async def names(self, most: int) -> list[str]:
        """Return the names of the agents, at most so many."""
        rows = await self._database.fetch("SELECT name FROM agents ORDER BY name LIMIT :most", {"most": most})
        return [cast("str", name) for (name,) in rows]


def _values(agent: router_pb2.StoredAgent) -> dict[str, Value]:
    return {
        "name": agent.name,
        "created_at": agent.created_at.ToNanoseconds(),
        "version": agent.version,
        "state": agent.SerializeToString(),
    }
