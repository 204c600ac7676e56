"""What the bench does not measure it does not publish."""

import pytest

from tests.bench.__main__ import arguments_of
from tests.bench.measures import MEASURES


@pytest.mark.parametrize("part", [["--check"], ["--only", MEASURES[0].name]])
def test_a_part_is_not_published(part: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments_of([*part, "--publish"])
    assert "--publish writes the tables of all measures" in capsys.readouterr().err
    assert not arguments_of(part).publish


def test_a_whole_run_is_published() -> None:
    assert arguments_of(["--full", "--publish"]).publish
