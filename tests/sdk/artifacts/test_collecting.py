"""Finding what an agent left: whatever it is named, linked to or replaced by, nothing else is read."""

import hashlib
import os
import tempfile
import threading
from pathlib import Path

import pytest
from dragoman.sdk._artifacts import collecting
from dragoman.sdk._artifacts.collecting import Bounds, Collected, collect
from hypothesis import given, settings
from hypothesis import strategies as st

SECRET = b"of somebody else"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def names(found: Collected) -> list[str]:
    return [file.artifact.name for file in found.kept]


def test_files_of_all_levels_are_copied(source: Path, target: Path) -> None:
    (source / "b").mkdir()
    (source / "b" / "c.json").write_bytes(b"{}")
    (source / "a").write_bytes(b"1")
    found = collect(source, target)
    assert names(found) == ["a", "b/c.json"]
    (source / "a").write_bytes(b"changed later")
    assert [file.path.read_bytes() for file in found.kept] == [b"1", b"{}"]
    assert [file.artifact.media_type for file in found.kept] == ["", "application/json"]
    assert found.kept[1].artifact.sha256 == hashlib.sha256(b"{}").hexdigest()
    assert (found.size, found.left_out) == (3, 0)


def test_no_link_is_followed(source: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(SECRET)
    (source / "file").symlink_to(tmp_path / "outside" / "secret")
    (source / "folder").symlink_to(tmp_path / "outside")
    (source / "loop").symlink_to(source)
    found = collect(source, target)
    assert names(found) == []
    assert found.reasons == ["file is a link", "folder is a link", "loop is a link"]


def test_a_directory_that_is_a_link_is_refused_as_a_whole(source: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "replaced").symlink_to(source)
    with pytest.raises(OSError, match="replaced"):
        collect(tmp_path / "replaced", target)


def test_what_is_no_file_is_left_out(source: Path, target: Path) -> None:
    os.mkfifo(source / "pipe")
    (source / "deep").mkdir()
    os.mkfifo(source / "deep" / "pipe")
    (source / "file").touch()
    found = collect(source, target)
    assert names(found) == ["file"]
    assert found.reasons == ["deep/pipe is no regular file", "pipe is no regular file"]


@pytest.mark.parametrize("name", [b"a\nb", b"a\x1b[2J", b"a\\b", b"\xff\xfe", "\u202etxt.exe".encode()])
def test_a_name_that_is_not_safe(source: Path, target: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(source) + b"/" + name)).touch()
    found = collect(source, target)
    assert names(found) == []
    assert found.left_out == 1
    assert found.reasons[0].isprintable()


@pytest.mark.parametrize(
    ("bounds", "kept", "why"),
    [
        (Bounds(files=2), ["a", "b"], "c is one more than 2 files"),
        (Bounds(file_bytes=2), ["a", "b"], "c is too large"),
        (Bounds(total_bytes=5), ["a", "b"], "c is too large"),
        (Bounds(entries=2), [], "the directory has more than"),
    ],
)
def test_bounds(source: Path, target: Path, bounds: Bounds, kept: list[str], why: str) -> None:
    for number, name in enumerate("abc", start=1):
        (source / name).write_bytes(b"x" * number)
    found = collect(source, target, bounds)
    if kept:
        assert names(found) == kept
    assert found.left_out == 1
    assert found.reasons[0].startswith(why)
    assert len(list(target.iterdir())) == len(found.kept)


def test_directories_that_are_too_deep(source: Path, target: Path) -> None:
    inner = source
    for _ in range(20):
        inner = inner / "d"
        inner.mkdir()
    (inner / "file").touch()
    found = collect(source, target)
    assert names(found) == []
    assert "too deep" in found.reasons[0]


def test_a_file_that_is_replaced_while_it_is_looked_at(
    source: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and its opening: by a link, by a pipe, by a directory."""
    (tmp_path / "secret").write_bytes(SECRET)
    for name in ("link", "pipe", "folder"):
        (source / name).write_bytes(b"mine")
    copy = collecting._copy

    def replacing(folder: int, name: str, to: Path, most: int) -> tuple[int, str]:
        (source / name).unlink()
        if name == "link":
            (source / name).symlink_to(tmp_path / "secret")
        elif name == "pipe":
            os.mkfifo(source / name)
        else:
            (source / name).mkdir()
        return copy(folder, name, to, most)

    monkeypatch.setattr(collecting, "_copy", replacing)
    found = collect(source, target)
    assert names(found) == []
    assert found.left_out == 3
    assert not any(target.iterdir())


def test_an_agent_that_goes_on(source: Path, target: Path, tmp_path: Path) -> None:
    """It swaps a directory for a link to another all the time; nothing of that one is ever kept."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(SECRET)
    (source / "d").mkdir()
    (source / "d" / "f").write_bytes(b"mine")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (source / "d").rename(source / "away")
            (source / "d").symlink_to(tmp_path / "outside")
            (source / "d").unlink()
            (source / "away").rename(source / "d")

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for number in range(100):
            to = target / str(number)
            to.mkdir()
            for file in collect(source, to).kept:
                assert file.path.read_bytes() == b"mine"
    finally:
        stop.set()
        swapping.join()


NAME = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.lists(NAME, min_size=1, max_size=4).map(tuple), st.binary(max_size=50), max_size=8))
def test_every_name_is_below_the_directory(files: dict[tuple[str, ...], bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        source.mkdir()
        target.mkdir()
        written = {}
        for parts, content in files.items():
            if {".", ".."} & set(parts):
                continue
            path = source.joinpath(*parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError:  # a file is where a directory should be, or the name is too long
                continue
            written["/".join(parts)] = content
        found = collect(source, target)
        assert len(found.kept) + found.left_out == len(written)
        for file in found.kept:
            name = file.artifact.name
            assert written[name] == file.path.read_bytes()
            assert name.isprintable()
            assert not {"", ".", ".."} & set(name.split("/"))
            assert file.artifact.sha256 == hashlib.sha256(written[name]).hexdigest()
