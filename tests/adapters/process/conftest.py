"""Fixtures of the process adapter's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.adapters.process.arena import Arena, arena_in


@pytest_asyncio.fixture
async def arena(tmp_path: Path) -> AsyncIterator[Arena]:
    """A place for hostile programs; what must hold after every run is checked when the test is over."""
    async with arena_in(tmp_path) as running:
        yield running
