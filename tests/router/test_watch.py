"""Adapters that come, change and go while the router runs: manifests, and directories of sockets."""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from dragoman.protocol.errors import Reason
from dragoman.router.adapters.adapter_set import AdapterSet
from dragoman.router.adapters.discovery import FileSource, FileState, Manifests, SocketDirectories
from dragoman.router.adapters.specs import AdapterSpec, Source
from dragoman.router.adapters.watch import FileWatch
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import (
    PATIENCE_S,
    Caller,
    Proxy,
    config,
    gone,
    kinds,
    manifest,
    routing,
)
from tests.router.sidecar import Sidecar, serving

IDLE = router_pb2.ADAPTER_STATE_IDLE
READY = router_pb2.ADAPTER_STATE_READY
REFUSED = router_pb2.ADAPTER_STATE_REFUSED
UNAVAILABLE = router_pb2.ADAPTER_STATE_UNAVAILABLE
GATED = ("a", {"ask": "g"}, "b", {"end": "SUCCEEDED"})


def open_gate(caller: Caller, run_id: str, **fields: Any) -> Any:
    """Answer what a gated run asks."""
    answer = pb.RespondRequest(run_id=run_id, request_id="g", answer=event_pb2.InputAnswer(text="go"), **fields)
    return caller.adapter.Respond(answer, timeout=PATIENCE_S)


async def test_a_manifest_that_is_added_is_an_adapter_and_one_that_is_removed_is_none(folder: Path) -> None:
    manifests = folder / "m"
    manifests.mkdir()
    async with routing(config(folder, manifests=(manifests,))) as (_, caller):
        assert (await caller.execute("fake").error()).reason is Reason.ADAPTER_NOT_FOUND
        path = manifest(manifests, "fake", aliases=["other"])
        entry = await caller.until("fake", IDLE)
        assert (entry.source, entry.origin) == (router_pb2.ADAPTER_SOURCE_MANIFEST, str(path))
        assert kinds(await caller.execute("other", "a", {"end": "SUCCEEDED"}).rest())[-1] == "result"
        path.unlink()
        await caller.until_gone("fake")
        assert (await caller.execute("other").error()).reason is Reason.ADAPTER_NOT_FOUND


async def test_the_live_runs_of_a_manifest_that_is_removed_go_on(folder: Path) -> None:
    manifests = folder / "m"
    manifests.mkdir()
    path = manifest(manifests, "fake")
    async with routing(config(folder, manifests=(manifests,))) as (_, caller):
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("input_request")
        pid = (await caller.until("fake", READY)).pid
        path.unlink()
        await caller.until_gone("fake")
        again = caller.attach("r", adapter="fake")
        await open_gate(caller, "r", adapter="fake")
        assert kinds(await stream.rest()) == ["input_resolved", "text:b", "result"]
        assert kinds(await again.rest())[-1] == "result"
        await gone(pid)


async def test_a_manifest_that_changes_gets_a_new_process_beside_the_live_run(folder: Path) -> None:
    manifests = folder / "m"
    manifests.mkdir()
    manifest(manifests, "fake")
    async with routing(config(folder, manifests=(manifests,))) as (_, caller):
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("input_request")
        before = await caller.until("fake", READY)
        manifest(manifests, "fake", env={"SIDECAR_ALIASES": "new-name"})
        await caller.until("fake", IDLE)
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
        after = await caller.until("fake", READY)
        assert list(after.description.aliases) == ["new-name"]
        assert after.pid != before.pid
        await open_gate(caller, "r")
        assert kinds(await stream.rest())[-1] == "result"
        await gone(before.pid)


