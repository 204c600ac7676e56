"""Runs that share a login which renews itself take turns to start, in one process and in several."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio
from dragoman.client import Client
from dragoman.sdk._run import login_turn as module
from dragoman.sdk._run.login_lock import DUE_BEFORE_S, LoginLocks
from dragoman.sdk.detection import RenewingLogin
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.sdk.agents.test_command_line import codes
from tests.sdk.renewing import Account, RenewingAdapter, now
from tests.sdk.serving import DEADLINE_S, Sidecar, serving

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path)


@pytest_asyncio.fixture
async def sidecar() -> AsyncIterator[Sidecar]:
    async with serving(RenewingAdapter()) as running:
        yield running


def outcomes(runs: Iterable[list[pb.AgentEvent]]) -> list[str]:
    return [pb.Outcome.Name(events[-1].result.outcome) for events in runs]


def waits(events: Iterable[pb.AgentEvent]) -> list[str]:
    """Return the durable words about waiting for the login."""
    return [event.state.reason for event in events if event.sequence and "same login" in event.state.reason]


@pytest.mark.parametrize("lifetime_s", [3600.0, 0.0])
async def test_runs_at_once_use_no_token_twice(
    sidecar: Sidecar, account: Account, tmp_path: Path, lifetime_s: float
) -> None:
    requests = [account.request(tmp_path, lifetime_s=lifetime_s) for _ in range(4)]
    runs = await asyncio.gather(*(sidecar.begin(request).rest() for request in requests))
    assert outcomes(runs) == ["OUTCOME_SUCCEEDED"] * 4
    assert account.renewed() == (1 if lifetime_s else 4)
    assert sorted(len(waits(events)) for events in runs) == [0, 1, 1, 1]
    assert all(not codes(events) for events in runs)


async def test_the_turn_is_passed_on_as_soon_as_the_model_has_answered(
    sidecar: Sidecar, account: Account, tmp_path: Path
) -> None:
    first = sidecar.begin(account.request(tmp_path, "work", lifetime_s=0.0))
    await first.until("text")
    second = await asyncio.wait_for(sidecar.begin(account.request(tmp_path, lifetime_s=0.0)).rest(), DEADLINE_S)
    assert outcomes([second]) == ["OUTCOME_SUCCEEDED"]
    first.call.cancel()


async def test_cancelled_while_it_waits_it_never_starts(sidecar: Sidecar, account: Account, tmp_path: Path) -> None:
    first = sidecar.begin(account.request(tmp_path, "hang"))
    held = await first.until("message")
    second = sidecar.begin(account.request(tmp_path))
    while not waits([event := await second.until("state")]):
        pass
    await sidecar.stub.Cancel(api.CancelRequest(run_id=event.run_id))
    rest = await second.rest()
    assert outcomes([rest]) == ["OUTCOME_CANCELLED"]
    assert not any(event.HasField("message") for event in rest)
    await sidecar.stub.Cancel(api.CancelRequest(run_id=held.run_id))
    third = await asyncio.wait_for(sidecar.begin(account.request(tmp_path)).rest(), DEADLINE_S)
    assert outcomes([third]) == ["OUTCOME_SUCCEEDED"], "neither of them keeps the lock"


async def test_the_wait_is_not_the_agents_start(sidecar: Sidecar, account: Account, tmp_path: Path) -> None:
    first = sidecar.begin(account.request(tmp_path, "hang"))
    held = await first.until("message")
    run_request = account.request(tmp_path)
    run_request.limits.start_up.FromMilliseconds(900)
    run_request.limits.idle.FromMilliseconds(900)
    second = sidecar.begin(run_request)
    while not waits([await second.until("state")]):
        pass
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 1.2)  # longer than either limit
    await sidecar.stub.Cancel(api.CancelRequest(run_id=held.run_id))
    assert outcomes([await second.rest()]) == ["OUTCOME_SUCCEEDED"]


async def test_the_wait_is_bounded_and_then_the_run_goes_on(
    sidecar: Sidecar, account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_LIMIT_S", 0.5)
    first = sidecar.begin(account.request(tmp_path, "hang"))
    await first.until("message")
    second = await asyncio.wait_for(sidecar.begin(account.request(tmp_path)).rest(), DEADLINE_S)
    assert outcomes([second]) == ["OUTCOME_SUCCEEDED"]
    assert codes(second) == ["login_wait_over"]
    first.call.cancel()


async def test_a_login_that_is_good_for_long_needs_no_turn(sidecar: Sidecar, tmp_path: Path, state: Path) -> None:
    account = Account(tmp_path, expires=now() + DUE_BEFORE_S + 60)
    first = sidecar.begin(account.request(tmp_path, "hang"))
    await first.until("message")
    second = await sidecar.begin(account.request(tmp_path)).rest()
    assert (outcomes([second]), waits(second)) == (["OUTCOME_SUCCEEDED"], [])
    assert not state.exists()
    first.call.cancel()


async def test_nor_does_a_run_without_such_a_login(sidecar: Sidecar, account: Account, tmp_path: Path) -> None:
    first = sidecar.begin(account.request(tmp_path, "hang"))
    await first.until("message")
    run_request = account.request(tmp_path, "hang")
    run_request.env["LOGIN"] = str(tmp_path / "none")
    second = sidecar.begin(run_request)
    await second.until("message")
    for stream in (first, second):
        stream.call.cancel()


async def test_a_folder_of_strangers_is_not_trusted_and_the_run_goes_on(
    sidecar: Sidecar, account: Account, tmp_path: Path, state: Path
) -> None:
    folder = state / "dragoman" / "logins"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    events = await sidecar.begin(account.request(tmp_path)).rest()
    assert outcomes([events]) == ["OUTCOME_SUCCEEDED"]
    assert codes(events) == ["login_lock_unavailable"]


def test_one_login_by_two_names_is_one(tmp_path: Path) -> None:
    path = tmp_path / "login.json"
    path.touch()
    (tmp_path / "link").symlink_to(path)
    assert RenewingLogin(tmp_path / "link").key == RenewingLogin(path).key != RenewingLogin(tmp_path / "other").key
    assert str(tmp_path) not in RenewingLogin(path).key


async def test_the_lock_is_private_and_follows_no_link(tmp_path: Path) -> None:
    folder, login = tmp_path / "locks", RenewingLogin(tmp_path / "login.json")
    held = await LoginLocks(folder).take(login, lambda: None)
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    held.release()
    held.release()
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        await LoginLocks(folder).take(login, lambda: None)
    assert not (tmp_path / "elsewhere").exists()


# Several adapter processes.


@contextlib.asynccontextmanager
async def program(state: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, Client]]:
    """An adapter in a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="renewing-"))
    address = f"unix:{folder}/s"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.sdk.renewing", address),
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(DEADLINE_S):
            while b"adapter ready" not in await process.stderr.readline():
                assert process.returncode is None
        async with Client(address) as client:
            yield process, client
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
        shutil.rmtree(folder)


