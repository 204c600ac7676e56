"""The adapter of a command that starts before the command line is read."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from dragoman.cli.connection.early import started_early
from dragoman.cli.main import main
from dragoman.router.adapters.discovery import entry_point_specs
from dragoman.router.adapters.launch_spec import OURS, LaunchSpec, installed_launch
from dragoman.router.adapters.starting import GuardStarter, StartedGuard

from tests.router.harness import PATIENCE_S, is_alive

RUN = ["process", "hello", "--config", "command=cat"]


@pytest.fixture(autouse=True)
def without_a_router(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRAGOMAN_ROUTER", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def handed_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StartedGuard]]:
    """The guards that were prepared or used, each time."""
    start, found = GuardStarter.start, list[StartedGuard]()

    def recorded(self: GuardStarter, name: str, spec: LaunchSpec, *, for_run: bool = False) -> StartedGuard:
        found.append(start(self, name, spec, for_run=for_run))
        return found[-1]

    monkeypatch.setattr(GuardStarter, "start", recorded)
    yield found
    assert not any(is_alive(started.process.pid) for started in found)


def test_what_starts_early_is_what_the_entry_points_name() -> None:
    ours = [spec for spec in entry_point_specs() if spec.reference]
    assert len(ours) > 10
    assert [spec.launch for spec in ours] == [installed_launch(f"{OURS}{spec.name}:adapter") for spec in ours]


def test_a_run_gets_the_adapter_that_started_early(
    handed_out: list[StartedGuard], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *RUN]) == 0
    assert "hello" in capsys.readouterr().out
    assert len(handed_out) == 3, "before the command line is read, once the adapters are known, and for the run"
    assert len({started.process.pid for started in handed_out}) == 1


def test_nothing_is_left_of_one_that_started_in_vain(
    handed_out: list[StartedGuard], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *RUN, "--confg", "x=1"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("", "Usage: dragoman run [OPTIONS] ADAPTER [PROMPT]")
    (started,) = handed_out
    assert not started.paths.socket.parent.exists()


IMPORTS = """
import sys
from dragoman.cli.connection.early import started_early
with started_early(sys.argv[1:]) as starting:
    (started,) = starting.starter._prepared
    print(started.process.pid, started.process.stdout.readline().decode(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_it_ends_with_a_command_that_is_killed_while_it_still_imports(signum: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTS, *RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        guard_pid, _, event = command.stdout.readline().partition(" ")
        started = [psutil.Process(int(guard_pid)), psutil.Process(json.loads(event)["pid"])]
        command.send_signal(signum)
    _, left = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert not left


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["@reviewer", "hello"],
        ["--json", *RUN],
        ["no_such_adapter", "hello"],
        ["os.path", "hello"],
        ["process", "-"],
        [*RUN, "-h"],
        [*RUN, "--detach"],
        [*RUN, "--router", "127.0.0.1:9"],
        [*RUN, "--router=127.0.0.1:9"],
    ],
)
def test_no_adapter_starts_early_for(arguments: list[str], handed_out: list[StartedGuard]) -> None:
    with started_early(arguments) as starting:
        assert starting is None
    assert handed_out == []


def test_no_adapter_starts_early_where_a_router_is_named(
    handed_out: list[StartedGuard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_ROUTER", "127.0.0.1:9")
    with started_early(RUN) as starting:
        assert starting is None
    assert handed_out == []


def test_no_adapter_starts_early_without_a_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with started_early(RUN) as starting:
        assert starting is None