async def test_a_bad_manifest_is_reported_with_its_place_and_harms_no_other(folder: Path) -> None:
    manifests = folder / "m"
    manifests.mkdir()
    path = manifest(manifests, "fake")
    manifest(manifests, "other")
    good = path.read_text()
    async with routing(config(folder, manifests=(manifests,))) as (_, caller):
        await caller.until("fake", IDLE)
        path.write_text('{"type": "fake",\n "command": [}')
        entry = await caller.until("fake", REFUSED)
        assert entry.reason == f"manifest {path}: is not valid JSON at line 2, column 14"
        assert kinds(await caller.execute("other", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
        path.write_text(good)
        await caller.until("fake", IDLE)
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]


async def test_the_second_claimant_of_a_name_gets_it_when_the_first_is_gone(folder: Path) -> None:
    manifests, sockets = folder / "m", folder / "k"
    manifests.mkdir()
    sockets.mkdir(mode=0o700)
    path = manifest(manifests, "fake", file="1")
    manifest(manifests, "fake", file="2")
    both = config(folder, manifests=(manifests,), socket_dirs=(sockets,))
    async with serving(Sidecar("fake"), f"unix:{sockets}/x.sock"), routing(both) as (_, caller):
        third = await caller.until(f"unix:{sockets}/x.sock", REFUSED)
        assert f"(manifest {path})" in third.reason
        path.unlink()
        await caller.until_listed(lambda entries: [one.state for one in entries if one.adapter == "fake"] == [IDLE])
        (manifests / "2.json").unlink()
        entry = await caller.until("fake", READY)
        assert entry.source == router_pb2.ADAPTER_SOURCE_SOCKET_DIRECTORY


async def test_the_users_folder_is_noticed_when_it_appears(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "c"))
    async with routing(config(folder, user_manifests=True)) as (_, caller):
        users = folder / "c/dragoman/adapters"
        users.mkdir(parents=True)
        manifest(users, "fake")
        await caller.until("fake", IDLE)


class Files:
    """Files as a test wants them; each is an adapter of its name."""

    kind = Source.MANIFEST

    def __init__(self) -> None:
        self.present: dict[Path, FileState] = {}
        self.read: list[str] = []

    def write(self, name: str, size: int) -> None:
        self.present[Path(name)] = FileState(0, 1, size, size, 0)

    def files(self) -> Mapping[Path, FileState]:
        return dict(self.present)

    def spec(self, path: Path) -> AdapterSpec:
        self.read.append(path.name)
        size = self.present[path].size
        return AdapterSpec(path.name, self.kind, (f"{path.name}_{size}",), file=str(path))


