"""The conformance kit examines the adapter with its real agent, in front of the scripted model."""

import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from dragoman.conformance import Options, Verdict, read_expected_failures, run_checks
from msgspec.structs import replace

from tests.agents.harness import Recipe, ServedAdapter

RULES = (
    *("run.succeeds", "run.failure-is-data", "run.survives-connection", "run.orphan", "run.one-result"),
    *("cancel.stops", "process.drain", "limits.wall", "prompt.large", "secrets.echo"),
    *("session.resumes", "tools.results", "respond.recorded"),
    *("settings.model", "settings.system-prompt", "settings.mcp-servers", "settings.max-turns"),
    *("events.order", "events.dense", "events.offsets", "events.tool-results", "events.input-resolved"),
    *("events.attempt", "events.time", "events.run-id", "events.size"),
)
"""Those that depend on what the agent does. The others are of the SDK, and examined with the adapter `process`."""
CHECK_S = 300
"""As long as an agent takes on a busy machine that starts slowly."""
LEAST = 16
"""How many rules must at least have been examined."""
EXPECTED = Path(__file__).parent / "expected_failures"
"""What a real agent cannot do, a file for each adapter that names the rules, with the reasons."""


class ConformanceTests:
    """A part of what all adapters must stand."""

    recipe: ClassVar[Recipe]

    @pytest.mark.timeout(1500)
    @pytest.mark.proves("conformance kit", features=(), uses=())
    async def test_the_kit_examines_it(
        self, served: ServedAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = options_for(self.recipe, served, monkeypatch)
        await examine(options, tmp_path, monkeypatch)


def options_for(recipe: Recipe, served: ServedAdapter, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Return how a process of its own is examined, with the home and the model of an adapter that is served."""
    for name in recipe.unset:
        monkeypatch.delenv(name, raising=False)
    expected = EXPECTED / f"{served.info.type}.txt"
    return Options(
        command=(sys.executable, "-m", "dragoman.cli.main", "adapter", "serve", served.info.type),
        config=json.dumps(dict(recipe.config)),
        env=dict(served.isolation.environment),
        model=served.model,
        expected_failures=read_expected_failures(expected) if expected.exists() else frozenset(),
    )


async def examine(options: Options, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examine an adapter with its real agent in a process; it violates no rule but those that are expected.

    Args:
        options: which adapter, with its agent's variables and the scripted model.
        folder: for the homes of the adapter.
        monkeypatch: of the test.
    """
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        (folder / "kit" / name).mkdir(mode=0o700, parents=True)
        monkeypatch.setenv(name, str(folder / "kit" / name))
    await judge(options, RULES, LEAST)


async def judge(options: Options, only: tuple[str, ...], least: int) -> None:
    """Examine some rules; at least so many must be kept, and none may be violated that is not expected.

    One at a time: several processes of an agent at once in one home are no matter of these rules, and some get in
    each other's way, as two first runs of opencode, both of which create its tables.
    """
    env = {name: value for name, value in options.env.items() if name != "TMPDIR"}
    report = await run_checks(replace(options, env=env, agent="model", only=only, at_once=1, check_s=CHECK_S))
    for item in report.outcomes:
        print(f"{item.verdict:8} {item.duration_s:5.1f} s  {item.rule.id}  {item.message}")
    wrong = {Verdict.FAILED, Verdict.ERROR}
    found = [item for item in report.outcomes if item.verdict in wrong and not item.is_expected]
    assert [f"{item.rule.id}: {item.message}" for item in found] == []
    assert report.stale == ()
    assert report.count(Verdict.PASSED) >= least
