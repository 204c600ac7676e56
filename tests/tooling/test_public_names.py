"""The public names of the packages that others import are a committed list, so that none is exported by accident.

Few names are listed here, those of whole packages in ``public_names.txt``. After an intended change, write it anew::

    .venv/bin/python -m tests.tooling.test_public_names > tests/tooling/public_names.txt
"""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

PUBLIC = {
    "dragoman.client": {
        *("Client", "DragomanError", "FieldViolation", "Reason", "RunStream", "execute_request", "to_struct"),
    },
    "dragoman.router": set(),
    "dragoman.router.app": {"Router", "RouterConfig", "StoreError", "run_router"},
    "dragoman.testkit": {
        *("AgentProfile", "FakeAdapter", "Isolation", "ModelServer", "PROFILES", "RecordedRequest", "Scenario"),
        *("ServerInThread", "StreamChecker", "StreamProblem", "check_stream", "isolate", "log_in", "serving"),
    },
    "dragoman.testkit.model_server": {
        *("APIS", "ModelServer", "RecordedRequest", "SCENARIOS", "ServerInThread", "serving"),
    },
}
"""Modules with their public names."""

PACKAGES = ["dragoman.sdk"]
"""Packages whose every module without an underscore is public; their names are in ``COMMITTED``."""
SHARED = "dragoman.protocol"
"""What only our own parts import, by names without an underscore; it has no list of them."""
COMMITTED = Path(__file__).with_name("public_names.txt")
MOST_SDK_NAMES = 35


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_names_are_those_that_were_decided(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(PUBLIC[name])
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


def public_modules(package: str) -> Iterator[str]:
    """Yield a package and its modules whose names have no leading underscore."""
    yield package
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield found.name


def public_names() -> list[str]:
    """Return each public name with its module."""
    modules = [module for package in PACKAGES for module in public_modules(package)]
    return sorted(f"{module}.{name}" for module in modules for name in importlib.import_module(module).__all__)


def offered(module: ModuleType) -> Iterator[str]:
    """Yield the names that a module lists; of one without a list, those without an underscore that it defines."""
    if hasattr(module, "__all__"):
        yield from module.__all__
        return
    for node in ast.parse(inspect.getsource(module)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        names = (getattr(target, "id", getattr(target, "name", "_")) for target in targets)
        yield from (name for name in names if not name.startswith("_"))


def meanings(modules: Iterable[str]) -> dict[str, set[int]]:
    """Return the identities of the objects that each exported name stands for."""
    found: dict[str, set[int]] = {}
    for module in map(importlib.import_module, modules):
        for name in offered(module):
            found.setdefault(name, set()).add(id(getattr(module, name)))
    return found


def test_a_name_stands_for_one_thing_in_all_public_modules() -> None:
    modules = [*PUBLIC, *(module for package in (*PACKAGES, SHARED) for module in public_modules(package))]
    assert [name for name, things in meanings(modules).items() if len(things) > 1] == []


def test_a_name_of_two_things_is_found() -> None:
    assert len(meanings(["json.decoder", "dragoman.protocol.errors", "dragoman.client"])["DragomanError"]) == 1
    assert len(meanings(["json", "pickle"])["load"]) == 2


@pytest.mark.parametrize("module", [module for package in PACKAGES for module in public_modules(package)])
def test_every_public_module_says_what_it_exports(module: str) -> None:
    loaded = importlib.import_module(module)
    assert len(set(loaded.__all__)) == len(loaded.__all__)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


def test_the_public_names_are_those_of_the_committed_list() -> None:
    committed = set(COMMITTED.read_text(encoding="utf-8").split())
    found = set(public_names())
    assert (sorted(found - committed), sorted(committed - found)) == ([], [])


def test_the_reference_shows_every_public_module_of_the_sdk() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/sdk.md").read_text(encoding="utf-8")
    shown = {line.removeprefix("::: ") for line in page.splitlines() if line.startswith("::: ")}
    assert shown == set(public_modules("dragoman.sdk"))


def test_the_front_door_of_the_sdk_stays_small() -> None:
    assert len(importlib.import_module("dragoman.sdk").__all__) <= MOST_SDK_NAMES


if __name__ == "__main__":
    print("\n".join(public_names()))
