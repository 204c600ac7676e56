"""Deletion of old runs from the run log's database."""

from typing import Final, cast

from dragoman.protocol.limits import MIB
from dragoman.router.storage.database import Table

_FORGOTTEN_AT_ONCE: Final = 200
_FREED_AT_ONCE: Final = 32 * MIB
"""Bytes after which no more runs are forgotten at once: SQLite writes nothing else meanwhile."""
_FINISHED: Final = "FROM runs WHERE finished_at IS NOT NULL"
_OLDEST: Final = (
    f"SELECT finished_at, run_id, bytes, (SELECT CAST(sum(bytes) AS bigint) {_FINISHED}) AS kept {_FINISHED}"
    " ORDER BY finished_at, run_id LIMIT :size"
)
_UP_TO: Final = f"{_FINISHED} AND (finished_at, run_id) <= (:finished_at, :run_id)"
_FORGET_EVENTS: Final = f"DELETE FROM events WHERE run_id IN (SELECT run_id {_UP_TO})"  # noqa: S608 - constants
_FORGET_RUNS: Final = f"DELETE {_UP_TO}"


class RetentionTable(Table):
    """Deletes old runs."""

    async def delete_old(self, *, before: float, most_bytes: int) -> int:
        """Delete finished runs that are too old, and the oldest of those that are too many; at most some at once.

        Args:
            before: what ended before this, in seconds since the epoch, goes.
            most_bytes: what may be kept.

        Returns:
            How many went; 0 if no more has to.
        """
        # The sum and the rows are of one moment: of several routers that do this at once, none takes too much.
        rows = await self._database.fetch(_OLDEST, {"size": _FORGOTTEN_AT_ONCE})
        kept = cast("int", rows[0][3]) if rows else 0
        number = freed = 0
        for finished_at, _, size, _ in cast("list[tuple[float, str, int, int]]", rows):
            if (finished_at >= before and kept - freed <= most_bytes) or freed > _FREED_AT_ONCE:
                break
            number, freed = number + 1, freed + size
        if number:
            values = {"finished_at": rows[number - 1][0], "run_id": rows[number - 1][1]}
            await self._database.execute([(_FORGET_EVENTS, values), (_FORGET_RUNS, values)])
        return number
