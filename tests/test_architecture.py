"""Who may know whom, in ten lines of rules, and the few other things that keep the house as it was drawn."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = ["services", "adapters/python", "clients/python"]
LONGEST_MODULE = 600

MAY_IMPORT: dict[str, set[str]] = {
    "v1": set(),
    "guard": set(),
    "protocol": {"v1"},
    "sdk": {"v1", "protocol", "guard"},
    "router": {"v1", "protocol", "guard"},
    "client": {"v1", "protocol"},
    "testkit": {"v1", "protocol"},
    "adapters.*": {"v1", "protocol", "sdk"},
    "cli": {"v1", "protocol", "guard", "sdk", "router", "client"},
}
"""What each part may import of the others. An adapter never imports another, and nobody imports an adapter: built-in
ones come in by an entry point, like a stranger's."""

MODULES = {
    path.relative_to(ROOT / root): path
    for root in SOURCE_ROOTS
    for path in sorted((ROOT / root / "dragoman").rglob("*.py"))
}


def part(parts: tuple[str, ...]) -> str:
    """Return the part of ``("dragoman", "sdk", …)``; each adapter is a part of its own."""
    return ".".join(parts[1:3]) if parts[1] == "adapters" else parts[1].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Yield the absolute names a module imports anywhere in it, lazily too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_part_imports_only_whom_it_may() -> None:
    wrong = []
    for name, path in MODULES.items():
        own = part(name.parts)
        allowed = MAY_IMPORT["adapters.*" if own.startswith("adapters.") else own] | {own}
        others = {part(tuple(other.split("."))) for other in imported(path) if other.startswith("dragoman.")}
        wrong += [f"{name} imports {other}" for other in sorted(others - allowed)]
    assert wrong == []


def test_relative_imports_stay_within_their_part() -> None:
    wrong = []
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level >= len(name.parts) - 1:
                wrong.append(f"{name}:{node.lineno}")
    assert wrong == []


def test_the_guard_needs_nothing_but_python() -> None:
    """Where there is no /proc its process table comes from psutil, in one module that is loaded only there."""
    foreign = {
        (name.name, other.split(".")[0])
        for name, path in MODULES.items()
        if part(name.parts) == "guard"
        for other in imported(path)
        if other.split(".")[0] not in {*sys.stdlib_module_names, "dragoman"}
    }
    assert foreign <= {("_psutil_table.py", "psutil")}


HEAVY = ["grpc", "google", "rich", "jsonschema", "structlog", "psutil"]


@pytest.mark.parametrize("module", ["dragoman.guard", "dragoman.guard.__main__", "dragoman.cli.main"])
def test_what_starts_often_imports_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "[]\n"


def test_the_namespace_stays_a_namespace() -> None:
    """One ``dragoman/__init__.py`` would hide the other roots from an editable install."""
    found = [name for name in MODULES if str(name) in {"dragoman/__init__.py", "dragoman/adapters/__init__.py"}]
    assert found == []
    assert {part(name.parts) for name in MODULES} >= {"v1", "protocol"}


def test_no_module_is_called_utils_and_none_is_too_long() -> None:
    mine = [*MODULES.values(), *(ROOT / "tests").rglob("*.py")]
    mine = [path for path in mine if not path.stem.endswith(("_pb2", "_pb2_grpc"))]
    assert [str(path) for path in mine if path.stem.strip("_") in {"utils", "util", "helpers", "misc"}] == []
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in mine}
    assert {path: count for path, count in lines.items() if count > LONGEST_MODULE} == {}
