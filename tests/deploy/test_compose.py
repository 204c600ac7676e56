"""The compose file: valid, closed, and its commands do what they are for, as far as that needs no containers."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
PRIVATE = ("/home/agent", "/run/dragoman", "/workspace")
"""Directories of the router's image that are closed to other users, as a new volume in their place then is."""
PATIENCE_S = 50.0


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = compose["services"]
    return found


def variables(service: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a service that have a value."""
    return dict(one.split("=", 1) for one in service.get("environment", ()) if "=" in one)


def arguments(dockerfile: str) -> set[str]:
    return set(re.findall(r"^ARG (\w+)", (ROOT / dockerfile).read_text(encoding="utf-8"), re.MULTILINE))


def test_it_is_valid_by_the_schema_of_the_specification(compose: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests" / "deploy" / "compose-spec.json").read_text(encoding="utf-8"))
    checker = jsonschema.Draft7Validator(schema)
    assert [error.message for error in checker.iter_errors(compose)] == []
    assert [*checker.iter_errors({"services": {"router": {"comand": []}}})], "it is the schema"


def test_no_container_has_more_rights_than_it_needs(services: dict[str, Any]) -> None:
    for name, one in services.items():
        assert one["user"] == "10001:10001", name
        assert one["read_only"] is True, name
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        for more in ("privileged", "cap_add", "devices", "pid", "ipc", "ports", "secrets", "group_add"):
            assert more not in one, name
        # Volumes by name alone: nothing of the machine, such as an engine's socket, is in a container.
        assert all(re.match(r"[a-z-]+:/", volume) for volume in one["volumes"]), name
        assert one["healthcheck"]["test"][0] == "CMD", name
    assert [name for name, one in services.items() if one.get("network_mode") == "none"] == ["router", "process"]


def test_each_volume_is_in_the_place_of_a_directory_that_is_private(compose: dict[str, Any]) -> None:
    dockerfile = (ROOT / "deploy/images/router.Dockerfile").read_text(encoding="utf-8")
    assert f"install -d -o 10001 -g 10001 -m 0700 {' '.join(PRIVATE)}\n" in dockerfile
    used = [volume.split(":") for one in compose["services"].values() for volume in one["volumes"]]
    assert {place for _, place in used} == set(PRIVATE)
    assert {name for name, _ in used} == set(compose["volumes"])
    # A home is for one container: it holds logins, and the router's holds its socket.
    homes = [name for name, place in used if place == "/home/agent"]
    assert sorted(homes) == sorted(set(homes))
    assert "sockets" not in homes


def test_each_image_is_built_from_files_and_names_that_exist(services: dict[str, Any]) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = subprocess.run(
        [sys.executable, ROOT / "scripts" / "install-agents", "--list"], check=True, capture_output=True, text=True
    ).stdout
    agents = {line.split("\t")[0] for line in names.splitlines()}
    adapters = {point.name for point in entry_points(group="dragoman.adapters")}
    router = services["router"]["image"]
    for name, one in services.items():
        assert f'version = "{one["image"].partition(":")[2]}"' in project, name
        if name == "process":
            assert one["image"] == router
            continue
        build = one["build"]
        assert (COMPOSE.parent / build["context"]).resolve() == ROOT
        args = build.get("args", {})
        assert set(args) <= arguments(build["dockerfile"]), name
        if name != "router":
            assert args["ROUTER"] == router, "it is made from the router's image"
            assert args["AGENT"] in agents
            assert args["ADAPTER"] in adapters
            assert one["profiles"] == [name]


def test_the_router_ends_before_the_adapters_and_has_time_to(services: dict[str, Any]) -> None:
    waited = services["router"]["depends_on"]
    assert set(waited) == set(services) - {"router"}
    for name, one in services.items():
        if name != "router":
            # A service of a profile that is not chosen is not there.
            assert waited[name].get("required", True) == ("profiles" not in one)
    seconds = {name: int(one["stop_grace_period"].removesuffix("s")) for name, one in services.items()}
    # As in the chart: 30 s for runs and 20 for adapters; an adapter's runs get 15 and a margin.
    assert seconds["router"] > 50
    assert all(value >= 30 for value in seconds.values())


def test_the_readme_names_what_there_is(services: dict[str, Any]) -> None:
    readme = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^docker compose (.*)", readme, re.MULTILINE)
    assert commands
    for command in commands:
        assert "-f deploy/compose.yaml" in command
        assert set(re.findall(r"--profile (\S+)", command)) <= set(services)
        for service in re.findall(r"\b(?:build|exec) (\w[\w-]*)", command):
            assert service in services, command


class Machine:
    """Runs what the containers would, with directories of its own in place of their volumes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("run", "work"):
            (folder / name).mkdir(mode=0o700)

    def start(self, name: str, service: dict[str, Any]) -> None:
        """Start a service under the guard, as the images do."""
        command = service.get("command") or self._default_command(service)
        guard = [sys.executable, "-m", "dragoman.guard", "--"]
        self.started[name] = subprocess.Popen(
            [*guard, *self._placed(command)], env=self._environment(name, service), cwd=self._folder / "work"
        )

    def run(self, name: str, service: dict[str, Any], *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the place of a service."""
        return subprocess.run(
            self._placed(command),
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=self._environment(name, service),
        )

    def wait_healthy(self, name: str, service: dict[str, Any]) -> None:
        """Ask as the engine does, until it is healthy."""
        _, *probe = service["healthcheck"]["test"]
        ends = time.monotonic() + PATIENCE_S
        while (last := self.run(name, service, *probe)).returncode:
            assert time.monotonic() < ends, last.stderr
            assert self.started[name].poll() is None, f"{name} has ended"

    def _default_command(self, service: dict[str, Any]) -> list[str]:
        text = (ROOT / service["build"]["dockerfile"]).read_text(encoding="utf-8")
        (command,) = re.findall(r"^CMD (.*)", text, re.MULTILINE)
        found: list[str] = json.loads(command)
        return found

    def _environment(self, name: str, service: dict[str, Any]) -> dict[str, str]:
        home = self._folder / name
        home.mkdir(mode=0o700, exist_ok=True)
        values = {key: value for key, value in os.environ.items() if not key.startswith(("DRAGOMAN_", "XDG_"))}
        path = f"{Path(sys.executable).parent}:{values['PATH']}"
        adapter = service.get("build", {}).get("args", {}).get("ADAPTER", "")
        own = {key: self._place(value) for key, value in variables(service).items()}
        return {**values, **own, "PATH": path, "HOME": str(home), "DRAGOMAN_ADAPTER": adapter}

    def _placed(self, command: Any) -> list[str]:
        return [self._place(one) for one in command]

    def _place(self, text: str) -> str:
        return text.replace("/run/dragoman", f"{self._folder}/run").replace("/workspace", f"{self._folder}/work")


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Not pytest's own folder: the path of a socket has to be short.
    with tempfile.TemporaryDirectory(prefix="compose-") as folder:
        one = Machine(Path(folder))
        try:
            yield one
        finally:
            for process in one.started.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait(PATIENCE_S)


def test_its_commands_serve_adapters_at_sockets_which_the_router_finds(
    services: dict[str, Any], machine: Machine
) -> None:
    for name in ("process", "codex", "router"):
        machine.start(name, services[name])
    for name in ("process", "codex", "router"):
        machine.wait_healthy(name, services[name])
    inside = ("router", services["router"], "dragoman")
    ends = time.monotonic() + PATIENCE_S
    while (listed := machine.run(*inside, "adapters").stdout).count("ready") < 2:
        assert time.monotonic() < ends, listed
    assert "codex" in listed
    run = machine.run(*inside, "run", "process", "a first run", "--cwd", "/workspace", "--config", "command=cat")
    assert "a first run" in run.stdout, run.stderr
    for name in ("router", "codex", "process"):
        machine.started[name].send_signal(signal.SIGTERM)
        assert machine.started[name].wait(PATIENCE_S) == 0, name
