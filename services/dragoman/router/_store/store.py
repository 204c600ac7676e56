"""The run log's own words to its database: runs, their events, sessions."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from dragoman.protocol.limits import MIB
from dragoman.router._domain.stored import RunQuery, SessionId, StoredEvents, StoredRun
from dragoman.router._store.database import Database, Row, Statement, Value
from dragoman.router._store.logged import ROW_BYTES
from dragoman.v1 import router_pb2

_RUN: Final = (
    "run_id, accepted_at, finished_at, adapter, digest, state, reserved, logged, bytes, owner, lease_until,"
    " place, orphan_after"
)
_AT_TASK: Final = (
    f"SELECT {_RUN} FROM runs WHERE company_id = :company_id AND agent_id = :agent_id AND task_key = :task_key"  # noqa: S608 - constants
    " AND finished_at IS NULL"
)
_UNLED: Final = "SELECT run_id FROM runs WHERE finished_at IS NULL AND lease_until < :now AND owner <> :owner"
_PAGE_ROWS: Final = 64
_PAGE_BYTES: Final = MIB
"""Rows of events that are read at once: so many, and no more once they have so many bytes."""
_SIZES: Final = (
    "SELECT first, COALESCE(length(data), 0) AS size FROM events"
    " WHERE run_id = :run_id AND last > :after ORDER BY first LIMIT :size"
)
_SUMS: Final = f"SELECT first, size, sum(size) OVER (ORDER BY first) AS upto FROM ({_SIZES}) AS sizes"  # noqa: S608 - constants
_PAGE: Final = (
    # Only what is returned is read: to tell a size, a database need not look at what has it.
    "SELECT first, last, data FROM events WHERE run_id = :run_id AND last > :after"  # noqa: S608 - constants
    f" AND first <= (SELECT max(first) FROM ({_SUMS}) AS sums WHERE upto - size < :most) ORDER BY first LIMIT :size"
)
_FORGOTTEN_AT_ONCE: Final = 200
_FREED_AT_ONCE: Final = 32 * MIB
"""Bytes after which no more runs are forgotten at once: SQLite writes nothing else meanwhile."""
_FINISHED: Final = "FROM runs WHERE finished_at IS NOT NULL"
_OLDEST: Final = (
    f"SELECT finished_at, run_id, bytes, (SELECT CAST(sum(bytes) AS bigint) {_FINISHED}) AS kept {_FINISHED}"
    " ORDER BY finished_at, run_id LIMIT :size"
)
_UP_TO: Final = f"{_FINISHED} AND (finished_at, run_id) <= (:finished_at, :run_id)"
_LARGE: Final = 4
"""A run that alone takes a quarter of what may be kept is cut to its end before others are forgotten for it."""
_LARGEST: Final = f"SELECT run_id, logged {_FINISHED} AND bytes > :size ORDER BY bytes DESC LIMIT 1"
_BEFORE_END: Final = "SELECT first FROM events WHERE run_id = :run_id AND last < :logged ORDER BY first LIMIT :size"
_CUT: Final = "DELETE FROM events WHERE run_id = :run_id AND first <= :first AND last < :logged"
_COUNT_AGAIN: Final = (
    "UPDATE runs SET bytes = (SELECT CAST(COALESCE(sum(length(data)), 0) AS bigint) FROM events"
    " WHERE events.run_id = runs.run_id) WHERE run_id = :run_id"
)
_FORGET_EVENTS: Final = f"DELETE FROM events WHERE run_id IN (SELECT run_id {_UP_TO})"  # noqa: S608 - constants
_FORGET_RUNS: Final = f"DELETE {_UP_TO}"


class Store:
    """Runs and sessions in a database. What it cannot do raises ``StoreError``.

    Args:
        database: where.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        await self._database.open()

    async def close(self) -> None:
        """Let go of the database."""
        await self._database.close()

    async def setting(self, name: str, fresh: bytes) -> bytes:
        """Return a value that all routers share; ``fresh`` becomes it if there is none."""
        sql = "INSERT INTO settings (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING"
        await self._database.execute([(sql, {"name": name, "value": fresh})])
        rows = await self._database.fetch("SELECT value FROM settings WHERE name = :name", {"name": name})
        return cast("bytes", rows[0][0])

    # Runs.

    async def begin(self, run: StoredRun) -> bool:
        """Keep a new run; False if there is one with its id, of another owner.

        One of the same owner is the run itself: it was kept by a transaction of which nobody heard. Then it gets the
        mark that this one would have.
        """
        names = (*_RUN.replace("bytes", "size").split(", "), "agent_id", "company_id", "task_key", "outcome")
        columns = f"{_RUN}, agent_id, company_id, task_key, outcome"
        marks = ", ".join(f":{name}" for name in names)
        sql = (
            f"INSERT INTO runs ({columns}) VALUES ({marks}) ON CONFLICT (run_id) DO UPDATE"  # noqa: S608 - constants
            " SET reserved = excluded.reserved WHERE runs.owner = excluded.owner"
        )
        (changed,) = await self._database.execute([(sql, _values(run))])
        return changed > 0

    async def run(self, run_id: str) -> StoredRun | None:
        """Return a run; ``None`` if it is not kept."""
        rows = await self._database.fetch(f"SELECT {_RUN} FROM runs WHERE run_id = :run_id", {"run_id": run_id})  # noqa: S608 - constants
        return _run(rows[0]) if rows else None

    async def runs(self, query: RunQuery, *, before: tuple[float, str] | None, size: int) -> list[StoredRun]:
        """Return runs, newest first.

        Args:
            query: which.
            before: time and id of the last one that was told.
            size: at most so many.
        """
        found: list[StoredRun] = []
        while len(found) < size:
            sql, values = _runs_sql(query, before, size)
            rows = [_run(row) for row in await self._database.fetch(sql, values)]
            found += [run for run in rows if _has_labels(run, query.labels)]
            if len(rows) < size:
                break
            before = (rows[-1].accepted_at, rows[-1].run_id)
        return found[:size]

    async def has_any_of(self, adapter: str) -> bool:
        """Tell whether a run or a session is kept of the adapter with this very name."""
        sql = (
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM runs WHERE adapter = :adapter)"
            " OR EXISTS (SELECT 1 FROM sessions WHERE adapter = :adapter)"
        )
        return bool(await self._database.fetch(sql, {"adapter": adapter}))

    async def at_task(self, company_id: str, agent_id: str, task_key: str) -> list[StoredRun]:
        """Return the live runs of one agent at one task, whoever follows them; in no order."""
        values = {"company_id": company_id, "agent_id": agent_id, "task_key": task_key}
        return [_run(row) for row in await self._database.fetch(_AT_TASK, values)]

    async def write(self, events: Sequence[StoredEvents], runs: Sequence[StoredRun]) -> list[str]:
        """Keep events, and what is known of their runs, at once.

        Nothing is kept of runs that have another owner by now: who was thought to be dead must not write over
        what the one says that took its place.

        Args:
            events: to add; of ``runs``.
            runs: as they are now.

        Returns:
            The ids of runs that have another owner, or are forgotten.
        """
        owners = {run.run_id: run.owner for run in runs}
        added = [_addition(item, owners[item.run_id]) for item in events]
        runs = sorted(runs, key=lambda run: run.run_id)  # see ``Database.locking``
        counts = await self._database.execute([*added, *(_update(run) for run in runs)])
        return [run.run_id for run, changed in zip(runs, counts[len(added) :], strict=True) if not changed]

    async def events(self, run_id: str, after: int) -> list[StoredEvents]:
        """Return the next events behind a sequence, in order; none at the end of what is kept.

        The first may begin at or before ``after``.
        """
        values: dict[str, Value] = {"run_id": run_id, "after": after, "size": _PAGE_ROWS, "most": _PAGE_BYTES}
        rows = await self._database.fetch(_PAGE, values)
        return [
            StoredEvents(run_id, cast("int", first), cast("int", last), cast("bytes | None", data))
            for first, last, data in rows
        ]

    async def renew(self, owner: str, lease_until: float) -> None:
        """Say that a router lives: its runs are its own until then."""
        live = f"SELECT run_id FROM runs WHERE owner = :owner AND finished_at IS NULL{self._database.locking}"  # noqa: S608 - constants
        sql = f"UPDATE runs SET lease_until = :lease WHERE run_id IN ({live})"  # noqa: S608 - constants
        await self._database.execute([(sql, {"lease": lease_until, "owner": owner})])

    async def claim(self, owner: str, now: float, lease_until: float) -> list[StoredRun]:
        """Take over live runs of others whose lease has run out, and return them as they are from now on.

        Each one's ``reserved`` is by one more than the owner before could tell of: that one sequence is the new
        owner's at once, for the end of a run that is lost.
        """
        unled = f"{_UNLED}{self._database.locking}"
        rows = await self._database.fetch(
            "UPDATE runs SET owner = :owner, lease_until = :lease, reserved = reserved + 1"  # noqa: S608 - constants
            f" WHERE run_id IN ({unled}) RETURNING {_RUN}",
            {"owner": owner, "lease": lease_until, "now": now},
        )
        return [_run(row) for row in rows]

    async def take(self, run_id: str, *, of: str, owner: str, lease_until: float) -> StoredRun | None:
        """Take over one live run of another router, which follows it no more; ``None`` if somebody has it by now.

        ``reserved`` is as after ``claim``.
        """
        rows = await self._database.fetch(
            "UPDATE runs SET owner = :owner, lease_until = :lease, reserved = reserved + 1"  # noqa: S608 - constants
            f" WHERE finished_at IS NULL AND run_id = :run_id AND owner = :of RETURNING {_RUN}",
            {"owner": owner, "lease": lease_until, "run_id": run_id, "of": of},
        )
        return _run(rows[0]) if rows else None

    async def unled(self, owner: str, now: float) -> list[str]:
        """Return the ids of the runs that ``claim`` would take."""
        rows = await self._database.fetch(_UNLED, {"owner": owner, "now": now})
        return [str(run_id) for (run_id,) in rows]

    async def owners(self) -> list[str]:
        """Return the names of routers that have live runs."""
        rows = await self._database.fetch("SELECT DISTINCT owner FROM runs WHERE finished_at IS NULL", {})
        return [str(owner) for (owner,) in rows]

    async def release(self, owner: str) -> None:
        """Give up a router's runs: whoever comes next may take them at once."""
        await self.renew(owner, 0.0)

    async def remove(self, run_id: str, owner: str) -> None:
        """Forget a run and its events, if it is still this owner's."""
        mine = "SELECT run_id FROM runs WHERE run_id = :run_id AND owner = :owner"
        values = {"run_id": run_id, "owner": owner}
        await self._database.execute(
            [
                (f"DELETE FROM events WHERE run_id IN ({mine})", values),  # noqa: S608 - constants
                (f"DELETE FROM runs WHERE run_id IN ({mine})", values),  # noqa: S608 - constants
            ]
        )

    async def forget(self, *, before: float, most_bytes: int) -> int:
        """Forget finished runs that are too old, and the oldest of those that are too many; at most some at once.

        Before others are forgotten for the sake of a very large one, that one loses its events, but for the end.

        Args:
            before: what ended before this, in seconds since the epoch, goes.
            most_bytes: what may be kept.

        Returns:
            How many went, or lost events; 0 if no more has to.
        """
        # The sum and the rows are of one moment: of several routers that do this at once, none takes too much.
        rows = await self._database.fetch(_OLDEST, {"size": _FORGOTTEN_AT_ONCE})
        kept = cast("int", rows[0][3]) if rows else 0
        if kept > most_bytes and await self._cut_largest(most_bytes // _LARGE):
            return 1
        number = freed = 0
        for finished_at, _, size, _ in cast("list[tuple[float, str, int, int]]", rows):
            if (finished_at >= before and kept - freed <= most_bytes) or freed > _FREED_AT_ONCE:
                break
            number, freed = number + 1, freed + size
        if number:
            values = {"finished_at": rows[number - 1][0], "run_id": rows[number - 1][1]}
            await self._database.execute([(_FORGET_EVENTS, values), (_FORGET_RUNS, values)])
        return number

    async def _cut_largest(self, size: int) -> bool:
        """Forget some events of the largest run above a size, but not its end; False if there are none."""
        found = await self._database.fetch(_LARGEST, {"size": size})
        if not found:
            return False
        values: dict[str, Value] = {"run_id": found[0][0], "logged": found[0][1]}
        rows = await self._database.fetch(_BEFORE_END, {**values, "size": _FREED_AT_ONCE // ROW_BYTES})
        if not rows:
            return False
        run_id = {"run_id": values["run_id"]}
        await self._database.execute([(_CUT, {**values, "first": rows[-1][0]}), (_COUNT_AGAIN, run_id)])
        return True

    # Sessions.

    async def session(self, key: SessionId) -> router_pb2.StoredSession | None:
        """Return a session; ``None`` if it is not kept."""
        rows = await self._database.fetch(
            "SELECT state FROM sessions WHERE company_id = :company_id AND agent_id = :agent_id"
            " AND adapter = :adapter AND task_key = :task_key",
            _key(key),
        )
        return router_pb2.StoredSession.FromString(cast("bytes", rows[0][0])) if rows else None

    async def keep_session(self, key: SessionId, session: router_pb2.StoredSession, used_at: float) -> None:
        """Keep a session in place of what was kept before."""
        sql = (
            "INSERT INTO sessions (company_id, agent_id, adapter, task_key, used_at, state)"
            " VALUES (:company_id, :agent_id, :adapter, :task_key, :used_at, :state)"
            " ON CONFLICT (company_id, agent_id, adapter, task_key)"
            " DO UPDATE SET used_at = excluded.used_at, state = excluded.state"
        )
        await self._database.execute([(sql, {**_key(key), "used_at": used_at, "state": session.SerializeToString()})])

    async def forget_session(self, key: SessionId) -> bool:
        """Forget a session; False if there was none."""
        sql = (
            "DELETE FROM sessions WHERE company_id = :company_id AND agent_id = :agent_id"
            " AND adapter = :adapter AND task_key = :task_key"
        )
        (deleted,) = await self._database.execute([(sql, _key(key))])
        return deleted > 0

    async def forget_sessions(self, *, before: float) -> int:
        """Forget sessions that were last used before a time, in seconds since the epoch; return how many."""
        sql = "DELETE FROM sessions WHERE used_at < :before"
        (deleted,) = await self._database.execute([(sql, {"before": before})])
        return deleted

    async def sessions(
        self, wanted: Mapping[str, str], *, before: tuple[float, str] | None, size: int
    ) -> list[router_pb2.StoredSession]:
        """Return sessions, last used first.

        Args:
            wanted: some of company_id, agent_id, task_key and adapter.
            before: time and name (see ``session_name``) of the last one that was told.
            size: at most so many.
        """
        name = "company_id || '/' || agent_id || '/' || adapter || '/' || task_key"
        where, values = _equal({key: value for key, value in wanted.items() if value})
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


def _runs_sql(query: RunQuery, before: tuple[float, str] | None, size: int) -> Statement:
    given = {"adapter": query.adapter, "agent_id": query.agent_id, "task_key": query.task_key}
    where, values = _equal({key: value for key, value in given.items() if value})
    if query.outcome:
        where.append("outcome = :outcome")
        values["outcome"] = query.outcome
    if query.live_only:
        where.append("finished_at IS NULL")
    if before is not None:
        where.append("(accepted_at, run_id) < (:accepted_at, :run_id)")
        values |= {"accepted_at": before[0], "run_id": before[1]}
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    sql = f"SELECT {_RUN} FROM runs{condition} ORDER BY accepted_at DESC, run_id DESC LIMIT :size"  # noqa: S608 - constants
    return sql, {**values, "size": size}


def _equal(wanted: Mapping[str, str]) -> tuple[list[str], dict[str, Value]]:
    return [f"{name} = :{name}" for name in wanted], dict(wanted)


def _has_labels(run: StoredRun, labels: Mapping[str, str]) -> bool:
    return all(run.state.run.labels.get(key) == value for key, value in labels.items())


def _values(run: StoredRun) -> dict[str, Value]:
    summary = run.state.run
    return {
        "run_id": run.run_id,
        "accepted_at": run.accepted_at,
        "finished_at": run.finished_at,
        "adapter": run.adapter,
        "digest": run.digest,
        "state": run.state.SerializeToString(),
        "reserved": run.reserved,
        "logged": run.logged,
        "size": run.size,
        "owner": run.owner,
        "lease_until": run.lease_until,
        "place": run.place,
        "orphan_after": run.orphan_after,
        "agent_id": summary.agent_id,
        "company_id": summary.company_id,
        "task_key": summary.task_key,
        "outcome": summary.result.outcome,
    }


def _addition(events: StoredEvents, owner: str) -> Statement:
    # A transaction of which nobody heard may have been done; then it is done again, and more may have come meanwhile.
    sql = (
        "INSERT INTO events (run_id, first, last, data) SELECT :run_id, :first, :last, CAST(:data AS blob)"
        " WHERE EXISTS (SELECT 1 FROM runs WHERE run_id = :run_id AND owner = :owner)"
        " ON CONFLICT (run_id, first) DO UPDATE SET last = excluded.last, data = excluded.data"
        " WHERE excluded.last > events.last"
    )
    values: dict[str, Value] = {"run_id": events.run_id, "first": events.first, "last": events.last}
    return sql, {**values, "data": events.data, "owner": owner}


def _update(run: StoredRun) -> Statement:
    changing = ("finished_at", "adapter", "state", "reserved", "logged", "owner", "lease_until", "place", "outcome")
    changes = ", ".join(f"{name} = :{name}" for name in changing)
    sql = f"UPDATE runs SET {changes}, bytes = :size WHERE run_id = :run_id AND owner = :owner"  # noqa: S608 - constants
    values = _values(run)
    return sql, {name: values[name] for name in (*changing, "size", "run_id")}


def _run(row: Row) -> StoredRun:
    fields = dict(zip(_RUN.split(", "), row, strict=True))
    state = router_pb2.GetRunResponse.FromString(cast("bytes", fields.pop("state")))
    size = fields.pop("bytes")
    return StoredRun(**cast("dict[str, str]", fields), state=state, size=cast("int", size))  # type: ignore[arg-type]  # columns of many types


def _key(key: SessionId) -> dict[str, Value]:
    return {
        "company_id": key.company_id,
        "agent_id": key.agent_id,
        "adapter": key.adapter,
        "task_key": key.task_key,
    }
