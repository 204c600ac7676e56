"""The process adapter as a program of its own: served by the command line, stopped by signals, killed."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from socket import socketpair

import pytest
import pytest_asyncio
from dragoman.client import Client, DragomanError
from dragoman.guard.launch import AdapterOptions, adapter_guard, guard_command
from dragoman.guard.processes import carriers
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.process import fake_agent
from tests.adapters.process.arena import COMMAND_VARIABLE, SECRETS, duration
from tests.adapters.process.journal import facts, journalled, read_journal, received
from tests.hostile import hostile, is_alive
from tests.sdk.serving import DEADLINE_S


class Program:
    """``dragoman adapter serve process`` in a process of its own."""

    def __init__(
        self, process: asyncio.subprocess.Process, address: str, root: Path, log: Path, temporary: Path
    ) -> None:
        self.temporary = temporary
        self.process = process
        self.address = address
        self.root = root
        self.log = log
        self.journal = root / "journal"

    def request(self, *steps: str) -> api.ExecuteRequest:
        request = api.ExecuteRequest(prompt="do it", auth_token=SECRETS[0], adapter="process")
        request.workspace.cwd = str(self.root)
        args = ["-I", "-S", str(fake_agent.__file__), "--journal", str(self.journal), *steps]
        request.config.update({"command": sys.executable, "args": args})
        request.env["ENV_SECRET"] = SECRETS[1]
        request.env["DRAGOMAN_TEST_HUNT"] = str(self.root)
        request.limits.grace.CopyFrom(duration(0.3))
        request.orphan_after.CopyFrom(duration(DEADLINE_S))
        return request

    def clean_up(self) -> None:
        """Kill what a failed test has left."""
        daemons = facts(read_journal(self.journal), "daemon") if self.journal.exists() else []
        for pid in [*carriers(f"DRAGOMAN_TEST_HUNT={self.root}".encode()), *(entry["pid"] for entry in daemons)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run_directories(self) -> list[Path]:
        return list(self.temporary.glob("dragoman-run-*"))


def served_by() -> list[str]:
    """Return the command of the adapter that is tested."""
    own = [sys.executable, "-m", "dragoman.cli.main", "adapter", "serve", "process", "--log-format", "json"]
    other = os.environ.get(COMMAND_VARIABLE)
    return [other] if other else own


@pytest_asyncio.fixture
async def program(tmp_path: Path) -> AsyncIterator[Program]:
    async with serving_program(tmp_path, guarded=False) as running:
        yield running


@pytest_asyncio.fixture
async def guarded_program(tmp_path: Path) -> AsyncIterator[Program]:
    """One that was started as a router starts it, under a guard."""
    async with serving_program(tmp_path, guarded=True) as running:
        yield running


@contextlib.asynccontextmanager
async def serving_program(tmp_path: Path, *, guarded: bool) -> AsyncIterator[Program]:
    # Short: in a folder with a long name the adapter would not make its run directories.
    temporary = Path(tempfile.mkdtemp(prefix="t-"))
    socket, log = tmp_path / "s", tmp_path / "log"
    command = served_by()
    environment = {**os.environ, "TMPDIR": str(temporary), "DRAGOMAN_LISTEN": f"unix:{socket}"}
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("wb"))
        inherited = []
        if guarded:
            options = AdapterOptions(
                instance=temporary / "instance",
                instance_id="i",
                control=temporary / "control",
                log=temporary / "log",
                listen=f"unix:{socket}",
            )
            _, theirs = (stack.enter_context(end) for end in socketpair())
            arguments = adapter_guard(command, options, control_fd=theirs.fileno())
            command, words_fd = stack.enter_context(guard_command(arguments))
            inherited += [theirs.fileno(), words_fd]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=output, stderr=output, cwd=tmp_path, pass_fds=inherited
        )
    program = Program(process, f"unix:{socket}", tmp_path, log, temporary)
    try:
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate() if guarded else process.kill()
        await process.wait()
        program.clean_up()
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.asynccontextmanager
async def connect(program: Program) -> AsyncIterator[Client]:
    """Return a client once the program answers."""
    async with Client(program.address) as client:
        async with asyncio.timeout(DEADLINE_S):
            while not await _answers(client):
                assert program.process.returncode is None, program.log.read_text()
        yield client


async def _answers(client: Client) -> bool:
    try:
        await client.describe("process")
    except DragomanError:
        return False
    return True


async def until_gone(pids: list[int]) -> None:
    """Wait until none of these processes is left."""
    async with asyncio.timeout(DEADLINE_S):
        while any(map(is_alive, pids)):  # noqa: ASYNC110 - no process here is their parent
            await asyncio.sleep(0.01)


async def test_a_run_through_a_process_of_its_own(program: Program) -> None:
    async with connect(program) as client:
        assert (await client.describe("process")).pid == program.process.pid
        request = program.request("out=$ENV_SECRET", "flood=500", "err=$DRAGOMAN_API_KEY", "daemon=wiped", "deaf")
        async with client.execute(request) as run:
            events = [event async for event in run]
    check_stream(events, secrets=SECRETS)
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    assert len(received(events)["stdout"]) == len(journalled(read_journal(program.journal))["stdout"])
    (daemon,) = facts(read_journal(program.journal), "daemon")
    assert not is_alive(daemon["pid"])
    assert (program.root / "s").stat().st_mode & 0o777 == 0o600
    assert program.run_directories() == []
    log = program.log.read_text()
    assert "run ended" in log
    assert not any(secret in log for secret in SECRETS)
    assert "do it" not in log


def request_that_kills_its_guard(program: Program, name: str) -> api.ExecuteRequest:
    """Return a request for a run that leaves a daemon, notes its pid in a file of that name, and kills its guard."""
    request = program.request()
    command, *args = hostile("kills_its_guard", str(program.root / name))
    request.config.update({"command": command, "args": args})
    return request


@pytest.mark.own_adapter
async def test_an_agent_that_kills_its_guard_leaves_nothing(guarded_program: Program) -> None:
    """Its daemon has shed all that says whose it is. A run beside it goes on."""
    beside = guarded_program.request("daemon=wiped", "out=ready", "hang")
    async with connect(guarded_program) as client, client.execute(beside) as other:
        async for event in other:
            if event.HasField("log"):
                break
        (kept,) = facts(read_journal(guarded_program.journal), "daemon")
        async with client.execute(request_that_kills_its_guard(guarded_program, "daemon")) as run:
            events = [event async for event in run]
        assert events[-1].result.outcome == pb.OUTCOME_FAILED
        assert events[-1].result.tree_confirmed_dead
        assert not is_alive(int((guarded_program.root / "daemon").read_text()))
        assert is_alive(kept["pid"]), "of another run"
        await other.cancel(grace_s=0)
        last = [event async for event in other][-1]
        assert last.result.tree_confirmed_dead
    assert not is_alive(kept["pid"])


async def test_what_cannot_be_confirmed_is_not_claimed(program: Program) -> None:
    """Without a guard above the adapter no ancestor of such a daemon could report its end."""
    async with connect(program) as client, client.execute(request_that_kills_its_guard(program, "daemon")) as run:
        events = [event async for event in run]
    os.kill(int((program.root / "daemon").read_text()), signal.SIGKILL)
    assert events[-1].result.HasField("tree_confirmed_dead")
    assert not events[-1].result.tree_confirmed_dead


async def test_sigterm_drains(program: Program) -> None:
    async with connect(program) as client:
        async with client.execute(program.request("out=ready", "daemon", "hang")) as run:
            async for event in run:
                if event.HasField("log"):
                    program.process.send_signal(signal.SIGTERM)
        assert run.result is not None
        assert run.result.outcome == pb.OUTCOME_CANCELLED
        assert run.result.tree_confirmed_dead
    assert await asyncio.wait_for(program.process.wait(), DEADLINE_S) == 0
    assert program.run_directories() == []
    assert "adapter stopped" in program.log.read_text()


async def test_a_second_signal_hurries(program: Program) -> None:
    request = program.request("deaf", "out=ready", "hang")
    request.limits.grace.CopyFrom(duration(1000))
    async with connect(program) as client:
        async with client.execute(request) as run:
            async for event in run:
                if event.HasField("log"):
                    program.process.send_signal(signal.SIGTERM)
                if event.state.phase == pb.RUN_PHASE_CANCELLING:
                    program.process.send_signal(signal.SIGTERM)
        assert run.result is not None
        assert run.result.signal == "SIGKILL"
    assert await asyncio.wait_for(program.process.wait(), DEADLINE_S) == 0


async def test_killed_it_takes_its_agents_with_it(program: Program) -> None:
    async with connect(program) as client:
        run = client.execute(program.request("deaf", "daemon=wiped", "out=ready", "hang"))
        pids: list[int] = []
        async for event in run:
            if event.state.pid:
                pids.append(event.state.pid)
            if event.HasField("log"):
                break
        await run.aclose()
        pids.append(facts(read_journal(program.journal), "daemon")[0]["pid"])
        program.process.kill()
        await until_gone(pids)


async def test_a_socket_that_is_taken_is_reported(program: Program) -> None:
    async with connect(program):
        second = await asyncio.create_subprocess_exec(
            *served_by(),
            env={**os.environ, "DRAGOMAN_LISTEN": program.address},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(second.communicate(), DEADLINE_S)
        assert second.returncode not in {0, None}
        assert b"another server listens" in output
        assert b"Traceback" not in output
