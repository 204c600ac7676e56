"""The command line over the real thing: a router in it, its sidecars, and children of theirs."""

import asyncio
import json
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format

from tests.cli.program import dragoman, finish, start

# Each starts several programs, which take seconds each on a busy machine.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with a home of its own."""
    for name in ("home", "state", "cache", "config", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "run").mkdir(mode=0o700)
    folders = {f"XDG_{name.upper()}_HOME": str(tmp_path / name) for name in ("state", "cache", "config")}
    return {**folders, "HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}


def python(program: str) -> list[str]:
    """Return the options that make the process adapter run a Python program."""
    return ["--config", f"command={sys.executable}", "--config", f"args={json.dumps(['-u', '-c', program])}"]


async def test_a_run_through_a_router_of_its_own(home: dict[str, str], tmp_path: Path) -> None:
    program = "import os; print(input(), os.getcwd())"
    done = await dragoman("run", "process", "hello", *python(program), env=home, cwd=tmp_path / "work")
    assert (done.code, done.err) == (0, "")
    started, answer, last = done.out.splitlines()
    assert started == f"▶ process in {tmp_path / 'work'}"
    assert answer == f"hello {tmp_path / 'work'}"
    assert re.fullmatch(r"succeeded in .+ · tokens unknown · cost unknown · run run-[0-9a-f]+", last)
    assert list((tmp_path / "work").iterdir()) == []


async def test_a_failing_run_and_a_wrong_one(home: dict[str, str]) -> None:
    done = await dragoman("run", "process", "hi", *python("import sys; sys.exit(3)"), env=home)
    assert done.code == 1
    assert "exit code 3" in done.out
    done = await dragoman("run", "proces", "hi", env=home)
    assert done.code == 2
    assert "did you mean process?" in done.err


async def test_settings_unknown_to_a_fallback_adapter_are_reported_before_the_run(home: dict[str, str]) -> None:
    # Its schema is kept from here on.
    assert (await dragoman("describe", "http", env=home)).code == 0
    arguments = (
        "run",
        "process",
        "hi",
        *python("print(input())"),
        "--config",
        "promptVia=stdin",
        "--fallback",
        "http",
    )
    done = await dragoman(*arguments, env=home)
    assert (done.code, done.out) == (2, "")
    assert "does not know these settings of the request: promptVia" in done.err
    assert "--fallback-config" in done.err
    done = await dragoman(*arguments, "--fallback-config", '{"http": {"url": "http://127.0.0.1:9"}}', env=home)
    assert done.code == 0, done.err
    done = await dragoman(*arguments, "--fallback-config", '{"http": {}}', env=home)
    assert done.code == 0, done.err


async def test_a_fallback_adapter_gets_its_own_settings(home: dict[str, str]) -> None:
    settings = {"process": {"command": sys.executable, "args": ["-c", "print('it is', input())"]}}
    env = {**home, "ANTHROPIC_API_KEY": ""}
    first = ("model_api", "hi", "--config", "provider=anthropic")
    done = await dragoman("run", *first, "--fallback", "process", "--fallback-config", json.dumps(settings), env=env)
    assert done.code == 0, done.err
    assert "it is hi" in done.out


async def test_ctrl_c_ends_every_process_and_says_so(home: dict[str, str]) -> None:
    grandchild = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid); time.sleep(600)"
    process = await start("run", "process", "hi", "--json", *python(grandchild), env=home)
    assert process.stdout is not None
    pids: list[int] = []
    async for line in process.stdout:
        event = json_format.Parse(line, pb.AgentEvent())
        if event.state.pid:
            pids.append(event.state.pid)
        if event.HasField("log"):
            pids.append(int(event.log.text))
            break
    process.send_signal(signal.SIGINT)
    done = await finish(process)
    assert done.code == 130
    assert "all processes of the run are confirmed dead" in done.err
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))


async def test_a_killed_command_leaves_no_process_and_its_run_is_lost(home: dict[str, str]) -> None:
    """A grandchild too, in a session of its own; the command cannot do anything about it any more."""
    grandchild = (
        "import subprocess, time; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid);"
        "time.sleep(600)"
    )
    process = await start("run", "process", "hi", "--run-id", "r1", "--json", *python(grandchild), env=home)
    pids = [process.pid]
    assert process.stdout is not None
    async for line in process.stdout:
        event = json_format.Parse(line, pb.AgentEvent())
        if event.HasField("log"):
            pids += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
            assert int(event.log.text) in pids
            break
    killed = [psutil.Process(pid) for pid in pids]
    process.kill()
    await process.wait()
    done = await dragoman("show", "r1", "--json", env=home)
    summary = json.loads(done.out)["run"]
    assert summary["result"]["outcome"] == "OUTCOME_LOST"
    assert summary["result"]["failure"]["code"] == "adapter_lost"
    assert "ended with the command" in summary["result"]["failure"]["message"]
    attached = await dragoman("attach", "r1", env=home)
    assert attached.code == 1
    assert "lost" in attached.out
    # Its guard asks the sidecar to stop it, which takes as long as the agent takes, but ten seconds at most.
    _gone, alive = await asyncio.to_thread(psutil.wait_procs, killed, timeout=30)
    assert alive == []
    listed = await dragoman("runs", env=home)
    assert re.fullmatch(r"r1\b.*\blost\b.*\n", listed.out), listed.out


