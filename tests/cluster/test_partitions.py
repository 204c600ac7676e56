"""Two routers, an adapter and PostgreSQL on hosts of their own: cut, killed and drained.

No run is lost or done twice, and no event is lost, whichever cable is cut. These need no Kubernetes, but root.
"""

import asyncio
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from dragoman.client import Client, DragomanError, Reason, RunStream, execute_request
from dragoman.router.storage.postgres import PostgresDatabase
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

from tests.cluster.conftest import ready_adapters
from tests.cluster.lab import TESTS, Lab, Process, address, postgresql, postgresql_programs, running
from tests.cluster.node import Failed, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PATIENCE_S = 150.0
"""How long a test waits for what must come, on a busy machine."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """The hosts."""
    # Not pytest's own folder: each session closes that to other users, which PostgreSQL's is.
    with tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        with running(Path(name)) as lab:
            yield lab


@pytest.fixture(scope="module")
def server(lab: Lab) -> Iterator[str]:
    """PostgreSQL."""
    with postgresql(lab) as url:
        yield url


class Site:
    """Two routers with one log, an adapter, and a caller at each router."""

    def __init__(self, lab: Lab, run_log: str) -> None:
        self.lab = lab
        self.adapter = lab.start_adapter()
        self._run_log = run_log
        self.routers = {name: self._start(name) for name in ("one", "two")}
        self._folder = Path(tempfile.mkdtemp(dir=lab.folder / "adapter"))

    def _start(self, router: str) -> Process:
        return self.lab.start_router(router, self._run_log, drain_grace_s=10.0)

    def replace(self, router: str) -> None:
        """Have a router end, and start another one in its place."""
        self.routers[router].terminate()
        wait_until("the router has ended", self.routers[router].has_ended)
        self.routers[router] = self._start(router)

    def at(self, router: str) -> Client:
        """Return a caller of a router, which looks for its run for long enough."""
        return Client(f"{address(router)}:7777", reattach_s=PATIENCE_S)

    def request(self, run_id: str) -> adapter_pb2.ExecuteRequest:
        """Return a run that writes down that it begins, prints numbers, and waits for the test after every ten."""
        folder = self._folder
        script = f"""
            echo begun >>{folder}/{run_id}
            for number in $(seq 30); do
              echo $number
              [ $((number % 10)) -ne 0 ] || until [ -e {folder}/{run_id}-$number ]; do sleep 0.05; done
            done
        """
        request = execute_request("process", "", cwd="/", config={"command": "sh", "args": ["-c", script]})
        request.run_id = run_id
        request.orphan_after.FromSeconds(300)
        return request

    def go_on(self, run_id: str, *numbers: int) -> None:
        """Let a run pass the places where it waits."""
        for number in numbers:
            (self._folder / f"{run_id}-{number}").touch()

    def begun(self, run_id: str) -> int:
        """Return how often a run was begun."""
        return len((self._folder / run_id).read_text().splitlines())


@pytest.fixture
async def site(lab: Lab, server: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    for name, value in lab.variables(TESTS).items():
        monkeypatch.setenv(name, value)
    database = f"d{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    try:
        site = await asyncio.to_thread(Site, lab, server.removesuffix("postgres") + database)
        for router in site.routers:
            async with site.at(router) as client:
                await ready_adapters(client, "process")
        yield site
    finally:
        print(lab.logs())
        with psycopg.connect(server, autocommit=True) as connection:
            asked = "SELECT pid, client_addr, state, wait_event, now() - xact_start, query FROM pg_stat_activity"
            for row in connection.execute(f"{asked} WHERE datname = '{database}'"):
                print(*row)
        lab.end()


class Reader:
    """Reads a stream in the background."""

    def __init__(self, stream: RunStream) -> None:
        self.events: list[pb.AgentEvent] = []
        self._news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read(stream))

    async def _read(self, stream: RunStream) -> None:
        try:
            async with stream:
                async for event in stream:
                    self.events.append(event)
                    self._news.set()
        finally:
            self._news.set()

    def lines(self) -> list[int]:
        """Return the numbers that have come."""
        text = "".join(f"{event.log.text}\n" for event in self.events if event.HasField("log"))
        return [int(word) for word in text.split() if word.isdecimal()]

    async def until(self, number: int) -> None:
        """Wait until a number has come."""
        async with asyncio.timeout(PATIENCE_S):
            while number not in self.lines():
                assert not self._reading.done(), "the stream ended before"
                self._news.clear()
                await self._news.wait()

    async def stop(self) -> None:
        """Read no more."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def whole(self) -> None:
        """Wait for the end, and check that everything came, once and in order."""
        async with asyncio.timeout(PATIENCE_S):
            await self._reading
        check_stream(self.events)
        assert not [event for event in self.events if event.WhichOneof("body") == "gap"]
        assert self.lines() == list(range(1, 31))
        assert self.events[-1].result.outcome == pb.OUTCOME_SUCCEEDED, self.events[-1]


def test_a_cut_is_silent_and_can_be_healed(lab: Lab, server: str) -> None:
    """What the other tests rely on: nothing passes, and nothing is refused either."""
    connect = "import socket, sys; socket.create_connection((sys.argv[1], 5432), timeout=float(sys.argv[2])).close()"
    command = (sys.executable, "-c", connect, address("database"))
    lab.run("one", *command, "60")
    lab.cut("one", "database")
    with pytest.raises(Failed, match="TimeoutError"):
        lab.run("one", *command, "1")
    lab.run("two", *command, "60")
    lab.heal()
    lab.run("one", *command, "60")


