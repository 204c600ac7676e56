from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.guard.guarded import Guarded, GuardedAdapter
from tests.hostile import Hunt, hunting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def hunt() -> Iterator[Hunt]:
    with hunting() as hunt:
        yield hunt


@pytest.fixture
def run(hunt: Hunt) -> Iterator[Callable[..., Guarded]]:
    """Starts commands under a run's guard."""
    started: list[Guarded] = []

    def start(argv: tuple[str, ...], **options: Any) -> Guarded:
        started.append(Guarded(argv, hunt.env, **options))
        return started[-1]

    yield start
    for guarded in started:
        guarded.close()


@pytest.fixture
def start_adapter(hunt: Hunt) -> Iterator[Callable[..., GuardedAdapter]]:
    """Starts commands under an adapter's guard, all with the same files."""
    started: list[GuardedAdapter] = []
    with tempfile.TemporaryDirectory() as folder:

        def start(argv: tuple[str, ...], **options: Any) -> GuardedAdapter:
            started.append(GuardedAdapter(argv, hunt.env, Path(folder), **options))
            return started[-1]

        yield start
        for adapter in started:
            adapter.close()
