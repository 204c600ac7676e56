"""scripts/test-agents on tests of its own: which of the failed ones are run again, and what it makes of that."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.agents import conftest as proving

from .programs import ROOT

_SETTINGS = "[pytest]\nmarkers = agents: as in pyproject.toml\n"
_TESTS = """
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.agents
RAN = Path(__file__).parent / "ran"


def has_run(name):
    before = RAN.read_text() if RAN.exists() else ""
    with RAN.open("a") as file:
        file.write(f"{name}\\n")
    return f"{name}\\n" in before


@pytest.mark.parametrize("number", range(LATE))
def test_late(number):
    assert has_run(f"late {number}"), f"the first failure of {number}"
    assert "PYTEST_XDIST_WORKER" not in os.environ, "there may be others beside it"


@pytest.mark.parametrize("number", range(BROKEN))
def test_broken(number):
    has_run(f"broken {number}")
    raise AssertionError("broken")


def test_good():
    has_run("good")
"""

Drive = Callable[..., tuple["subprocess.CompletedProcess[str]", list[str]]]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    """Run the script with tests that pass the second time, and others that never do; return also what ran."""

    def run(late: int, broken: int, *further: str) -> tuple["subprocess.CompletedProcess[str]", list[str]]:
        tests = tmp_path / "tests" / "agents"
        tests.mkdir(parents=True)
        (tmp_path / "scripts").mkdir()
        script = tmp_path / "scripts" / "test-agents"
        script.write_bytes((ROOT / "scripts" / "test-agents").read_bytes())
        (tmp_path / "pytest.ini").write_text(_SETTINGS)
        (tests / "test_toy.py").write_text(_TESTS.replace("LATE", str(late)).replace("BROKEN", str(broken)))
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        env |= {"JOBS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}
        done = subprocess.run(
            [sys.executable, str(script), "toy", "--", *further],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done, (tests / "ran").read_text().splitlines()

    return run


pytestmark = pytest.mark.timeout(320)


def test_what_passes_alone_has_passed_and_is_named(drive: Drive) -> None:
    done, ran = drive(3, 0)
    assert done.returncode == 0, done.stdout
    assert sorted(ran) == sorted(["good", *(f"late {number}" for number in (0, 1, 2) for _ in "12")])
    assert "the first failure of 2" in done.stdout
    names = [f"tests/agents/test_toy.py::test_late[{number}]" for number in (0, 1, 2)]
    head, _, named = done.stdout.splitlines()[-1].partition(": ")
    assert head == "=== passed only when run again alone"
    assert sorted(named.split(", ")) == names


def test_what_fails_again_has_failed(drive: Drive) -> None:
    done, ran = drive(1, 1)
    assert done.returncode == 1
    assert sorted(ran) == ["broken 0", "broken 0", "good", "late 0", "late 0"]
    assert done.stdout.splitlines()[-1].endswith("alone: tests/agents/test_toy.py::test_late[0]")


def test_many_failures_are_not_explained_by_a_busy_machine(drive: Drive) -> None:
    done, ran = drive(4, 0)
    assert done.returncode == 1
    assert sorted(ran) == ["good", "late 0", "late 1", "late 2", "late 3"]
    assert "again" not in done.stdout


@pytest.mark.parametrize("stops", ["-x", "-vx", "--exitfirst", "--maxfail=1"])
def test_what_stopped_early_has_not_passed(drive: Drive, stops: str) -> None:
    """The tests that had not run by then would never run."""
    done, ran = drive(2, 0, "-n", "0", stops)
    assert done.returncode != 0
    assert ran == ["late 0"]
    assert "again" not in done.stdout


def test_nothing_runs_twice_where_all_passes(drive: Drive) -> None:
    done, ran = drive(0, 0)
    assert done.returncode == 0
    assert ran == ["good"]
    assert "again" not in done.stdout


def test_the_proofs_have_what_was_seen_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "RESULTS", tmp_path)

    def session(**statuses: str) -> None:
        results = proving._Results()
        for row, status in statuses.items():
            proof = {"adapter": "toy", "row": row, "status": status, "reason": "", "executable": "toy"}
            report = pytest.TestReport(row, (row, None, row), {}, "passed", None, "call")
            report.user_properties.append(("proof", proof))
            results.pytest_runtest_logreport(report)
        results.pytest_sessionfinish()

    session(cancel="failed", text="passed")
    session(cancel="passed")
    rows = json.loads((tmp_path / "toy.json").read_text())["rows"]
    assert {row: found["status"] for row, found in rows.items()} == {"cancel": "passed", "text": "passed"}


@pytest.mark.parametrize(("module", "name"), proving._LIMITS)
def test_the_limits_that_the_tests_raise_are_there(module: str, name: str) -> None:
    assert isinstance(getattr(import_module(f"dragoman.{module}"), name), float)
