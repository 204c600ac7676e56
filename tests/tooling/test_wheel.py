"""The wheel a user gets: all three roots in one, with data, types and entry points, and nothing else."""

import configparser
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from dragoman.cli.commands import new_adapter

from .programs import ROOT, run

SOURCE_ROOTS = [ROOT / "services", ROOT / "adapters/python", ROOT / "clients/python"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Build it as pip does, without a network: the backend is in the environment."""
    folder = tmp_path_factory.mktemp("wheel")
    done = run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), "."),
        HOME=str(folder),
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("dragoman-*-py3-none-any.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def sources() -> set[str]:
    """Return what lies in the source roots, as the wheel names it, and the contract."""
    return {
        path.relative_to(root).as_posix()
        for root, pattern in [*((root, "*") for root in SOURCE_ROOTS), (ROOT / "proto", "*.proto")]
        for path in (root / "dragoman").rglob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }


SDKS = "dragoman/cli/sdks/"


def test_it_holds_all_three_roots_with_their_data_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name and not name.startswith(SDKS)}
    assert packed == sources()
    kinds = {PurePosixPath(name).suffix for name in packed}
    assert kinds >= {".py", ".pyi", ".typed", ".md", ".json", ".proto"}


@pytest.mark.parametrize("language", new_adapter.languages())
def test_it_writes_the_projects_that_a_checkout_writes(
    language: str, wheel: zipfile.ZipFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel.extractall(tmp_path / "wheel", [name for name in wheel.namelist() if name.startswith(SDKS)])
    new_adapter.write_project("my_agent", language, tmp_path / "checkout's")
    monkeypatch.setattr(new_adapter, "sdk_sources", lambda: tmp_path / "wheel" / SDKS)
    new_adapter.write_project("my_agent", language, tmp_path / "wheel's")
    of_checkout, of_wheel = (
        {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        for top in (tmp_path / "checkout's", tmp_path / "wheel's")
    )
    assert of_wheel == of_checkout


def test_it_is_small(wheel: zipfile.ZipFile) -> None:
    """2.3 MB: a user of Dragoman downloads ten times that with what it requires."""
    assert Path(str(wheel.filename)).stat().st_size < 2_300_000


def test_it_holds_the_licence(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_no_root_takes_the_namespace_for_itself(wheel: zipfile.ZipFile) -> None:
    assert not {"dragoman/__init__.py", "dragoman/adapters/__init__.py"} & set(wheel.namelist())


def test_every_part_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    packages = [PurePosixPath(name).parent for name in wheel.namelist() if name.endswith("/__init__.py")]
    top = {str(package) for package in packages if str(package.parent) in {"dragoman", "dragoman/adapters"}}
    typed = {str(PurePosixPath(name).parent) for name in wheel.namelist() if name.endswith("/py.typed")}
    assert sorted(top - typed) == []


def entry_points(wheel: zipfile.ZipFile) -> configparser.ConfigParser:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(name).decode())
    return parser


def test_its_entry_points_are_there_and_lead_to_modules(wheel: zipfile.ZipFile) -> None:
    points = entry_points(wheel)
    assert set(points["console_scripts"]) == {"dragoman"}
    assert set(points["dragoman.adapters"]) >= {"claude_code", "process"}
    assert set(points["pytest11"]) == {"dragoman"}
    assert set(points["dragoman.adapter_aliases"].values()) <= set(points["dragoman.adapters"])
    files = set(wheel.namelist())
    for group in set(points.sections()) - {"dragoman.adapter_aliases"}:
        for name, target in points[group].items():
            module = target.partition(":")[0].replace(".", "/")
            assert {f"{module}.py", f"{module}/__init__.py"} & files, f"{group}: {name} = {target}"


def test_what_it_says_of_itself(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode()
    assert "Requires-Python: >=3.11\n" in metadata
    for extra in ("dev", "test", "testkit"):
        assert f"Provides-Extra: {extra}\n" in metadata
    required = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert not any(
        tool in line for line in required for tool in ("pytest", "mypy", "ruff", "hypothesis", "grpcio-tools")
    )
    # Every shipped adapter works with the default install; the extras that once held these names stay, empty.
    named = {re.split(r"[<>=]", line.removeprefix("Requires-Dist: "), maxsplit=1)[0] for line in required}
    assert named >= {"anthropic", "openai", "h11", "httpx2", "python-jsonpath"}
    for extra in ("http", "model-api"):
        assert f"Provides-Extra: {extra}\n" in metadata
        assert f"extra == '{extra}'" not in metadata


def test_the_pinned_versions_are_within_what_is_declared() -> None:
    """constraints*.txt are written by ``make constraints`` and hold versions only."""
    for name in ("constraints.txt", "constraints-floor.txt"):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert len(lines) > 20
        assert [line for line in lines if line.count("==") != 1 or "/" in line or "@" in line] == []
    floor = Path(ROOT / "constraints-floor.txt").read_text(encoding="utf-8")
    assert {"grpcio==1.76.0", "protobuf==6.31.1", "grpcio-tools==1.76.0"} <= set(floor.split())
