import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from dragoman.router.runs.inputs import Input
from dragoman.router.runs.machine import RunMachine
from dragoman.router.runs.state import ImpossibleInputError

from tests.router.store.databases import postgres_server

__all__ = ["postgres_server"]


@pytest.fixture(autouse=True)
def no_impossible_inputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail a test in whose routers a run got an input that cannot happen in its state."""
    found: list[str] = []
    send = RunMachine.send

    def watched(run: RunMachine, event: Input) -> None:
        try:
            send(run, event)
        except ImpossibleInputError as error:
            found.append(str(error))
            raise

    monkeypatch.setattr(RunMachine, "send", watched)
    yield found
    assert found == []


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a path short enough for sockets; pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="dr-") as path:
        yield Path(path)