async def result(client: Client, request: api.ExecuteRequest) -> pb.Result:
    async with client.execute(request) as stream:
        async for _ in stream:
            pass
    assert stream.result is not None
    return stream.result


async def test_runs_of_several_processes_use_no_token_twice(account: Account, tmp_path: Path, state: Path) -> None:
    async with program(state) as (_, one), program(state) as (_, two):
        runs = [result(client, account.request(tmp_path, lifetime_s=0.0)) for client in (one, two, one, two)]
        results = await asyncio.wait_for(asyncio.gather(*runs), 2 * DEADLINE_S)
    assert [item.outcome for item in results] == [pb.OUTCOME_SUCCEEDED] * 4
    assert account.renewed() == 4


async def test_when_its_holder_is_killed_the_next_goes_on(account: Account, tmp_path: Path, state: Path) -> None:
    async with (
        program(state) as (process, one),
        program(state) as (_, two),
        one.execute(account.request(tmp_path, "hang")) as holder,
    ):
        async for event in holder:
            if event.HasField("message"):
                break
        async with two.execute(account.request(tmp_path)) as waiter:
            async for event in waiter:
                if waits([event]):
                    process.kill()
    assert waiter.result is not None
    assert waiter.result.outcome == pb.OUTCOME_SUCCEEDED
