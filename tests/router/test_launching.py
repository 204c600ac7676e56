"""An adapter that is started before the router that will use it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.adapters import launcher
from dragoman.router.adapters.launcher import LaunchError
from dragoman.router.adapters.specs import LaunchSpec
from dragoman.router.app import Router
from dragoman.router.launching import open_launching

from tests.router.harness import PATIENCE_S, Caller, config, gone, is_alive, kinds, manifest


@pytest.mark.parametrize("name", ["fake", "another_name"])
async def test_the_first_run_gets_the_process_that_was_prepared(folder: Path, name: str) -> None:
    configured = config(folder, manifests=(manifest(folder, "fake", aliases=["another_name"]),))
    async with open_launching(configured) as launching:
        await launching.prepare(name)
        prepared = await launching.launcher._prepared["fake"]
        async with Router(configured, launching) as router:
            caller = Caller(router.addresses[0])
            events = await caller.execute("fake", {"end": "SUCCEEDED"}).rest()
            entry = await caller.entry("fake")
            await caller.close()
        assert kinds(events) == ["started", "result"]
        assert (entry.pid, entry.guard_pid) == (prepared.pid, prepared.guard_pid)
        assert not is_alive(prepared.pid), "the router that uses a process stops it"


async def test_what_was_prepared_and_not_used_is_stopped(folder: Path) -> None:
    async with open_launching(config(folder, manifests=(manifest(folder, "fake"),))) as launching:
        await launching.prepare("fake")
        prepared = await launching.launcher._prepared["fake"]
        assert is_alive(prepared.pid)
    await gone(prepared.pid)
    await gone(prepared.guard_pid)


async def test_no_key_at_a_terminal_reaches_what_is_launched(folder: Path) -> None:
    async with open_launching(config(folder, manifests=(manifest(folder, "fake"),))) as launching:
        await launching.prepare("fake")
        prepared = await launching.launcher._prepared["fake"]
        assert len({os.getsid(pid) for pid in (0, prepared.guard_pid, prepared.pid)}) == 3


async def test_names_without_an_adapter_to_start_prepare_nothing(folder: Path) -> None:
    named = manifest(folder, "fake", command="no list")
    configured = config(folder, manifests=(named,), addresses=(f"unix:{folder}/x.sock",))
    async with open_launching(configured) as launching:
        for name in ("", "unknown", "fake", f"unix:{folder}/x.sock"):
            await launching.prepare(name)
        assert launching.launcher._prepared == {}


async def test_one_that_could_not_be_prepared_fails_as_if_it_had_been_launched(folder: Path) -> None:
    configured = config(folder, manifests=(manifest(folder, "fake", command=[f"{folder}/no-such-program"]),))
    async with open_launching(configured) as launching:
        await launching.prepare("fake")
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

    monkeypatch.setattr(launcher, "guard_command", unreachable)
    monkeypatch.setattr(launcher, "_EXIT_TIMEOUT_S", 0.1)
    starting = launcher.GuardLauncher(folder, folder, orphan_after_s=1.0).launch("fake", LaunchSpec(("true",)))
    with pytest.raises(LaunchError, match=f"with code -{signal.SIGKILL:d} "):
        await asyncio.wait_for(starting, PATIENCE_S)
