"""The run log as a file: it shrinks and is wiped, is noticed when it goes, is copied and put back, and says how."""

import contextlib
import os
import sqlite3
import unittest.mock
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dragoman.router.model.ports import Clock
from dragoman.router.model.stored import StoredEvents, StoredRun
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.retention import RetentionPolicy, RetentionTask
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store
from dragoman.v1 import router_pb2

from tests.router.store.writer_harness import DEADLINE_S, WriterHarness, has_begun

MARK = b"what-an-agent-said-in-confidence"


def run_of(run_id: str, finished_at: float | None = 2.0) -> StoredRun:
    state = router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id=run_id, task_key=MARK.decode()))
    return StoredRun(run_id, 1.0, "process", state, owner="one", lease_until=50.0, finished_at=finished_at, logged=1)


async def fill(store: Store, runs: int, size: int = 200_000) -> None:
    for number in range(runs):
        run = run_of(f"r{number}")
        await store.begin(run)
        await store.write([StoredEvents(run.run_id, 1, 1, [MARK * (size // len(MARK))])], [run])


def bytes_of(path: Path) -> bytes:
    return b"".join(found.read_bytes() for found in sorted(path.parent.glob(f"{path.name}*")))


class Now(Clock):
    def time(self) -> float:
        return 1000.0

    def monotonic(self) -> float:
        return 1000.0

    def chance(self) -> float:
        return 0.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    store = Store(SqliteDatabase(path))
    await store.open()
    yield store
    await store.close()


async def test_what_is_forgotten_is_nowhere_in_the_file_and_gives_its_space_back(store: Store, path: Path) -> None:
    await fill(store, 30)
    assert MARK in bytes_of(path)
    before = len(bytes_of(path))
    assert before > 6_000_000
    await RetentionTask(store, Now(), RetentionPolicy(seconds=0, most_bytes=0)).forget()
    assert MARK not in bytes_of(path)
    assert len(bytes_of(path)) < before / 3


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("by", ["nothing", "copy"])
async def test_a_file_that_goes_while_it_is_used_is_noticed_and_what_takes_its_place_left_alone(
    harness: WriterHarness, tmp_path: Path, by: str
) -> None:
    run = harness.run()
    path, copy = tmp_path / "runs.db", tmp_path / "copy"
    assert await has_begun(run)
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(copy)) as copied:
        source.backup(copied)
    run.append(1, b"one")
    assert await run.flushed(DEADLINE_S)
    if by == "nothing":
        path.unlink()
    else:
        os.replace(copy, path)  # noqa: PTH105 - what a person would do
    for _ in range(3):
        with pytest.raises(StoreError, match="was deleted or replaced while it was in use; restart"):
            await harness.store.run("r")
    run.append(2, b"two")
    await harness.until(lambda: harness.notices == ["log_unavailable"])
    assert harness.lost == []
    assert path.exists() is (by == "copy")
    if by == "copy":
        with contextlib.closing(sqlite3.connect(path)) as check:
            assert check.execute("SELECT count(*) FROM events").fetchall() == [(0,)]
            assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("meanwhile", ["nothing", "another"])
@pytest.mark.parametrize("moved", ["", "*"], ids=["alone", "with its companions"])
async def test_a_file_that_comes_back_is_used_again_with_all_that_was_written(
    harness: WriterHarness, tmp_path: Path, meanwhile: str, moved: str
) -> None:
    run, path, away = harness.run(), tmp_path / "runs.db", tmp_path / "away"
    assert await has_begun(run)
    run.append(1, b"one")
    assert await run.flushed(DEADLINE_S)
    away.mkdir()
    names = [found.name for found in tmp_path.glob(f"runs.db{moved}")]
    for name in names:
        (tmp_path / name).rename(away / name)
    if meanwhile == "another":
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("CREATE TABLE mine (one)")
    run.append(2, b"two")
    await harness.until(lambda: harness.notices == ["log_unavailable"])
    if meanwhile == "another":
        with contextlib.closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    for name in names:
        (away / name).rename(tmp_path / name)
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"one", b"two"]
    assert harness.notices == ["log_unavailable", "log_recovered"]
    assert harness.lost == []
    assert list(tmp_path.glob("*-aside")) == []


async def test_a_file_that_came_back_is_opened_though_that_failed_at_first(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.setting("key", b"value") == b"value"
    path.rename(path.with_name("away"))
    with pytest.raises(StoreError, match="deleted or replaced"):
        await store.run("r")
    path.with_name("away").rename(path)
    with monkeypatch.context() as patch:
        patch.setattr(
            SqliteDatabase, "_is_current", unittest.mock.Mock(side_effect=sqlite3.OperationalError("locked"))
        )
        with pytest.raises(StoreError, match="locked"):
            await store.run("r")
    assert await store.setting("key", b"new") == b"value"


async def test_a_file_that_was_put_in_its_place_is_whole_after_the_end_too(path: Path) -> None:
    database = SqliteDatabase(path)
    store = Store(database)
    await store.open()
    backup = path.with_name("backup")
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(backup)) as copied:
        source.backup(copied)
    await store.setting("key", b"only in the file that goes")
    backup.replace(path)
    await store.close()
    assert [found.name for found in path.parent.glob(f"{path.name}-*")] == []
    await store.open()
    assert await store.setting("key", b"new") == b"new"
    await store.close()


async def test_a_damaged_file_is_refused_with_what_to_do(path: Path) -> None:
    store = Store(SqliteDatabase(path))
    await store.open()
    await fill(store, 3)
    await store.close()
    content = bytearray(path.read_bytes())
    content[4096 : 4096 * 20] = b"\x55" * (4096 * 19)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"corrupt.*restore a backup.*move the file away"):
        await store.open()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"corrupt.*not a database.*restore a backup.*move the file away"):
        await SqliteDatabase(path).open()


async def test_a_copy_taken_while_it_is_written_is_a_run_log(store: Store, path: Path, tmp_path: Path) -> None:
    await fill(store, 3)
    backup = tmp_path / "backup.db"
    with sqlite3.connect(path) as source:  # as `sqlite3 runs.db "VACUUM INTO 'backup.db'"`
        source.execute("VACUUM INTO ?", (str(backup),))
    source.close()
    await fill(store, 4)
    restored = Store(SqliteDatabase(backup))
    await restored.open()
    assert [bool(await restored.run(f"r{number}")) for number in range(4)] == [True, True, True, False]
    assert len(await restored.events("r0", 0)) == 1
    await restored.close()
