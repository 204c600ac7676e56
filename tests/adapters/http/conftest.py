"""Fixtures of the HTTP adapter's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.adapters.http import service


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[service.Bench]:
    async with service.bench(tmp_path) as made:
        yield made
