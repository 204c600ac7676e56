"""Fixtures of the HTTP adapter's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.adapters.http import service


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[service.Services]:
    async with service.services(tmp_path) as opened:
        yield opened
