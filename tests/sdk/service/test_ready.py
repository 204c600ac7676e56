"""What a served adapter makes ready for runs before they ask for it."""

import os

import pytest
from dragoman.sdk._serving.server import EXPECTS_RUN_VARIABLE

from tests.sdk.serving import Scripted, serving


@pytest.mark.parametrize("starts_programs", [False, True])
async def test_a_guard_starts_with_an_adapter_that_is_started_for_a_run(
    monkeypatch: pytest.MonkeyPatch, *, starts_programs: bool
) -> None:
    scripted = Scripted()
    scripted.starts_programs = starts_programs
    monkeypatch.setenv(EXPECTS_RUN_VARIABLE, "1")
    async with serving(scripted) as first:
        assert (first.server._guards._spare is not None) == starts_programs
        assert EXPECTS_RUN_VARIABLE not in os.environ, "for itself alone"
        async with serving(Scripted()) as second:
            assert second.server._guards._spare is None
