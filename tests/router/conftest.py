import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a path short enough for sockets; pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="dr-") as path:
        yield Path(path)
