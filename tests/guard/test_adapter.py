"""An adapter's guard: found by its instance file, owned by the routers that connect."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from dragoman.guard.instance import is_guarded, read_instance
from dragoman.guard.processes import read

from tests.hostile import DEADLINE_S, HERE, Hunt, await_end, hostile, is_alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.guard.guarded import Guarded, GuardedAdapter

    AdapterStarter = Callable[..., GuardedAdapter]

LIVES = hostile("lives")
DEAF = hostile("lives", "deaf")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


CLAIM_WITHIN_S = 1.5
"""Time for a test to claim what it started; more than a busy machine takes."""


def test_it_is_found_by_its_instance_file(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(LIVES)
    first = adapter.first()
    instance = read_instance(str(adapter.instance))
    assert instance is not None
    guard = read(adapter.process.pid)
    assert guard is not None
    assert instance.guard == (guard.pid, guard.started)
    assert instance.adapter == (first["pid"], first["started"])
    assert (instance.instance_id, instance.listen) == ("i-1", "unix:/nowhere")
    assert (instance.control, instance.log) == (str(adapter.control), str(adapter.log))
    assert instance.is_current(instance.adapter)
    assert is_guarded(str(adapter.instance))
    for path in (adapter.instance, adapter.control, adapter.log):
        assert path.stat().st_mode & 0o777 == 0o600


def test_its_command_line_names_neither_the_adapter_nor_a_path(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter((*LIVES, "plover-7731"))
    arguments = Path(f"/proc/{adapter.process.pid}/cmdline").read_text()
    assert "plover-7731" not in arguments
    assert str(adapter.log.parent) not in arguments


def test_it_takes_its_files_away_but_the_log(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(("sh", "-c", "echo out; echo err >&2; exit 3"))
    assert adapter.wait() == 3
    assert names(adapter.log.parent) == ["one.log"]
    pid = adapter.first()["pid"]
    assert adapter.log.read_text() == (
        f"out\nerr\ndragoman-guard: command {pid} exited with 3; killed [] after it; survivors []\n"
    )


def test_the_last_output_of_the_dying_is_logged(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(("sh", "-c", "head -c 60000 /dev/zero; kill -9 $$"))
    assert adapter.wait() == 128 + signal.SIGKILL
    assert adapter.log.read_bytes().count(b"\0") == 60000


def test_output_is_rotated(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(("sh", "-c", "seq 1000"), log_bytes=1000, log_keep=2)
    adapter.wait()
    assert names(adapter.log.parent) == ["one.log", "one.log.1", "one.log.2"]
    assert all(path.stat().st_size <= 1000 for path in adapter.log.parent.iterdir())
    assert b"\n1000\n" in adapter.log.read_bytes()


def test_a_second_guard_is_refused(start_adapter: AdapterStarter) -> None:
    first = start_adapter(LIVES)
    second = start_adapter(LIVES)
    assert second.wait() == 73
    assert "another guard holds" in second.stderr_text
    assert second.stdout_text == b""
    first.connect().send(signal="SIGTERM")
    assert first.wait() == 128 + signal.SIGTERM


def test_what_a_killed_guard_left_is_replaced(start_adapter: AdapterStarter, hunt: Hunt) -> None:
    killed = start_adapter(LIVES)
    killed.await_log("\n")  # it runs: in the middle of its exec it still has a copy of the lock
    killed.process.kill()
    killed.wait()
    assert "one.sock" in names(killed.log.parent)
    assert not is_guarded(str(killed.instance))
    stale = read_instance(str(killed.instance))
    assert stale is not None
    assert not stale.is_current(stale.guard)
    assert stale.is_current(stale.adapter)
    os.kill(stale.adapter[0], signal.SIGKILL)
    await_end(stale.adapter[0])
    assert hunt.left() == []
    adapter = start_adapter(LIVES)
    assert adapter.first()["event"] == "spawned"
    assert is_guarded(str(adapter.instance))


def test_a_failed_start_is_reported_to_the_launcher(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(("missing",))
    assert adapter.wait() == 127
    assert adapter.first()["errno"] == "ENOENT"
    assert "cannot start: No such file or directory: 'missing'" in adapter.stderr_text
    assert "cannot start" in adapter.log.read_text()
    assert names(adapter.log.parent) == ["one.log"]


def test_paths_that_cannot_be_used_are_named(start_adapter: AdapterStarter, tmp_path: Path) -> None:
    adapter = start_adapter(LIVES, control=tmp_path / "missing" / "c")
    assert adapter.wait() == 126
    assert f"cannot open {tmp_path}/missing/c: No such file or directory" in adapter.stderr_text
    assert names(adapter.log.parent) == ["one.log"]
    adapter = start_adapter(LIVES, control=tmp_path / ("c" * 107))
    assert adapter.wait() == 2
    assert "the system allows 107" in adapter.stderr_text


# -- claims


def test_unclaimed_it_is_asked_to_stop_then_killed(start_adapter: AdapterStarter) -> None:
    assert start_adapter(LIVES, orphan_after_s=0.1).wait() == 128 + signal.SIGTERM
    deaf = start_adapter(DEAF, orphan_after_s=CLAIM_WITHIN_S, grace_s=0.1)
    line = deaf.connect()
    deaf.await_log(f"{line.event()['pid']}\n")
    line.close()
    assert deaf.wait() == 128 + signal.SIGKILL


def test_its_launcher_claims_it_until_a_router_is_connected(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(LIVES, orphan_after_s=0.0, is_claimed=True)
    adapter.await_log("\n")  # it runs
    line = adapter.connect()
    adapter.claim.close()
    line.event()
    assert line.is_silent(0.2)
    line.close()
    assert adapter.wait() == 128 + signal.SIGTERM


def test_without_an_orphan_time_it_ends_with_its_launcher(start_adapter: AdapterStarter) -> None:
    assert start_adapter(LIVES, orphan_after_s=0.0).wait() == 128 + signal.SIGTERM


def test_a_claim_holds_while_one_router_is_connected(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(LIVES, orphan_after_s=CLAIM_WITHIN_S)
    first, second = adapter.connect(), adapter.connect()
    assert first.event() == second.event() == adapter.first()
    first.close()
    assert second.is_silent(CLAIM_WITHIN_S + 0.2)
    second.close()
    assert adapter.wait() == 128 + signal.SIGTERM


def test_a_new_router_can_claim_what_an_old_one_left(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(LIVES, orphan_after_s=CLAIM_WITHIN_S)
    adapter.connect().close()
    later = adapter.connect()
    later.event()
    assert later.is_silent(CLAIM_WITHIN_S + 0.2)
    later.send(signal="SIGTERM")
    assert [later.event()["event"] for _ in range(2)] == ["exited", "gone"]


def test_all_connected_routers_hear_the_end(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(DEAF)
    lines = [adapter.connect() for _ in range(2)]
    for line in lines:
        line.event()
    lines[0].send(kill=True)
    for line in lines:
        assert line.event()["signal"] == signal.SIGKILL
        assert line.event()["confirmed"]


def test_too_many_connections_are_turned_away(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(LIVES)
    held = [adapter.connect() for _ in range(16)]
    for line in held:
        line.event()
    assert adapter.connect().connection.recv(1) == b""
    held[0].send(kill=True)
    assert held[-1].event()["event"] == "exited"


def test_the_adapter_leaves_no_daemons(start_adapter: AdapterStarter, hunt: Hunt) -> None:
    adapter = start_adapter(hostile("daemonizes", "deaf"), linger_s=0.1)
    assert adapter.wait() == 4
    assert "; killed [" in adapter.log.read_text()
    assert hunt.left() == []


def test_a_terminated_guard_ends_its_adapter(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(DEAF, grace_s=0.1)
    adapter.await_log(f"{adapter.first()['pid']}\n")
    adapter.process.terminate()
    assert adapter.wait() == 128 + signal.SIGKILL


def test_an_adapter_killed_from_outside_is_reported(start_adapter: AdapterStarter) -> None:
    adapter = start_adapter(LIVES)
    line = adapter.connect()
    os.kill(line.event()["pid"], signal.SIGKILL)
    assert line.event() == {"event": "exited", "code": None, "signal": signal.SIGKILL}
    line.event()
    assert adapter.wait() == 128 + signal.SIGKILL


# -- what is orphaned beneath it


def awaited_pids(adapter: GuardedAdapter, count: int) -> list[int]:
    """Return the pids that the command announces."""
    give_up_at = time.monotonic() + DEADLINE_S
    while len(lines := adapter.log.read_text().split()) < count:
        assert time.monotonic() < give_up_at, lines
    return [int(line) for line in lines]


@pytest.mark.parametrize("arguments", [("stay",), ("stay", "wiped"), ("stay", "wiped", "deaf")])
def test_a_sweep_ends_orphans_and_nothing_else(
    hunt: Hunt, start_adapter: AdapterStarter, arguments: tuple[str, ...]
) -> None:
    script = '"$@" & (' + " ".join(LIVES) + ") & wait"
    adapter = start_adapter(("sh", "-c", script, "sh", *hostile("daemonizes", *arguments)))
    announced = awaited_pids(adapter, 2)
    hunt.also += announced
    (orphan,) = [pid for pid in announced if psutil.Process(pid).ppid() == adapter.process.pid]
    line = adapter.connect()
    line.event()
    for killed in ([orphan], []):
        line.send(sweep=True)
        assert line.event() == {"event": "swept", "confirmed": True, "killed": killed, "survivors": []}
    assert [is_alive(pid) for pid in announced if pid != orphan] == [True]
    assert is_alive(adapter.first()["pid"])


@pytest.mark.parametrize("arguments", [("respawner",), ("respawner", "sessions"), ("forkers", "10")])
def test_a_sweep_ends_what_breeds_meanwhile(start_adapter: AdapterStarter, arguments: tuple[str, ...]) -> None:
    adapter = start_adapter(("sh", "-c", '("$@" &); while :; do sleep 60; done', "sh", *hostile(*arguments)))
    adapter.await_log("\n")
    line = adapter.connect()
    line.event()
    line.send(sweep=True)
    swept = line.event()
    assert (swept["confirmed"], swept["survivors"]) == (True, [])
    children = [child.name() for child in psutil.Process(adapter.process.pid).children(recursive=True)]
    assert children == ["sh", "sleep"]


def test_without_a_subreaper_a_sweep_proves_nothing(run: Callable[..., Guarded]) -> None:
    guarded = run(LIVES, extra=("--no-subreaper",))
    guarded.event()
    guarded.send(sweep=True)
    assert guarded.event() == {"event": "swept", "confirmed": False, "killed": [], "survivors": []}
    guarded.send(kill=True)
    guarded.gone()


def test_what_a_killed_guard_leaves_is_ended_by_the_guard_above(
    hunt: Hunt, start_adapter: AdapterStarter, tmp_path: Path
) -> None:
    """The agent kills its guard; its daemon has lost all that says whose it is. Another run goes on."""
    script = str(HERE / "owner.py")
    note = tmp_path / "daemon"
    other = hostile("daemonizes", "stay", "wiped")
    adapter = start_adapter((sys.executable, script, *hostile("kills_its_guard", str(note)), "--and", *other))
    adapter.await_log("ChildEnd")
    assert "tree_confirmed_dead=True" in adapter.log.read_text()
    assert not is_alive(int(note.read_text()))
    # The other run may not have reported its process yet; no sweep happens any more by then. Two pids are of the
    # first run, unless its guard was dead before it had reported the start, as it can be on a busy machine.
    pids = 3 if "EIO" in adapter.log.read_text() else 5
    hunt.also += [pid for pid in adapter.await_integers(pids) if is_alive(pid)]
    assert len(hunt.also) == 3, "guard, command and daemon of the other run"


def test_nothing_is_proven_by_the_guard_of_another(hunt: Hunt, start_adapter: AdapterStarter, tmp_path: Path) -> None:
    """The variable is inherited by a process between the guard and the one whose orphans are to be ended."""
    note = tmp_path / "daemon"
    owner = (sys.executable, str(HERE / "owner.py"), *hostile("kills_its_guard", str(note)))
    adapter = start_adapter(("sh", "-c", '"$@"; :', "sh", *owner))
    adapter.await_log("ChildEnd")
    assert "tree_confirmed_dead=False" in adapter.log.read_text()
    adapter.wait()
    assert not is_alive(int(note.read_text())), "the guard ends all when its command ends"
    assert hunt.left() == []