async def test_what_a_router_that_is_cut_off_has_locked_is_soon_free(lab: Lab, server: str) -> None:
    """The other routers could take over none of its runs for as long as the database server waits for it."""
    database = PostgresDatabase(server)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    ask = (str(postgresql_programs() / "psql"), server, "--no-align", "--tuples-only", "--command", locks)

    def is_free() -> bool:
        return lab.run("two", *ask).strip() == "0"

    async with await psycopg.AsyncConnection.connect(server) as connection:
        await database._configure(connection)
        await connection.execute("SELECT pg_advisory_xact_lock(1)")
        assert not is_free()
        lab.cut(TESTS, "database")
        await asyncio.to_thread(wait_until, "the lock is free", is_free, 90.0)
        await connection.close()
    lab.heal()


async def test_a_run_is_followed_at_another_router_once_the_two_see_each_other(site: Site) -> None:
    async with site.at("one") as one, site.at("two") as two:
        here = Reader(one.execute(site.request("r")))
        await here.until(10)
        site.lab.cut("one", "two")
        async with Client(f"{address('two')}:7777", reattach_s=0) as hasty:
            with pytest.raises(DragomanError) as refused:
                await Reader(hasty.attach("r")).whole()
        assert refused.value.reason is Reason.ADAPTER_UNAVAILABLE
        assert refused.value.metadata["run_id"] == "r"
        there = Reader(two.attach("r", hold=True))
        site.go_on("r", 10)
        await here.until(20)
        site.lab.heal()
        await there.until(20)
        site.go_on("r", 20, 30)
        await here.whole()
        await there.whole()
    assert site.begun("r") == 1


async def test_a_run_moves_on_from_a_router_that_is_cut_off_from_all_but_its_caller(site: Site) -> None:
    """The other router takes it over; who asks the first one is led there once it sees the others again."""
    async with site.at("one") as one, site.at("two") as two:
        here = Reader(one.execute(site.request("r")))
        await here.until(10)
        site.lab.cut("one", "two", "database", "adapter")
        site.go_on("r", 10)
        there = Reader(two.attach("r", hold=True))
        await there.until(20)
        site.lab.heal()
        site.go_on("r", 20, 30)
        await there.whole()
        await here.whole()
    assert site.begun("r") == 1


async def test_a_run_moves_on_from_a_router_that_only_the_database_no_longer_sees(site: Site) -> None:
    """Both routers have the adapter's events for a while; each caller gets each of them once."""
    async with site.at("one") as one, site.at("two") as two:
        here = Reader(one.execute(site.request("r")))
        await here.until(10)
        site.lab.cut("one", "database")
        site.go_on("r", 10)
        there = Reader(two.attach("r", hold=True))
        await there.until(20)
        site.lab.heal()
        site.go_on("r", 20, 30)
        await there.whole()
        await here.whole()
    assert site.begun("r") == 1


async def test_nothing_is_lost_while_no_router_sees_the_database(site: Site) -> None:
    async with site.at("one") as one, site.at("two") as two:
        here = Reader(one.execute(site.request("r")))
        await here.until(10)
        site.lab.cut("database", "one", "two")
        site.go_on("r", 10)
        await here.until(20)
        site.lab.heal()
        site.go_on("r", 20, 30)
        await here.whole()
        await Reader(two.attach("r")).whole()
    assert site.begun("r") == 1


async def test_a_run_goes_on_unseen_while_its_adapter_is_cut_off(site: Site) -> None:
    async with site.at("one") as one, site.at("two") as two:
        here = Reader(one.execute(site.request("r")))
        await here.until(10)
        site.lab.cut("adapter", "one", "two")
        site.go_on("r", 10)
        there = Reader(two.attach("r"))
        await there.until(10)
        site.lab.heal()
        await here.until(20)
        site.go_on("r", 20, 30)
        await here.whole()
        await there.whole()
    assert site.begun("r") == 1


async def test_a_run_outlives_a_router_that_is_killed(site: Site) -> None:
    async with site.at("one") as one, site.at("two") as two:
        here = Reader(one.execute(site.request("r")))
        await here.until(10)
        site.routers["one"].kill()
        site.go_on("r", 10)
        there = Reader(two.attach("r", hold=True))
        await there.until(20)
        site.go_on("r", 20, 30)
        await there.whole()
        assert here.lines() == list(range(1, 11))
        await here.stop()
    assert site.begun("r") == 1


async def test_a_run_outlives_a_router_that_drains(site: Site) -> None:
    """It is read at the other router while the first drains, and after that one is gone."""
    async with site.at("one") as one, site.at("two") as two:
        here = Reader(one.execute(site.request("r")))
        await here.until(10)
        there = Reader(two.attach("r", hold=True))
        await there.until(10)
        site.routers["one"].terminate()
        site.go_on("r", 10)
        await there.until(20)
        late = Reader(two.attach("r", hold=True))
        await late.until(20)
        await asyncio.to_thread(wait_until, "the router has ended", site.routers["one"].has_ended)
        site.go_on("r", 20, 30)
        await there.whole()
        await late.whole()
        await here.stop()
    assert site.begun("r") == 1


async def test_no_run_is_lost_while_routers_and_certificates_are_replaced(site: Site) -> None:
    """Callers stay at the address of their router, which another one has after it."""
    async with site.at("one") as one, site.at("two") as two:
        at = {f"{name}-{number}": client for name, client in (("a", one), ("b", two)) for number in range(4)}
        readers = {run_id: Reader(client.execute(site.request(run_id))) for run_id, client in at.items()}
        for reader in readers.values():
            await reader.until(10)
        site.lab.renew_certificates()
        for run_id in readers:
            site.go_on(run_id, 10)
        for router in site.routers:
            await asyncio.to_thread(site.replace, router)
        for run_id in readers:
            site.go_on(run_id, 20, 30)
        for reader in readers.values():
            await reader.whole()
    assert {run_id: site.begun(run_id) for run_id in readers} == dict.fromkeys(readers, 1)
