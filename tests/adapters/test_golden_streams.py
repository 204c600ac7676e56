"""Every recording of a real agent gives the events, questions, answers and report that were found right."""

import pytest

from tests.adapters.golden_streams import GOLDEN, RECORDINGS, replay
from tests.golden import assert_golden


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_gives_its_golden_stream(name: str) -> None:
    assert_golden(GOLDEN / f"{name}.txt", replay(name))


def test_every_golden_stream_has_its_recording() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(RECORDINGS)
