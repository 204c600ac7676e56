"""What is known of adapters that were not started: by their metadata, and by what they said of themselves before."""

import errno
import os
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.router.adapters import descriptions
from dragoman.router.adapters.discovery import entry_point_specs
from dragoman.router.adapters.registry import AdapterRegistry
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2
from structlog.testing import capture_logs

from tests.router.harness import PATIENCE_S, Caller, config, failure, kinds, manifest, routing

ROOT = Path(__file__).parents[2]
SCHEMA = '{"type": "object", "properties": {"x": {"type": "string"}}}'


async def describe(caller: Caller, name: str) -> pb.DescribeResponse:
    return await caller.adapter.Describe(pb.DescribeRequest(adapter=name), timeout=PATIENCE_S)


async def states(caller: Caller) -> set[int]:
    listed = await caller.router.ListAdapters(router_pb2.ListAdaptersRequest(), timeout=PATIENCE_S)
    return {entry.state for entry in listed.adapters}


def talkative(folder: Path) -> Path:
    return manifest(folder, "fake", env={"SIDECAR_ALIASES": "other-name", "SIDECAR_SCHEMA": SCHEMA})


async def test_an_unknown_name_starts_nothing(folder: Path) -> None:
    manifests = tuple(manifest(folder, name) for name in ("fake", "other", "third"))
    async with routing(config(folder, manifests=manifests)) as (_, caller):
        for asked in (
            caller.adapter.Describe(pb.DescribeRequest(adapter="fakee")),
            caller.adapter.Detect(pb.DetectRequest(adapter="fakee")),
            caller.adapter.ListModels(pb.ListModelsRequest(adapter="fakee")),
        ):
            error = await failure(asked)
            assert error.reason is Reason.ADAPTER_NOT_FOUND
            assert error.metadata["did_you_mean"] == "fake"
        assert (await caller.execute("fakee").error()).reason is Reason.ADAPTER_NOT_FOUND
        assert not (await caller.router.ListRuns(router_pb2.ListRunsRequest(adapter="fakee"))).runs
        assert await states(caller) == {router_pb2.ADAPTER_STATE_IDLE}
    assert list((folder / "s" / "logs").iterdir()) == []


