"""An adapter's guard: found by its instance file, owned by whoever connects."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from dragoman.guard.instance import is_guarded, read_instance
from dragoman.guard.processes import read

from tests.hostile import Hunt, await_end, hostile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.guard.guarded import Housed

    House = Callable[..., Housed]

LIVES = hostile("lives")
DEAF = hostile("lives", "deaf")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


CLAIM_WITHIN_S = 1.5
"""Time for a test to claim what it started; more than a busy machine takes."""


def test_it_is_found_by_its_instance_file(house: House) -> None:
    housed = house(LIVES)
    first = housed.first()
    instance = read_instance(str(housed.instance))
    assert instance is not None
    guard = read(housed.process.pid)
    assert guard is not None
    assert instance.guard == (guard.pid, guard.started)
    assert instance.adapter == (first["pid"], first["started"])
    assert (instance.instance_id, instance.listen) == ("i-1", "unix:/nowhere")
    assert (instance.control, instance.log) == (str(housed.control), str(housed.log))
    assert instance.is_current(instance.adapter)
    assert is_guarded(str(housed.instance))
    for path in (housed.instance, housed.control, housed.log):
        assert path.stat().st_mode & 0o777 == 0o600


def test_it_takes_its_files_away_but_the_log(house: House) -> None:
    housed = house(("sh", "-c", "echo out; echo err >&2; exit 3"))
    assert housed.wait() == 3
    assert names(housed.log.parent) == ["one.log"]
    pid = housed.first()["pid"]
    assert housed.log.read_text() == (
        f"out\nerr\ndragoman-guard: command {pid} ended with 3; ended [] after it; left []\n"
    )


def test_the_last_output_of_the_dying_is_logged(house: House) -> None:
    housed = house(("sh", "-c", "head -c 60000 /dev/zero; kill -9 $$"))
    assert housed.wait() == 128 + signal.SIGKILL
    assert housed.log.read_bytes().count(b"\0") == 60000


def test_output_is_rotated(house: House) -> None:
    housed = house(("sh", "-c", "seq 1000"), log_bytes=1000, log_keep=2)
    housed.wait()
    assert names(housed.log.parent) == ["one.log", "one.log.1", "one.log.2"]
    assert all(path.stat().st_size <= 1000 for path in housed.log.parent.iterdir())
    assert b"\n1000\n" in housed.log.read_bytes()


def test_a_second_guard_is_refused(house: House) -> None:
    first = house(LIVES)
    second = house(LIVES)
    assert second.wait() == 73
    assert "another guard holds" in second.complaint
    assert second.said == b""
    first.claim().order(signal="SIGTERM")
    assert first.wait() == 128 + signal.SIGTERM


def test_what_a_killed_guard_left_is_replaced(house: House, hunt: Hunt) -> None:
    killed = house(LIVES)
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
    housed = house(LIVES)
    assert housed.first()["event"] == "spawned"
    assert is_guarded(str(housed.instance))


def test_a_failed_start_is_told_to_the_launcher(house: House) -> None:
    housed = house(("missing",))
    assert housed.wait() == 127
    assert housed.first()["errno"] == "ENOENT"
    assert "cannot start: No such file or directory: 'missing'" in housed.complaint
    assert "cannot start" in housed.log.read_text()
    assert names(housed.log.parent) == ["one.log"]


def test_paths_that_cannot_be_used_are_named(house: House, tmp_path: Path) -> None:
    housed = house(LIVES, control=tmp_path / "missing" / "c")
    assert housed.wait() == 126
    assert f"cannot use {tmp_path}/missing/c: No such file or directory" in housed.complaint
    assert names(housed.log.parent) == ["one.log"]
    housed = house(LIVES, control=tmp_path / ("c" * 107))
    assert housed.wait() == 2
    assert "at most 107 bytes" in housed.complaint


# -- claims


def test_unclaimed_it_is_asked_to_stop_then_killed(house: House) -> None:
    assert house(LIVES, orphan_after_s=0.1).wait() == 128 + signal.SIGTERM
    deaf = house(DEAF, orphan_after_s=CLAIM_WITHIN_S, grace_s=0.1)
    line = deaf.claim()
    deaf.await_log(f"{line.event()['pid']}\n")
    line.hang_up()
    assert deaf.wait() == 128 + signal.SIGKILL


def test_a_claim_holds_while_one_router_is_connected(house: House) -> None:
    housed = house(LIVES, orphan_after_s=CLAIM_WITHIN_S)
    first, second = housed.claim(), housed.claim()
    assert first.event() == second.event() == housed.first()
    first.hang_up()
    assert second.is_silent(CLAIM_WITHIN_S + 0.2)
    second.hang_up()
    assert housed.wait() == 128 + signal.SIGTERM


def test_a_new_router_can_claim_what_an_old_one_left(house: House) -> None:
    housed = house(LIVES, orphan_after_s=CLAIM_WITHIN_S)
    housed.claim().hang_up()
    later = housed.claim()
    later.event()
    assert later.is_silent(CLAIM_WITHIN_S + 0.2)
    later.order(signal="SIGTERM")
    assert [later.event()["event"] for _ in range(2)] == ["exited", "gone"]


def test_all_connected_routers_hear_the_end(house: House) -> None:
    housed = house(DEAF)
    lines = [housed.claim() for _ in range(2)]
    for line in lines:
        line.event()
    lines[0].order(kill=True)
    for line in lines:
        assert line.event()["signal"] == signal.SIGKILL
        assert line.event()["confirmed"]


def test_too_many_connections_are_turned_away(house: House) -> None:
    housed = house(LIVES)
    held = [housed.claim() for _ in range(16)]
    for line in held:
        line.event()
    assert housed.claim().connection.recv(1) == b""
    held[0].order(kill=True)
    assert held[-1].event()["event"] == "exited"


def test_the_adapter_leaves_no_daemons(house: House, hunt: Hunt) -> None:
    housed = house(hostile("daemonizes", "deaf"), linger_s=0.1)
    assert housed.wait() == 4
    assert "; ended [" in housed.log.read_text()
    assert hunt.left() == []


def test_a_terminated_guard_ends_its_adapter(house: House) -> None:
    housed = house(DEAF, grace_s=0.1)
    housed.await_log(f"{housed.first()['pid']}\n")
    housed.process.terminate()
    assert housed.wait() == 128 + signal.SIGKILL


def test_an_adapter_killed_from_outside_is_told(house: House) -> None:
    housed = house(LIVES)
    line = housed.claim()
    os.kill(line.event()["pid"], signal.SIGKILL)
    assert line.event() == {"event": "exited", "code": None, "signal": signal.SIGKILL}
    line.event()
    assert housed.wait() == 128 + signal.SIGKILL
