"""pytest fixtures of the test kit, there wherever dragoman is installed beside pytest.

Imports are late: pytest loads this module in every run, even if no test uses it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dragoman.testkit.isolation import Isolation
    from dragoman.testkit.model_server import ServerInThread


@pytest.fixture
def scripted_model() -> "Iterator[ServerInThread]":
    """Serve the scripted model on loopback; see `dragoman.testkit.model_server`."""
    from dragoman.testkit.model_server import serving  # noqa: PLC0415  # late, see above

    with serving() as server:
        yield server


@pytest.fixture
def isolated_agent(scripted_model: "ServerInThread", tmp_path: Path) -> "Callable[[str], Isolation]":
    """Return a function from an agent profile, such as ``claude``, to its isolated home and environment."""
    from dragoman.testkit.isolation import isolate  # noqa: PLC0415  # late, see above

    return lambda profile: isolate(profile, tmp_path, model_url=scripted_model.url)
