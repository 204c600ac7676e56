"""Keeps what the shared scenarios proved of each adapter, for ``scripts/proofs``: .agents/results/ADAPTER.json."""

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.sdk import _finding, _login

from tests.agents.harness import PATIENCE_S

RESULTS = Path(__file__).parents[2] / ".agents" / "results"
_ORDER = ("failed", "passed", "not testable offline", "not supported by the agent")
"""Of several tests of one row, the first of these tells."""

_seen = pytest.StashKey[dict[str, dict[str, Any]]]()


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Let a program say its version, and who is logged in, as late as it does on a busy machine.

    A person who asks would not wait that long, and is told that it is not known.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_finding, "VERSION_LIMIT_S", PATIENCE_S)
        for module in (_finding, _login):
            patched.setattr(module, "AUTH_LIMIT_S", PATIENCE_S)
        yield


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_seen] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    del call
    report = yield
    mark = item.get_closest_marker("proves")
    recipe = getattr(getattr(item, "cls", None), "recipe", None)
    if mark is None or recipe is None or not (report.when == "call" or report.outcome != "passed"):
        return report
    status, reason = _status(report)
    adapter = item.config.stash[_seen].setdefault(
        recipe.make().describe().type,
        {"executable": recipe.executable, "from_documentation": recipe.built_from_documentation, "rows": {}},
    )
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    row = adapter["rows"].setdefault(mark.args[0].format(**parameters), {"status": status, "reason": reason})
    if _ORDER.index(status) < _ORDER.index(row["status"]):
        row.update(status=status, reason=reason)
    return report


def _status(report: pytest.TestReport) -> tuple[str, str]:
    if report.outcome != "skipped":
        return report.outcome, ""
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    status, _, reason = said.removeprefix("Skipped: ").partition(": ")
    return (status, reason) if status in _ORDER else ("failed", f"skipped without a reason that counts: {said}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add what was seen to what earlier sessions saw: a part of the tests tells of a part of the rows."""
    for adapter, found in session.config.stash[_seen].items():
        path = RESULTS / f"{adapter}.json"
        before = json.loads(path.read_text()) if path.exists() else {"rows": {}}
        merged = {**found, "rows": {**before["rows"], **found["rows"]}}
        RESULTS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(merged, indent=1, sort_keys=True))
