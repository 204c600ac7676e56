"""Leases in the run log's database: which router owns a live run, and until when."""

from typing import Final

from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import Table
from dragoman.router.storage.rows import RUN_COLUMNS, stored_run

_UNLED: Final = "FROM runs WHERE finished_at IS NULL AND lease_until < :now AND owner <> :owner AND owner LIKE :of"


class LeaseTable(Table):
    """The leases."""

    async def renew(self, owner: str, lease_until: float) -> None:
        """Renew the lease of a router on its runs."""
        live = f"SELECT run_id FROM runs WHERE owner = :owner AND finished_at IS NULL{self._database.locking}"  # noqa: S608 - constants
        sql = f"UPDATE runs SET lease_until = :lease WHERE run_id IN ({live})"  # noqa: S608 - constants
        await self._change(sql, {"lease": lease_until, "owner": owner})

    async def claim(self, owner: str, now: float, lease_until: float, of: str = "%") -> list[StoredRun]:
        """Claim the live runs of other routers whose lease has expired, and return them as they are from now on.

        Args:
            owner: who claims them.
            now: seconds since the epoch.
            lease_until: the end of their new lease.
            of: a pattern of SQL for the names of the other routers.
        """
        unled = f"SELECT run_id {_UNLED}{self._database.locking}"
        rows = await self._database.fetch(
            "UPDATE runs SET owner = :owner, lease_until = :lease"  # noqa: S608 - constants
            f" WHERE run_id IN ({unled}) RETURNING {RUN_COLUMNS}",
            {"owner": owner, "lease": lease_until, "now": now, "of": of},
        )
        return [stored_run(row) for row in rows]

    async def unled(self, owner: str, now: float, of: str = "%") -> dict[str, str]:
        """Return the owners of the runs that ``claim`` would take, by the ids of the runs."""
        rows = await self._database.fetch(f"SELECT run_id, owner {_UNLED}", {"owner": owner, "now": now, "of": of})
        return {str(run_id): str(former) for run_id, former in rows}

    async def owners(self) -> list[str]:
        """Return the names of routers that have live runs."""
        rows = await self._database.fetch("SELECT DISTINCT owner FROM runs WHERE finished_at IS NULL", {})
        return [str(owner) for (owner,) in rows]

    async def release(self, owner: str) -> None:
        """Release a router's runs: another router may claim them at once."""
        await self.renew(owner, 0.0)
