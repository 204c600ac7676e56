from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from dragoman.guard.logfile import RotatedLog
from hypothesis import given, settings
from hypothesis import strategies as st


def contents(path: Path) -> list[bytes]:
    """Return all files' contents, oldest first."""
    names = sorted(path.parent.glob("log.*"), key=lambda name: -int(name.suffix[1:]))
    return [name.read_bytes() for name in [*names, path]]


def test_it_is_rotated_between_lines_before_it_grows_too_big(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), limit=10, keep=2)
    log.write(b"one\ntwo\nthree\nfour\n")
    log.close()
    assert contents(tmp_path / "log") == [b"one\ntwo\n", b"three\n", b"four\n"]


def test_the_oldest_is_dropped(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), limit=4, keep=2)
    for line in (b"1\n", b"222\n", b"333\n", b"444\n"):
        log.write(line)
    log.close()
    assert contents(tmp_path / "log") == [b"222\n", b"333\n", b"444\n"]


def test_none_need_be_kept(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), limit=4, keep=0)
    log.write(b"111\n222\n")
    log.close()
    assert contents(tmp_path / "log") == [b"222\n"]


def test_a_line_longer_than_a_file_is_cut(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), limit=4, keep=3)
    log.write(b"a\n123456789\n")
    log.close()
    assert contents(tmp_path / "log") == [b"a\n", b"1234", b"5678", b"9\n"]


def test_an_earlier_log_is_continued_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for line in (b"first\n", b"second\n"):
        log = RotatedLog(str(path), limit=10, keep=1)
        log.write(line)
        log.close()
    assert contents(path) == [b"first\n", b"second\n"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_output_that_cannot_be_written_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RotatedLog(str(tmp_path / "log"), limit=1000, keep=1)

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        log.write(b"12345")
        log.write(b"67")
    log.write(b"back\n")
    log.close()
    assert contents(tmp_path / "log") == [b"dragoman-guard: 7 bytes of output could not be logged\nback\n"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("ab\n", max_size=9).map(str.encode), max_size=9), st.integers(1, 12))
def test_nothing_is_lost_and_no_file_is_too_big(pieces: list[bytes], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        log = RotatedLog(str(path), limit=limit, keep=100)
        for piece in pieces:
            log.write(piece)
        log.close()
        files = contents(path)
    assert b"".join(files) == b"".join(pieces)
    assert all(len(file) <= limit for file in files)
