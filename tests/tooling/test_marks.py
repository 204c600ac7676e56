"""Each target of the Makefile that selects tests by a mark collects all files that have the mark."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py")}
SELECTED = re.findall(r"-m (\w+) (tests/.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_targets_were_found() -> None:
    assert {mark for mark, _ in SELECTED} >= {"chaos", "conformance", "go", "helm", "java", "rust", "typescript"}


@pytest.mark.parametrize("mark", sorted({mark for mark, _ in SELECTED}))
def test_a_target_collects_all_files_with_its_mark(mark: str) -> None:
    folders = [Path(path) for one, paths in SELECTED for path in paths.split() if one == mark]
    marked = {path for path, text in TESTS.items() if re.search(rf"\bmark\.{mark}\b", text)}
    assert {path for path in marked if not {path, *path.parents} & {*folders}} == set()
