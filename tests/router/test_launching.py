"""An adapter that is started before the router that will use it."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.adapters import launcher, starting
from dragoman.router.adapters.launch_spec import LaunchSpec
from dragoman.router.adapters.launcher import LaunchError
from dragoman.router.adapters.starting import GuardStarter, StartedGuard
from dragoman.router.app import Router
from dragoman.router.launching import Launching, open_launching
from dragoman.router.starting import open_starting

from tests.router.harness import PATIENCE_S, Caller, config, gone, is_alive, kinds, manifest


def prepared(launching: Launching) -> StartedGuard:
    """Return what was prepared, which is one."""
    (started,) = launching.starting.starter._prepared
    return started


def adapter_pid(started: StartedGuard) -> int:
    """Wait until the adapter runs. What launches it can do so no more."""
    assert started.process.stdout is not None
    return int(json.loads(started.process.stdout.readline())["pid"])


@pytest.mark.parametrize("name", ["fake", "another_name"])
async def test_the_first_run_gets_the_process_that_was_prepared(folder: Path, name: str) -> None:
    configured = config(folder, manifests=(manifest(folder, "fake", aliases=["another_name"]),))
    with open_launching(configured) as launching:
        launching.prepare(name)
        guard_pid = prepared(launching).process.pid
        async with Router(configured, launching) as router:
            caller = Caller(router.addresses[0])
            events = await caller.execute("fake", {"end": "SUCCEEDED"}).rest()
            entry = await caller.entry("fake")
            await caller.close()
        assert kinds(events) == ["started", "result"]
        assert entry.guard_pid == guard_pid
        assert not is_alive(entry.pid), "the router that uses a process stops it"


async def test_what_was_prepared_and_not_used_is_stopped(folder: Path) -> None:
    with open_launching(config(folder, manifests=(manifest(folder, "fake"),))) as launching:
        launching.prepare("fake")
        pid, guard_pid = adapter_pid(prepared(launching)), prepared(launching).process.pid
        assert is_alive(pid)
    assert not is_alive(guard_pid)
    await gone(pid)


def test_a_guard_that_has_not_begun_is_stopped(folder: Path) -> None:
    with open_launching(config(folder, manifests=(manifest(folder, "fake"),))) as launching:
        launching.prepare("fake")
        guard_pid = prepared(launching).process.pid
    assert not is_alive(guard_pid)


def test_no_key_at_a_terminal_reaches_what_is_launched(folder: Path) -> None:
    with open_launching(config(folder, manifests=(manifest(folder, "fake"),))) as launching:
        launching.prepare("fake")
        pids = 0, adapter_pid(prepared(launching)), prepared(launching).process.pid
        assert len({os.getsid(pid) for pid in pids}) == 3


def test_names_without_an_adapter_to_start_prepare_nothing(folder: Path) -> None:
    named = manifest(folder, "fake", command="no list")
    configured = config(folder, manifests=(named,), addresses=(f"unix:{folder}/x.sock",))
    with open_launching(configured) as launching:
        for name in ("", "unknown", "fake", f"unix:{folder}/x.sock"):
            launching.prepare(name)
        assert launching.starting.starter._prepared == []


def test_what_began_before_the_adapters_are_known_is_used_if_it_is_the_same(folder: Path) -> None:
    configured = config(folder, manifests=(manifest(folder, "fake"),))
    with open_starting(configured.state_dir, orphan_after_s=1.0) as begun:
        with open_launching(configured, begun) as launching:
            (spec,) = launching.specs
            assert spec.launch is not None
            begun.starter.prepare("fake", LaunchSpec(spec.launch.command, {**spec.launch.env, "OTHER": "1"}))
            launching.prepare("fake")
            launching.prepare("fake")
            other, same = begun.starter._prepared
            assert (other.spec == spec.launch, same.spec) == (False, spec.launch)
        assert same.process.poll() is None, "what opened it closes it"
    assert not is_alive(other.process.pid)
    assert not is_alive(same.process.pid)


def test_one_that_has_ended_meanwhile_is_started_again(folder: Path) -> None:
    starter = GuardStarter(folder, folder, orphan_after_s=1.0)
    spec = LaunchSpec(("true",))
    with contextlib.closing(starter):
        starter.prepare("fake", spec)
        (first,) = starter._prepared
        first.process.wait()
        second = starter.start("fake", spec)
        with second.claim, second.process:
            assert second.process.pid != first.process.pid
        assert starter._prepared == []


async def test_one_that_could_not_be_prepared_fails_as_if_it_had_been_launched(folder: Path) -> None:
    configured = config(folder, manifests=(manifest(folder, "fake", command=[f"{folder}/no-such-program"]),))
    with open_launching(configured) as launching:
        launching.prepare("fake")
        async with Router(configured, launching) as router:
            caller = Caller(router.addresses[0])
            with pytest.raises(DragomanError, match="failed to start") as refused:
                await caller.execute("fake", {"end": "SUCCEEDED"}).rest()
            await caller.close()
    assert refused.value.reason is Reason.ADAPTER_UNAVAILABLE


async def test_a_guard_that_cannot_be_reached_and_does_not_end_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def unreachable(_arguments: object) -> Iterator[tuple[list[str], int]]:
        with open(os.devnull, "rb") as inherited:
            yield ["sh", "-c", """echo '{"event": "spawned"}'; exec sleep 600"""], inherited.fileno()

    monkeypatch.setattr(starting, "guard_command", unreachable)
    monkeypatch.setattr(launcher, "_EXIT_TIMEOUT_S", 0.1)
    starter = GuardStarter(folder, folder, orphan_after_s=1.0)
    launched = launcher.GuardLauncher(starter).launch("fake", LaunchSpec(("true",)))
    with pytest.raises(LaunchError, match=f"with code -{signal.SIGKILL:d} "):
        await asyncio.wait_for(launched, PATIENCE_S)
