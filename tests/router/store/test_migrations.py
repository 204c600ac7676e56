"""Run logs of earlier schemas: today's router opens and reads them."""

import contextlib
import itertools
import os
import sqlite3
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

import pytest
import yoyo
from dragoman.router.storage.batches import pack
from dragoman.router.storage.database import migrate
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2

from tests.router.harness import config, kinds, routing

_INSERT: Final = (
    "INSERT INTO runs (run_id, accepted_at, finished_at, adapter, agent_id, company_id, task_key, outcome, digest,"
    " state, reserved, logged, bytes, owner, lease_until, place, orphan_after)"
    " VALUES ('old', 1, 4e9, 'fake', '', '', 'task', :outcome, NULL, :state, 7, 2, :bytes, 'gone', 0, '{}', 0)"
)


def make_first_schema(path: Path) -> sqlite3.Connection:
    """Create a database with the first migration alone."""
    folder = files("dragoman.router.storage") / "migrations"
    with yoyo.get_backend(f"sqlite:///{path}") as backend, as_file(folder) as scripts:
        migrations = yoyo.read_migrations(str(scripts)).filter(lambda migration: migration.id == "0001.runs")
        backend.apply_migrations(backend.to_apply(migrations))
    return sqlite3.connect(path)


def columns_of(connection: sqlite3.Connection) -> set[str]:
    return {name for _number, name, *_rest in connection.execute("PRAGMA table_info(runs)")}


class _EndedError(Exception):
    """The program has ended: nothing more of it reaches the database."""


def test_a_first_start_that_ends_at_any_point_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = yoyo.backends.DatabaseBackend.execute

    def tables(path: Path) -> set[str]:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return {
                sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE '%yoyo%'")
            }

    migrate(f"sqlite:///{tmp_path}/whole.db")
    for number in itertools.count(1):
        path, left = tmp_path / f"{number}.db", itertools.count(number, -1)

        def until_the_end(
            self: yoyo.backends.DatabaseBackend,
            sql: str,
            *args: Any,
            left: "itertools.count[int]" = left,
        ) -> Any:
            if "INSERT" in sql and next(left) <= 0:  # it notes that something is done
                raise _EndedError
            return execute(self, sql, *args)

        with monkeypatch.context() as patch:
            patch.setattr(yoyo.backends.DatabaseBackend, "execute", until_the_end)
            try:
                migrate(f"sqlite:///{path}")
            except _EndedError:
                pass
            else:
                break
        migrate(f"sqlite:///{path}")
        assert tables(path) == tables(tmp_path / "whole.db")
    assert number > 5


async def test_a_log_of_the_first_schema_is_opened_and_its_runs_are_read(folder: Path) -> None:
    path = folder / "s" / "runs.db"
    path.parent.mkdir(mode=0o700)
    result = event_pb2.Result(outcome=event_pb2.OUTCOME_SUCCEEDED)
    summary = router_pb2.RunSummary(run_id="old", adapter="fake", task_key="task", result=result, last_sequence=2)
    summary.finished_at.FromSeconds(4_000_000_000)
    packed = pack(
        event.SerializeToString()
        for event in (
            event_pb2.AgentEvent(sequence=1, run_id="old", attempt=1, started=event_pb2.Started()),
            event_pb2.AgentEvent(sequence=2, run_id="old", attempt=1, result=result),
        )
    )
    connection = make_first_schema(path)
    with connection:
        state = router_pb2.GetRunResponse(run=summary).SerializeToString()
        connection.execute(_INSERT, {"outcome": result.outcome, "state": state, "bytes": len(packed)})
        connection.execute("INSERT INTO events VALUES ('old', 1, 2, ?)", (packed,))
        key = adapter_pb2.SessionKey(task_key="task")
        session = router_pb2.StoredSession(key=key, adapter="fake")
        session.used_at.FromSeconds(4_000_000_000)
        connection.execute(
            "INSERT INTO sessions VALUES ('', '', 'fake', 'task', 4e9, ?)", (session.SerializeToString(),)
        )
    assert "reserved" in columns_of(connection)
    connection.close()

    async with routing(config(folder)) as (_router, caller):
        assert (await caller.run("old")).run == summary
        listed = await caller.router.ListRuns(router_pb2.ListRunsRequest(task_key="task"))
        assert [run.run_id for run in listed.runs] == ["old"]
        sessions = await caller.router.ListSessions(router_pb2.ListSessionsRequest())
        assert list(sessions.sessions) == [session]
        of_agent = router_pb2.ListSessionsRequest(agent_name="reviewer")
        assert not (await caller.router.ListSessions(of_agent)).sessions
        replayed = await caller.attach("old", 0).rest()
        assert [kind for kind in kinds(replayed) if kind != "replay_done"] == ["started", "result"]
    connection = sqlite3.connect(path)
    assert "reserved" not in columns_of(connection)
    connection.close()


async def test_a_user_without_a_name_can_open_a_run_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a container whose user its image does not know."""

    def no_name() -> str:
        if "LOGNAME" in os.environ:
            return os.environ["LOGNAME"]
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.delenv("LOGNAME", raising=False)
    monkeypatch.setattr("getpass.getuser", no_name)
    async with routing(config(folder)) as (_router, caller):
        listed = await caller.router.ListRuns(router_pb2.ListRunsRequest())
        assert list(listed.runs) == []
    assert "LOGNAME" not in os.environ
