"""The form of a commit message, as ``scripts/check-commit`` checks it for the commit-msg hook."""

import sys
from pathlib import Path

import pytest

from .programs import ROOT, run

GOOD = "Add a limit for open tool calls\n\nAn idle clock ended silent builds of twenty minutes.\n"


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (GOOD, ""),
        ("# a comment of the editor\n" + GOOD, ""),
        ("Merge branch 'one'\n", ""),
        (f"{'x' * 72}\n\nWhy.\n", ""),
        (f"{'x' * 73}\n\nWhy.\n", "73 characters"),
        ("Add a limit\nbecause of silent builds\n", "second line is not empty"),
        ("Add a limit\n", "body is missing"),
        ("Add a limit\n\n# only a comment\n", "body is missing"),
        ("Add a limit.\n\nWhy.\n", "full stop"),
        ("\n", "message is empty"),
    ],
)
def test_the_message_is_judged(tmp_path: Path, message: str, fault: str) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text(message, encoding="utf-8")
    done = run(sys.executable, str(ROOT / "scripts/check-commit"), str(path))
    assert (done.returncode, fault in done.stderr, done.stdout) == (1 if fault else 0, True, "")


def test_a_wrong_call_prints_the_usage() -> None:
    done = run(sys.executable, str(ROOT / "scripts/check-commit"))
    assert done.returncode == 2
    assert "Usage: scripts/check-commit FILE" in done.stderr


def test_nothing_that_is_ignored_is_committed() -> None:
    """A link to agents or environments elsewhere would replace them in every checkout."""
    listed = run("git", "ls-files", "--cached", "--ignored", "--exclude-standard")
    assert (listed.returncode, listed.stdout) == (0, ""), listed.stderr