async def test_the_description_of_an_adapter_is_known_without_starting_it_again(folder: Path) -> None:
    named = talkative(folder)
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        live = await describe(caller, "fake")
        assert live.instance_id
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        kept = await describe(caller, "other-name")
        assert (kept.instance_id, kept.HasField("pid")) == ("", False)
        assert kept.config_schema_json == SCHEMA
        assert list(kept.aliases) == ["other-name"]
        listed = await caller.router.ListAdapters(router_pb2.ListAdaptersRequest(describe=True))
        assert listed.adapters[0].description == kept
        assert await states(caller) == {router_pb2.ADAPTER_STATE_IDLE}

        assert kinds(await caller.execute("other-name", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
        fresh = await describe(caller, "fake")
        assert fresh.instance_id, "the process itself answers once there is one"


async def test_an_adapter_that_was_let_go_is_described_without_starting_it(folder: Path) -> None:
    async with routing(config(folder, manifests=(talkative(folder),), idle_after_s=0.1)) as (_, caller):
        await describe(caller, "fake")
        await caller.until("fake", router_pb2.ADAPTER_STATE_IDLE)
        kept = await describe(caller, "fake")
        assert (kept.adapter, kept.instance_id) == ("fake", "")
        assert await states(caller) == {router_pb2.ADAPTER_STATE_IDLE}


async def test_a_manifest_that_was_changed_is_asked_anew(folder: Path) -> None:
    async with routing(config(folder, manifests=(talkative(folder),))) as (_, caller):
        await describe(caller, "fake")
    changed = manifest(folder, "fake", env={"SIDECAR_ALIASES": "new-name"})
    async with routing(config(folder, manifests=(changed,))) as (_, caller):
        assert not (await caller.entry("fake")).HasField("description")
        assert (await failure(describe(caller, "other-name"))).reason is Reason.ADAPTER_NOT_FOUND
        assert list((await describe(caller, "fake")).aliases) == ["new-name"]


async def test_what_is_kept_is_passed_over_if_it_cannot_be_used(folder: Path) -> None:
    named = talkative(folder)
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        await describe(caller, "fake")
    (kept,) = (folder / "s" / "descriptions").iterdir()
    described = pb.DescribeResponse.FromString(kept.read_bytes())
    taken = manifest(folder, "first", aliases=["other-name"])
    async with routing(config(folder, manifests=(taken, named))) as (_, caller):
        assert not (await caller.entry("fake")).HasField("description"), "its alias is another's now"
        assert await states(caller) == {router_pb2.ADAPTER_STATE_IDLE}
    for spoilt in (b"\x0a\xff", b"", pb.DescribeResponse(adapter="impostor", revision=1).SerializeToString()):
        kept.write_bytes(spoilt)
        async with routing(config(folder, manifests=(named,))) as (_, caller):
            assert not (await caller.entry("fake")).HasField("description")
            assert list((await describe(caller, "fake")).aliases) == list(described.aliases)


async def test_a_required_capability_and_a_limit_are_known_before_the_first_start(folder: Path) -> None:
    named = manifest(folder, "fake", env={"SIDECAR_MOST": "7"})
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        await describe(caller, "fake")
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        entry = await caller.entry("fake")
        assert entry.description.capabilities.max_concurrent_runs == 7
        assert entry.state == router_pb2.ADAPTER_STATE_IDLE


def test_the_folder_keeps_only_so_many(tmp_path: Path) -> None:
    folder = descriptions.DescriptionFolder(tmp_path / "d", most=3)
    for number in range(6):
        folder.save(f"{number:064x}", bytes([number]))
    kept = [number for number in range(6) if folder.load(f"{number:064x}") is not None]
    assert len(kept) == 3
    assert 5 in kept
    assert folder.load("") is None
    folder.save("", b"x")
    assert not (tmp_path / "d" / "").is_file()


def test_a_description_is_for_this_user_alone_and_replaces_what_was_left(tmp_path: Path) -> None:
    folder = descriptions.DescriptionFolder(tmp_path / "d")
    folder.save("a", b"1")
    (tmp_path / "d" / "a").chmod(0o644)
    (tmp_path / "d" / f".a.{os.getpid()}.new").write_text("of one that was killed")
    folder.save("a", b"2")
    assert folder.load("a") == b"2"
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["a"]
    assert (tmp_path / "d" / "a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700


def test_a_cache_that_cannot_be_used_is_logged_alone(tmp_path: Path) -> None:
    folder = descriptions.DescriptionFolder(tmp_path / "none" / "d")
    with capture_logs() as logs:
        folder.save("a", b"1")
        assert folder.load("a") is None
        (tmp_path / "d" / "a").mkdir(parents=True)
        assert descriptions.DescriptionFolder(tmp_path / "d").load("a") is None
    assert [(line["event"], line["errno"]) for line in logs] == [
        ("description cache not writable", errno.ENOENT),
        ("description cache not readable", errno.EISDIR),
    ]


def test_a_manifest_is_another_with_its_program_its_files_and_its_path(tmp_path: Path) -> None:
    program, script = tmp_path / "bin" / "agent", tmp_path / "script.py"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    script.write_text("")
    (tmp_path / "empty").mkdir()
    env, command = {"PATH": str(program.parent)}, ["agent", str(script), "--option"]
    seen = [descriptions.manifest_identity("{}", command, env)]
    assert descriptions.manifest_identity("{}", command, env) == seen[0]
    seen.append(descriptions.manifest_identity('{"a": 1}', command, env))
    seen.append(descriptions.manifest_identity("{}", command, {"PATH": str(tmp_path / "empty")}))
    os.utime(program, ns=(1, 1))
    seen.append(descriptions.manifest_identity("{}", command, env))
    script.write_text("changed")
    seen.append(descriptions.manifest_identity("{}", command, env))
    assert len(set(seen)) == len(seen)


def test_the_state_of_a_package_is_that_of_its_own_files_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.py", "a.py", "__pycache__/a.pyc", "sub/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    files = [str(tmp_path / name) for name in ("a.py", "b.py", "sub/c.py")]
    assert list(descriptions._files(tmp_path)) == files
    assert list(descriptions._files(tmp_path / "a.py")) == files[:1]
    marks: list[Any] = list(descriptions._marks(iter([*files, str(tmp_path / "gone"), "\0"])))
    assert [(path, size) for path, _, size in marks] == [(path, len(path) - len(f"{tmp_path}/")) for path in files]
    monkeypatch.setattr(descriptions, "_MOST_FILES", 2)
    assert list(descriptions._marks(iter(files))) == marks[:2]


def test_a_package_that_was_changed_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "vendor" / "agent"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("mine", "vendor.agent:adapter", "dragoman.adapters")
    first = descriptions.installed_identity(entry, {})
    assert first
    assert descriptions.installed_identity(entry, {}) == first
    (package / "schema.json").write_text("{}")
    assert descriptions.installed_identity(entry, {}) != first
    other = EntryPoint("other", "vendor.agent:other", "dragoman.adapters")
    apart = EntryPoint("apart", "json:loads", "dragoman.adapters")
    packages: descriptions.Packages = {}
    identities = {descriptions.installed_identity(one, packages) for one in (entry, other, apart)}
    assert len(identities) == 3
    assert len(packages) == 2, "the files of a package are looked at once"
    (package / "schema.json").write_text("{ }")
    assert descriptions.installed_identity(entry, packages) in identities
    gone = EntryPoint("mine", "nowhere.agent:adapter", "dragoman.adapters")
    assert descriptions.installed_identity(gone, {}) == "", "what cannot be found cannot be known to be the same"


def test_the_identity_of_an_installed_adapter_is_found_after_it_may_have_been_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Finding it takes as long as starting a guard."""
    looked_at: list[str] = []

    def files(source: Path) -> Iterator[str]:
        looked_at.append(str(source))
        return iter(())

    monkeypatch.setattr(descriptions, "_files", files)
    specs = entry_point_specs([EntryPoint("mine", "json:loads", "g")], [])
    assert looked_at == []
    record = AdapterRegistry(specs).find("mine")
    assert record is not None
    assert record.identity
    assert len(looked_at) == 1


def test_aliases_of_installed_adapters_come_from_their_metadata() -> None:
    aliases = [EntryPoint("claude_local", "claude_code", "g"), EntryPoint("codex_local", "codex", "g")]
    adapters = [EntryPoint(name, "json:loads", "g") for name in ("claude_code", "codex", "pi")]
    specs = {spec.name: spec.aliases for spec in entry_point_specs(adapters, aliases)}
    assert specs == {"claude_code": ("claude_local",), "codex": ("codex_local",), "pi": ()}


def test_the_metadata_say_what_each_adapter_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    declared: dict[str, set[str]] = {name: set() for name in project["dragoman.adapters"]}
    for alias, name in project["dragoman.adapter_aliases"].items():
        declared[name].add(alias)
    installed = {entry.name: entry.load() for entry in entry_points(group="dragoman.adapters")}
    described = {name: set(adapter().describe().aliases) for name, adapter in installed.items()}
    assert declared == {name: described[name] for name in declared}