class Adapters:
    """Says what was added and removed."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def __iter__(self) -> Any:
        return iter(())

    def add(self, spec: AdapterSpec) -> Any:
        self.log.append(f"+{spec.aliases[0]}")
        record = type("Record", (), {"spec": spec})
        return type("Backend", (), {"record": record})

    def remove(self, backend: Any) -> None:
        self.log.append(f"-{backend.record.spec.aliases[0]}")


def test_a_file_counts_once_it_has_settled() -> None:
    files, adapters = Files(), Adapters()
    watch = FileWatch(cast("FileSource", files), cast("AdapterSet", adapters))
    files.write("a", 1)
    watch.look()
    files.write("a", 2)
    watch.look()
    assert adapters.log == [], "it is being written"
    watch.look()
    watch.look()
    assert (adapters.log, files.read) == (["+a_2"], ["a"])
    kept = files.present.pop(Path("a"))
    watch.look()
    files.present[Path("a")] = kept
    watch.look()
    watch.look()
    assert adapters.log == ["+a_2"], "it was replaced by the same"
    files.write("a", 3)
    files.write("b", 1)
    watch.look()
    watch.look()
    assert adapters.log[1:] == ["-a_2", "+a_3", "+b_1"]
    del files.present[Path("a")]
    watch.look()
    watch.look()
    assert adapters.log[4:] == ["-a_3"]


def test_what_is_no_manifest_and_no_socket_is_passed_over_or_named(tmp_path: Path) -> None:
    for name in (".hidden.json", "notes.txt", "a.json", "x.sock.lock"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "d").mkdir()
    assert [path.name for path in Manifests([tmp_path]).files()] == ["a.json"]
    sockets = SocketDirectories([tmp_path])
    assert [path.name for path in sockets.files()] == ["a.json", "notes.txt"]
    problem = sockets.spec(tmp_path / "notes.txt").problem
    assert problem == f"{tmp_path}/notes.txt is no socket, and only sockets may be in that directory; remove it"
    missing = tmp_path / "missing"
    assert not SocketDirectories([missing]).files()
    assert list(Manifests([missing]).files()) == [missing], "it was named"
    assert "cannot be read" in Manifests([missing]).spec(missing).problem


async def test_a_socket_is_an_adapter_from_its_appearance_to_its_removal(folder: Path) -> None:
    sockets = folder / "k"
    async with routing(config(folder, socket_dirs=(sockets,))) as (_, caller):
        sockets.mkdir(mode=0o700)
        async with serving(Sidecar("fake", aliases=["other"]), f"unix:{sockets}/anything.sock"):
            entry = await caller.until("fake", READY)
            assert entry.source == router_pb2.ADAPTER_SOURCE_SOCKET_DIRECTORY
            assert (entry.address, entry.origin) == (f"unix:{sockets}/anything.sock", str(sockets))
            stream = caller.execute("other", *GATED, run_id="r")
            await stream.until("input_request")
            (sockets / "anything.sock").unlink()
            await caller.until_gone("fake")
            assert (await caller.execute("fake").error()).reason is Reason.ADAPTER_NOT_FOUND
            await open_gate(caller, "r", adapter="other")
            assert kinds(await stream.rest()) == ["input_resolved", "text:b", "result"]


async def test_a_socket_that_is_replaced_is_another_adapter(folder: Path) -> None:
    sockets = folder / "k"
    sockets.mkdir(mode=0o700)
    address = f"unix:{sockets}/x.sock"
    async with routing(config(folder, socket_dirs=(sockets,))) as (_, caller):
        async with serving(Sidecar("one"), address):
            await caller.until("one", READY)
        async with serving(Sidecar("two"), address):
            await caller.until("two", READY)
            await caller.until_gone("one")


async def test_bad_sockets_are_listed_with_the_reason_and_harm_no_other(folder: Path) -> None:
    sockets = folder / "k"
    sockets.mkdir(mode=0o700)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(sockets / "stale.sock"))
    stale.close()
    (sockets / "notes.txt").write_text("no socket")

    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(sockets / "silent.sock"))
    silent.listen()  # the kernel accepts, and no one answers
    with silent:
        async with (
            routing(config(folder, socket_dirs=(sockets,))) as (_, caller),
            serving(Sidecar("fake"), f"unix:{sockets}/good.sock"),
        ):
            await caller.until("fake", READY)
            await caller.until(f"unix:{sockets}/silent.sock", UNAVAILABLE)
            entries = await caller.until_listed(lambda all_: sum(one.state == UNAVAILABLE for one in all_) == 2)
            reasons = {Path(entry.adapter).name: entry.reason for entry in entries}
            assert "is unreachable at" in reasons["stale.sock"]
            assert "remove the socket" in reasons["stale.sock"]
            assert "is unreachable at" in reasons["silent.sock"]
            assert "is no socket" in reasons["notes.txt"]
            assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
            assert (await caller.execute("unknown").error()).reason is Reason.ADAPTER_NOT_FOUND
            (sockets / "stale.sock").unlink()
            await caller.until_gone(f"unix:{sockets}/stale.sock")


async def test_a_socket_in_a_directory_that_others_can_write_is_refused(folder: Path) -> None:
    sockets = folder / "k"
    sockets.mkdir()
    sockets.chmod(0o777)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(sockets / "x.sock"))
    with stale:
        async with routing(config(folder, socket_dirs=(sockets,))) as (_, caller):
            entry = await caller.until(f"unix:{sockets}/x.sock", REFUSED)
            assert f"other users can write to {sockets}" in entry.reason


async def test_the_process_id_of_another_namespace_is_not_taken_for_one_of_ours(folder: Path) -> None:
    """In another container an adapter has an id that here is another process's, which may end at any time."""
    sockets = folder / "k"
    sockets.mkdir(mode=0o700)
    sidecar, proxy = Sidecar("fake"), Proxy(sockets / "x.sock", folder / "a.sock")
    other = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    sidecar.pid = other.pid
    async with serving(sidecar, f"unix:{folder}/a.sock"):
        await proxy.restore()
        async with routing(config(folder, addresses=(f"unix:{sockets}/x.sock",))) as (_, caller):
            await caller.until("fake", READY)
            stream = caller.execute("fake", *GATED, run_id="r")
            await stream.until("input_request")
            await other.communicate(b"")
            assert not psutil.pid_exists(other.pid)
            await proxy.cut()
            await caller.until("fake", UNAVAILABLE)
            await proxy.restore()
            await caller.until("fake", READY)
            await open_gate(caller, "r")
            assert kinds(await stream.rest())[-2:] == ["text:b", "result"]
        await proxy.cut()
