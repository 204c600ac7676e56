"""Keeps what the shared scenarios proved of each adapter, for ``scripts/proofs``: .agents/results/ADAPTER.json."""

import json
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.agents.harness import PATIENCE_S

RESULTS = Path(__file__).parents[2] / ".agents" / "results"
_ORDER = ("failed", "passed", "not testable offline", "not supported by the agent")
"""Of several tests of one row, the first of these counts."""
_PROOF = "proof"
"""The name of what a report carries of the row that its test belongs to."""


_LIMITS = (
    ("sdk._changes.git", "TIMEOUT_S"),
    ("sdk._detection.account", "TURN_LIMIT_S"),
    ("sdk._detection.agent", "VERSION_LIMIT_S"),
    ("sdk._detection.agent", "AUTH_LIMIT_S"),
    ("sdk._detection.auth", "AUTH_LIMIT_S"),
    ("adapters.claude_code.login", "STATUS_LIMIT_S"),
    ("adapters.claude_code.quota", "LIMIT_S"),
    ("adapters.codex.adapter", "_MODELS_LIMIT_S"),
    ("adapters.codex.adapter", "_SANDBOX_LIMIT_S"),
    ("adapters.codex.login", "_STATUS_LIMIT_S"),
    ("adapters.codex.quota", "LIMIT_S"),
    ("adapters.copilot.quota", "LIMIT_S"),
    ("adapters.http.adapter", "CANCEL_LIMIT_S"),
    ("adapters.http.adapter", "_HEALTH_LIMIT_S"),
    ("adapters.opencode.account", "_DATABASE_LIMIT_S"),
    ("adapters.opencode.adapter", "_MODELS_LIMIT_S"),
)
"""Modules and their limits of time for short questions, which a program keeps unless the machine is busy."""


_WHOLE = frozenset({"tests/agents/test_openclaw.py"})
"""Files whose tests share a program that takes the CPU for most of a minute to start."""


class _OneByOne(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Gives each test to whichever worker is free, but those of some files to one worker.

    The mark ``xdist_group`` would say that too; xdist 3.8 does not see it with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in _WHOLE else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _OneByOne:
    return _OneByOne(config, log)


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Let a program say its version, its models, and who is logged in, as late as it does on a busy machine.

    A person who asks would not wait that long, and gets "unknown".
    """
    with pytest.MonkeyPatch.context() as patched:
        for module, name in _LIMITS:
            patched.setattr(import_module(f"dragoman.{module}"), name, PATIENCE_S)
        yield


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Results())


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
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    proof = {
        "adapter": recipe.make().describe().type,
        "executable": recipe.executable,
        "from_documentation": recipe.built_from_documentation,
        "row": mark.args[0].format(**parameters),
        "status": status,
        "reason": reason,
    }
    report.user_properties.append((_PROOF, proof))  # with which it gets to the process that writes the results
    return report


def _status(report: pytest.TestReport) -> tuple[str, str]:
    if report.outcome != "skipped":
        return report.outcome, ""
    message = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    status, _, reason = message.removeprefix("Skipped: ").partition(": ")
    return (status, reason) if status in _ORDER else ("failed", f"skipped without a reason that counts: {message}")


class _Results:
    """Gathers the proofs of all tests, in the process that has the reports of all workers."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, proof in report.user_properties:
            if name == _PROOF and isinstance(proof, dict):
                self._add(**proof)

    def _add(self, adapter: str, row: str, status: str, reason: str, **program: Any) -> None:
        found = self._seen.setdefault(adapter, {**program, "rows": {}})
        before = found["rows"].setdefault(row, {"status": status, "reason": reason})
        if _ORDER.index(status) < _ORDER.index(before["status"]):
            before.update(status=status, reason=reason)

    def pytest_sessionfinish(self) -> None:
        """Add what was seen to what earlier sessions saw: a part of the tests reports a part of the rows."""
        for adapter, found in self._seen.items():
            path = RESULTS / f"{adapter}.json"
            before = json.loads(path.read_text()) if path.exists() else {"rows": {}}
            merged = {**found, "rows": {**before["rows"], **found["rows"]}}
            RESULTS.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(merged, indent=1, sort_keys=True))
