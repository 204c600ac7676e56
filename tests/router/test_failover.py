"""When a router looks for runs without a router, whatever the log does meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dragoman.router.cluster.failover import COMMAND, Failover
from dragoman.router.storage.database import StoreError
from structlog.testing import capture_logs


class Log:
    """A run log whose leases cannot be read."""

    def __init__(self, error: Exception, owner: str = "o") -> None:
        self.owner = owner
        self.store = SimpleNamespace(leases=self)
        self.ownership = self.health = self
        self.failures = 0
        self._error = error

    async def owners(self) -> list[str]:
        raise self._error

    def record_failure(self) -> None:
        self.failures += 1


def failover(log: Log, tasks: Any) -> Failover:
    anything: Any = None
    log_: Any = log
    return Failover(anything, log_, anything, anything, tasks, 1.0)


class Tasks:
    """What is started in the background, and never runs."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def start(self, work: Any, name: str) -> None:
        work.close()
        self.names.append(name)


async def test_a_log_that_cannot_be_read_is_logged_and_tried_again() -> None:
    log, tasks = Log(StoreError("disk is full")), Tasks()
    with capture_logs() as logs:
        await failover(log, tasks).begin()
    assert logs == [{"event": "failover check failed, will retry", "why": "disk is full", "log_level": "warning"}]
    assert log.failures == 1
    assert tasks.names == ["failover"]


async def test_the_router_of_a_command_looks_once() -> None:
    log, tasks = Log(StoreError("x"), f"a{COMMAND}"), Tasks()
    await failover(log, tasks).begin()
    assert (log.failures, tasks.names) == (1, [])


async def test_a_router_that_is_about_to_end_looks_at_nothing() -> None:
    log, tasks = Log(AssertionError("it was read")), Tasks()
    leaving = failover(log, tasks)
    leaving.leave()
    await leaving.begin()
    assert log.failures == 0


async def test_it_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 3:
            raise asyncio.CancelledError

    log, pauses = Log(StoreError("x")), list[float]()
    watching = failover(log, Tasks())
    monkeypatch.setattr("dragoman.router.cluster.failover.asyncio.sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        await watching._watch()
    assert (log.failures, pauses) == (3, [3.0] * 4)


async def test_a_run_that_many_clients_ask_for_is_looked_for_once() -> None:
    known, run = dict[str, Any](), cast("Any", object())

    class Found(Log):
        """A run log with one run of a router that is gone."""

        async def owners(self) -> list[str]:
            self.failures += 1
            await asyncio.sleep(0)  # the others ask meanwhile
            known["r"] = run
            return []

        async def claim(self, _of: str) -> list[Any]:
            return []

        async def find(self, _run_id: str) -> Any:
            return stored

    log: Any = Found(AssertionError())
    anything: Any = SimpleNamespace(find=known.get, is_gone=lambda _owner: True)
    asked = Failover(anything, log, anything, anything, Tasks(), 1.0)  # type: ignore[arg-type]  # a stand-in
    stored: Any = SimpleNamespace(run_id="r", owner="gone", finished_at=None, lease_until=9.0)
    assert await asyncio.gather(*(asked.take(stored) for _ in range(3))) == [run] * 3
    assert log.failures == 1
