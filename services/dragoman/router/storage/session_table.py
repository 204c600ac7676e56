"""Sessions in the run log's database."""

from collections.abc import Mapping
from typing import Final, cast

from dragoman.router.model.stored import SessionId
from dragoman.router.storage.database import Table
from dragoman.router.storage.rows import equal_to
from dragoman.v1 import router_pb2
from msgspec.structs import asdict

_HAS_KEY: Final = " AND ".join(f"{name} = :{name}" for name in SessionId.__struct_fields__)


class SessionTable(Table):
    """The sessions."""

    async def get(self, key: SessionId) -> router_pb2.StoredSession | None:
        """Return a session; ``None`` if there is none."""
        rows = await self._database.fetch(
            f"SELECT state FROM sessions WHERE {_HAS_KEY}",  # noqa: S608 - constants
            asdict(key),
        )
        return router_pb2.StoredSession.FromString(cast("bytes", rows[0][0])) if rows else None

    async def put(self, key: SessionId, session: router_pb2.StoredSession, used_at: float) -> None:
        """Store a session in place of the one before."""
        sql = (
            "INSERT INTO sessions (company_id, agent_id, adapter, task_key, agent_name, used_at, state)"
            " VALUES (:company_id, :agent_id, :adapter, :task_key, :agent_name, :used_at, :state)"
            " ON CONFLICT (company_id, agent_id, adapter, task_key)"
            " DO UPDATE SET agent_name = excluded.agent_name, used_at = excluded.used_at, state = excluded.state"
        )
        named = {**asdict(key), "agent_name": session.agent_name}
        values = {**named, "used_at": used_at, "state": session.SerializeToString()}
        await self._change(sql, values)

    async def delete(self, key: SessionId) -> bool:
        """Delete a session; False if there was none."""
        sql = f"DELETE FROM sessions WHERE {_HAS_KEY}"  # noqa: S608 - constants
        return await self._change(sql, asdict(key)) > 0

    async def delete_unused(self, *, before: float) -> int:
        """Delete sessions that were last used before a time, in seconds since the epoch; return how many."""
        sql = "DELETE FROM sessions WHERE used_at < :before"
        return await self._change(sql, {"before": before})

    async def page(
        self, fields: Mapping[str, str], *, before: tuple[float, str] | None, size: int
    ) -> list[router_pb2.StoredSession]:
        """Return sessions, last used first.

        Args:
            fields: some of company_id, agent_id, task_key, adapter and agent_name.
            before: time and name (see ``session_name``) of the last one of the page before.
            size: at most so many.
        """
        name = "company_id || '/' || agent_id || '/' || adapter || '/' || task_key"
        where, values = equal_to({key: value for key, value in fields.items() if value})
        if before is not None:
            where.append(f"(used_at, {name}) < (:used_at, :name)")
            values |= {"used_at": before[0], "name": before[1]}
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        rows = await self._database.fetch(
            f"SELECT state FROM sessions{condition} ORDER BY used_at DESC, {name} DESC LIMIT :size",  # noqa: S608 - constants
            {**values, "size": size},
        )
        return [router_pb2.StoredSession.FromString(cast("bytes", state)) for (state,) in rows]


def session_name(key: SessionId) -> str:
    """Return what sessions of one time are sorted by."""
    return f"{key.company_id}/{key.agent_id}/{key.adapter}/{key.task_key}"
