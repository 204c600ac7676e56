"""What holds for all tests of the command line."""

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def state_of_its_own() -> Iterator[None]:
    """Leave the run log and the token of this machine's user alone; a program here uses those of its module."""
    # Not below tmp_path: a socket's path must be short.
    with (
        tempfile.TemporaryDirectory(prefix="dr-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_STATE_HOME", folder)
        yield
