"""Leases in the run log's database: which router owns a live run, and until when."""

from typing import Final

from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import Database
from dragoman.router.storage.rows import RUN_COLUMNS, stored_run

_UNLED: Final = "SELECT run_id FROM runs WHERE finished_at IS NULL AND lease_until < :now AND owner <> :owner"


class LeaseTable:
    """The leases. What the database cannot do raises ``StoreError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def renew(self, owner: str, lease_until: float) -> None:
        """Renew the lease of a router on its runs."""
        live = f"SELECT run_id FROM runs WHERE owner = :owner AND finished_at IS NULL{self._database.locking}"  # noqa: S608 - constants
        sql = f"UPDATE runs SET lease_until = :lease WHERE run_id IN ({live})"  # noqa: S608 - constants
        await self._database.execute([(sql, {"lease": lease_until, "owner": owner})])

    async def claim(self, owner: str, now: float, lease_until: float) -> list[StoredRun]:
        """Claim the live runs of other routers whose lease has expired, and return them as they are from now on."""
        unled = f"{_UNLED}{self._database.locking}"
        rows = await self._database.fetch(
            "UPDATE runs SET owner = :owner, lease_until = :lease"  # noqa: S608 - constants
            f" WHERE run_id IN ({unled}) RETURNING {RUN_COLUMNS}",
            {"owner": owner, "lease": lease_until, "now": now},
        )
        return [stored_run(row) for row in rows]

    async def take(self, run_id: str, *, of: str, owner: str, lease_until: float) -> StoredRun | None:
        """Claim one live run that its router no longer owns; ``None`` if another router has it by now."""
        rows = await self._database.fetch(
            "UPDATE runs SET owner = :owner, lease_until = :lease"  # noqa: S608 - constants
            f" WHERE finished_at IS NULL AND run_id = :run_id AND owner = :of RETURNING {RUN_COLUMNS}",
            {"owner": owner, "lease": lease_until, "run_id": run_id, "of": of},
        )
        return stored_run(rows[0]) if rows else None

    async def unled(self, owner: str, now: float) -> list[str]:
        """Return the ids of the runs that ``claim`` would take."""
        rows = await self._database.fetch(_UNLED, {"owner": owner, "now": now})
        return [str(run_id) for (run_id,) in rows]

    async def owners(self) -> list[str]:
        """Return the names of routers that have live runs."""
        rows = await self._database.fetch("SELECT DISTINCT owner FROM runs WHERE finished_at IS NULL", {})
        return [str(owner) for (owner,) in rows]

    async def runs(self, owner: str) -> list[StoredRun]:
        """Return the live runs of a router."""
        sql = f"SELECT {RUN_COLUMNS} FROM runs WHERE owner = :owner AND finished_at IS NULL"  # noqa: S608 - constants
        return [stored_run(row) for row in await self._database.fetch(sql, {"owner": owner})]

    async def release(self, owner: str) -> None:
        """Release a router's runs: another router may claim them at once."""
        await self.renew(owner, 0.0)
