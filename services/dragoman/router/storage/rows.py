"""The rows of the run log, and the statements that read and write them."""

from collections.abc import Mapping
from typing import Final, cast

from dragoman.router.model.assignment import decode_place, encode_place
from dragoman.router.model.stored import RunQuery, StoredEvents, StoredProgress, StoredRun
from dragoman.router.storage.batches import pack
from dragoman.router.storage.database import Row, Statement, Value
from dragoman.v1 import router_pb2

_COLUMNS: Final = (
    "run_id, accepted_at, finished_at, adapter, digest, state, logged, bytes, owner, lease_until, place, orphan_after"
)
_BEYOND: Final = "FROM events WHERE events.run_id = runs.run_id AND first > runs.logged"
"""A run's events that its row does not have yet: see ``StoredProgress.may_lag``."""
RUN_COLUMNS: Final = (
    f"{_COLUMNS}, (SELECT COALESCE(max(last), 0) {_BEYOND}), (SELECT COALESCE(sum(length(data)), 0) {_BEYOND})"
)
"""What ``stored_run`` reads."""

_SAME: Final = (
    *("run_id", "accepted_at", "finished_at", "adapter", "digest", "logged", "owner", "lease_until", "orphan_after"),
)
"""The columns that are fields of a ``StoredRun`` under the same names."""
_CHANGING: Final = (
    *("finished_at", "adapter", "digest", "state", "logged", "bytes", "owner", "lease_until", "place", "outcome"),
)
"""The columns that change while a run lives."""
_ALL: Final = (*_COLUMNS.split(", "), "agent_id", "company_id", "task_key", "outcome")
_INSERT: Final = (
    f"INSERT INTO runs ({', '.join(_ALL)}) VALUES ({', '.join(f':{name}' for name in _ALL)})"  # noqa: S608 - constants
    f" ON CONFLICT (run_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _CHANGING)}"
    " WHERE runs.owner = excluded.owner AND runs.accepted_at = excluded.accepted_at"
)
_CHANGES: Final = ", ".join(f"{name} = :{name}" for name in _CHANGING)
_UPDATE: Final = f"UPDATE runs SET {_CHANGES} WHERE run_id = :run_id AND owner = :owner"  # noqa: S608 - constants
_PROGRESS: Final = "UPDATE runs SET logged = :logged, bytes = :bytes WHERE run_id = :run_id AND owner = :owner"


def equal_to(columns: Mapping[str, str]) -> tuple[list[str], dict[str, Value]]:
    """Return conditions that columns have these values, and the values."""
    return [f"{name} = :{name}" for name in columns], dict(columns)


def run_values(run: StoredRun) -> dict[str, Value]:
    """Return the values of a run's row."""
    summary = run.state.run
    return {
        **{name: getattr(run, name) for name in _SAME},
        **{name: getattr(summary, name) for name in ("agent_id", "company_id", "task_key")},
        "outcome": summary.result.outcome,
        "state": run.state.SerializeToString(),
        "bytes": run.size,
        "place": encode_place(run.assignment, run.router),
    }


def runs_sql(query: RunQuery, before: tuple[float, str] | None, size: int) -> Statement:
    """Return the query for a page of runs, newest first."""
    columns = {"adapter": query.adapter, "agent_id": query.agent_id, "task_key": query.task_key}
    where, values = equal_to({key: value for key, value in columns.items() if value})
    if query.outcome:
        where.append("outcome = :outcome")
        values["outcome"] = query.outcome
    if query.live_only:
        where.append("finished_at IS NULL")
    if before is not None:
        where.append("(accepted_at, run_id) < (:accepted_at, :run_id)")
        values |= {"accepted_at": before[0], "run_id": before[1]}
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    sql = f"SELECT {RUN_COLUMNS} FROM runs{condition} ORDER BY accepted_at DESC, run_id DESC LIMIT :size"  # noqa: S608 - constants
    return sql, {**values, "size": size}


def insertion(run: StoredRun) -> Statement:
    """Return the statement that inserts a run's row, unless another run has its id.

    It may be there itself, inserted by a transaction whose answer was lost; then it is updated.
    """
    return _INSERT, run_values(run)


def addition(row: StoredEvents, owner: str) -> Statement:
    """Return the statement that adds events, if their run is still this owner's."""
    # A transaction whose answer was lost may have been done; it is repeated, perhaps with more events.
    sql = (
        "INSERT INTO events (run_id, first, last, data) SELECT :run_id, :first, :last, CAST(:data AS blob)"
        " WHERE EXISTS (SELECT 1 FROM runs WHERE run_id = :run_id AND owner = :owner)"
        " ON CONFLICT (run_id, first) DO UPDATE SET last = excluded.last, data = excluded.data"
        " WHERE excluded.last > events.last"
    )
    data = None if row.events is None else pack(row.events)
    return sql, {"run_id": row.run_id, "first": row.first, "last": row.last, "data": data, "owner": owner}


def update(run: StoredRun | StoredProgress) -> Statement:
    """Return the statement that updates a run's row, if it is still its owner's."""
    if isinstance(run, StoredProgress):
        return _PROGRESS, {"run_id": run.run_id, "owner": run.owner, "logged": run.logged, "bytes": run.size}
    values = run_values(run)
    return _UPDATE, {name: values[name] for name in ("run_id", *_CHANGING)}


def stored_run(row: Row) -> StoredRun:
    """Return the run of a row with ``RUN_COLUMNS``."""
    *columns, last, beyond = row
    fields = dict(zip(_COLUMNS.split(", "), columns, strict=True))
    fields["logged"] = max(cast("int", fields["logged"]), cast("int", last))
    state = router_pb2.GetRunResponse.FromString(cast("bytes", fields.pop("state")))
    if fields["finished_at"] is None:
        # Not written with every event.
        state.run.last_sequence = max(state.run.last_sequence, cast("int", fields["logged"]))
    size = cast("int", fields.pop("bytes")) + cast("int", beyond)
    assignment, router = decode_place(cast("str", fields.pop("place")))
    more = {"state": state, "size": size, "assignment": assignment, "router": router}
    return StoredRun(**fields, **more)  # type: ignore[arg-type]  # columns of many types
