"""Files at the command line: given to an agent with --attach, and left by it."""

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import click
import pytest
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._attachments import attachments
from dragoman.cli.commands.artifacts import _write
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.program import dragoman
from tests.router.harness import config, routing

PNG = b"\x89PNG\r\n\x1a\nrest"
LEAVE = 'args=["-c", "mkdir $DRAGOMAN_ARTIFACTS/out; printf done > $DRAGOMAN_ARTIFACTS/out/a.txt"]'


async def test_what_a_run_left_is_listed_and_written(tmp_path: Path) -> None:
    async with routing(config(tmp_path, entry_points=True)) as (router, _caller):
        at = ("--router", router.addresses[0])
        run = (
            "run",
            "process",
            "",
            "--config",
            "command=sh",
            "--config",
            LEAVE,
            "--run-id",
            "r",
            "--cwd",
            str(tmp_path),
        )
        done = await dragoman(*run, *at, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert "+ artifact out/a.txt (4 bytes)" in done.out
        listed = await dragoman("artifacts", "r", *at)
        digest = hashlib.sha256(b"done").hexdigest()
        assert listed.out.splitlines()[-1].split() == ["out/a.txt", "4", "text/plain", digest[:12]]
        as_json = await dragoman("artifacts", "r", "--json", *at)
        assert json.loads(as_json.out)["sha256"] == digest
        printed = await dragoman("artifacts", "r", "out/a.txt", *at)
        assert (printed.code, printed.out) == (0, "done")
        written = await dragoman("artifacts", "r", "out/a.txt", "-o", str(tmp_path / "got"), *at)
        assert (written.code, written.err) == (0, "")
        assert (tmp_path / "got").read_bytes() == b"done"
        (tmp_path / "got").write_bytes(b"mine")
        unknown = await dragoman("artifacts", "r", "out/b.txt", "-o", str(tmp_path / "got"), *at)
        assert unknown.code == 2
        assert "out/a.txt" in unknown.err
        assert (tmp_path / "got").read_bytes() == b"mine"
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".got")] == []


async def test_a_file_goes_to_the_agent(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"from the notes")
    show = 'args=["-c", "cat \\"$(sed -n \'s/^Attached files, in \\\\(.*\\\\):/\\\\1/p\')\\"/notes.txt"]'
    run = ("run", "process", "hello", "--config", "command=sh", "--config", show, "--attach", "notes.txt")
    done = await dragoman(*run, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "from the notes" in done.out


async def test_options_that_need_another() -> None:
    done = await dragoman("artifacts", "r", "-o", "f")
    assert (done.code, "NAME" in done.err) == (2, True)


def test_images_are_known_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "shot.bin").write_bytes(PNG)
    (tmp_path / "fake.png").write_bytes(b"no image")
    (tmp_path / "page.html").write_bytes(b"<p>")
    paths = [str(tmp_path / name) for name in ("shot.bin", "fake.png", "page.html")]
    assert [one.media_type for one in attachments(paths, images=True)] == ["image/png", "", "text/html"]
    assert [one.media_type for one in attachments(paths, images=False)] == ["", "", "text/html"]


def test_names_that_are_the_same(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Übung.txt").write_bytes(b"x")
    paths = [str(tmp_path / folder / "Übung.txt") for folder in ("a", "b")]
    assert [one.name for one in attachments(paths, images=True)] == ["bung.txt", "2-bung.txt"]


@pytest.mark.parametrize("kind", ["absent", "folder", "pipe", "large"])
def test_what_is_no_file_to_attach(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.write_bytes(bytes((8 << 20) + 1))
    with pytest.raises(click.BadParameter, match=kind):
        list(attachments([str(path)], images=True))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40), max_size=5))
def test_every_name_is_one_that_the_contract_allows(names: list[str]) -> None:
    from dragoman.cli.commands._attachments import _name
    from dragoman.sdk._request.attachments import wrong_attachments
    from dragoman.v1 import adapter_pb2 as pb

    known: set[str] = set()
    attached = [pb.Attachment(name=_name(f"/somewhere/{name}", known), content=b"") for name in names]
    assert list(wrong_attachments(attached)) == []


async def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise OSError(5, "gone")

    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(CommandError, match="cannot be written: gone"):
        await _write(broken(), tmp_path / "file")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"before"}


async def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("there")
    await _write(_one(b"new"), link)
    assert link.is_symlink()
    assert (tmp_path / "there").read_bytes() == b"new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await _write(_one(b"through"), pipe)
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    os.umask(before := os.umask(0o077))
    await _write(_one(b"x"), tmp_path / "plain")
    assert (tmp_path / "plain").stat().st_mode & 0o777 == 0o666 & ~before


async def _one(piece: bytes) -> AsyncIterator[bytes]:
    yield piece
