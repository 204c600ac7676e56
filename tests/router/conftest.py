import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from dragoman.router._domain.run_states import Step, after
from dragoman.router._rpc.run import Run

from tests.router.store.databases import postgres_server

__all__ = ["postgres_server"]


@pytest.fixture(autouse=True)
def no_impossible_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail a test in whose routers a run went from one state to another that the table does not know."""
    found: list[str] = []
    step = Run.step

    def watched(run: Run, taken: Step) -> None:
        if after(run.state, taken) is None:
            found.append(f"{run.run_id}: {taken.name} in {run.state.value}")
        step(run, taken)

    monkeypatch.setattr(Run, "step", watched)
    yield found
    assert found == []


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a path short enough for sockets; pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="dr-") as path:
        yield Path(path)