@pytest.mark.parametrize("options", [[], ["--uvloop"]], ids=" ".join)
async def test_a_served_router_knows_its_runs(options: list[str], home: dict[str, str], tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'run' / 'd.sock'}"
    server = await start("serve", "--listen", address, *options, env=home)
    assert server.stdout is not None
    assert await server.stdout.readline() == f"listening on {address}\n".encode()
    assert ("uvloop" in Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8")) is bool(options)
    env = {**home, "DRAGOMAN_ROUTER": address}
    try:
        ran = await dragoman("run", "process", "hi", "--run-id", "r1", *python("print(input())"), env=env)
        attached = await dragoman("attach", "r1", env=env)
        runs = await dragoman("runs", env=env)
        left = await dragoman("run", "process", "hi", "--detach", *python("print(input())"), env=env)
        late = await dragoman("attach", left.out.strip(), env=env)
        by_log = await dragoman("attach", "r1", env=home)  # without a router: from the user's run log
        shown = await dragoman("show", "r1", env=home)
        again = await dragoman("attach", "r1", "--after", shown.out.split("sequence")[1].split()[0], env=env)
        adapters = await dragoman("adapters", "--json", env=env)
    finally:
        server.send_signal(signal.SIGTERM)
        ended = await finish(server)
    assert (ran.code, attached.code, attached.out) == (0, 0, ran.out)
    assert runs.out.split()[:3] == ["r1", "succeeded", "process"]
    assert (left.code, left.out.startswith("run-")) == (0, True)
    assert (late.code, late.out.splitlines()[1], by_log.out) == (0, "hi", ran.out)
    assert "state     succeeded\n" in shown.out
    assert (again.code, again.err, again.out) == (0, "", ran.last_line + "\n")
    entries = {entry["adapter"]: entry for entry in map(json.loads, adapters.out.splitlines())}
    assert entries["process"]["state"] == "ADAPTER_STATE_READY"
    assert ended.code == 0
    assert not psutil.pid_exists(int(entries["process"]["pid"]))
    assert not psutil.pid_exists(int(entries["process"]["guardPid"]))


async def test_a_router_on_tcp_is_found_at_the_users_socket_too(home: dict[str, str], tmp_path: Path) -> None:
    own, named = f"unix:{home['XDG_RUNTIME_DIR']}/dragoman/router.sock", f"unix:{tmp_path / 'run' / 'n.sock'}"
    asked = [("127.0.0.1:0",), ("127.0.0.1:0",), ("127.0.0.1:0", named)]
    servers = []
    for number, addresses in enumerate(asked):
        arguments = [part for address in addresses for part in ("--listen", address)]
        arguments += ["--state-dir", str(tmp_path / "run" / str(number)), "--no-detect"]
        servers.append(await start("serve", *arguments, env=home))
    try:
        # Whichever of the first two is quicker has it; the one with a socket of its own wants no other.
        lines = [await listening(server) for server in servers]
        assert sorted(map(len, lines[:2])) == [1, 2]
        assert own in lines[0] + lines[1]
        assert lines[2][1:] == [named]
        ran = await dragoman("adapters", env=home)
        assert ran.code == 0
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
            await finish(server)


async def listening(server: asyncio.subprocess.Process) -> list[str]:
    """Return the addresses that a server prints before anything else, in one write."""
    assert server.stdout is not None
    text = (await server.stdout.read(4096)).decode()
    return [line.removeprefix("listening on ") for line in text.splitlines()]


async def started_log(env: dict[str, str], address: str, log_format: str) -> list[str]:
    """Return what a served router logs until it has reported which agents it found."""
    server = await start("serve", "--detect", "--listen", address, "--log-format", log_format, env=env)
    assert server.stdout is not None
    assert server.stderr is not None
    assert await server.stdout.readline() == f"listening on {address}\n".encode(), "that waits for nothing"
    seen = []
    async with asyncio.timeout(50):
        async for line in server.stderr:
            seen.append(line.decode())
            if "router ready;" in seen[-1] or ("agent detected" in seen[-1] and '"qwen"' in seen[-1]):
                break
    server.send_signal(signal.SIGTERM)
    await finish(server)
    return seen


async def test_a_served_router_reports_which_agents_it_found(home: dict[str, str], tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'run' / 'd.sock'}"
    env = {**home, "PATH": str(tmp_path)}  # no agent is here
    lines = await started_log(env, address, "json")
    found = [json.loads(line) for line in lines if "agent detected" in line]
    assert {one["adapter"]: one["available"] for one in found}["codex"] is False
    lines = await started_log(env, address, "console")  # which finds what the first has kept
    assert any("[dragoman] ✗ codex (not installed" in line for line in lines)
    assert any("[dragoman] ✓ process" in line for line in lines)
