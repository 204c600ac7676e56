"""Paths that no other user can replace, the default address, the token's file; and what clients do not dial."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.dialing import _TokenChannel, open_channel
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import channel_options
from dragoman.protocol.private import (
    check_socket_path,
    default_address,
    hold_socket_path,
    make_default_directory,
    make_private_directory,
    make_token,
    read_token,
)

from tests.strangers import OTHER_USER, listener, needs_root


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="dr-") as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def user_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what this machine's user has out of this."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for name in ("XDG_RUNTIME_DIR", "DRAGOMAN_TOKEN", "DRAGOMAN_ROUTER"):
        monkeypatch.delenv(name, raising=False)


def test_the_default_address_is_in_the_users_own_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_address() == f"unix:{folder}/state/dragoman/run/router.sock"
    make_default_directory()
    assert stat.S_IMODE((folder / "state/dragoman/run").stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert default_address() == f"unix:{folder}/dragoman/router.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{folder}/{'x' * 90}")
    assert default_address() == f"unix:{folder}/state/dragoman/run/router.sock"
    monkeypatch.setenv("XDG_STATE_HOME", f"{folder}/{'x' * 90}")
    assert default_address() == f"unix:/tmp/dragoman-{os.geteuid()}/router.sock"


@needs_root
def test_the_runtime_directory_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``su`` leaves the variable as it was."""
    os.chown(folder, OTHER_USER, OTHER_USER)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert default_address() == f"unix:{folder}/state/dragoman/run/router.sock"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_directory_that_others_can_write_is_no_place_for_a_socket(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    for path in (folder / "s", folder / "none" / "s"):
        with pytest.raises(AddressError, match="other users can write to"):
            check_socket_path(str(path))
    with pytest.raises(AddressError, match="other users can write to"), hold_socket_path(f"{folder}/s"):
        pass
    assert list(folder.iterdir()) == []


def test_a_directory_of_ones_own_in_a_shared_one_is_fine(folder: Path) -> None:
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o1777)
    (folder / "shared" / "own").mkdir(mode=0o700)
    check_socket_path(f"{folder}/shared/own/s")
    (folder / "shared").chmod(0o777)
    with pytest.raises(AddressError, match="other users can write to"):
        check_socket_path(f"{folder}/shared/own/s")


def test_a_link_is_followed_to_where_it_leads(folder: Path) -> None:
    (folder / "own").mkdir(mode=0o700)
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o777)
    (folder / "good").symlink_to("own")
    (folder / "bad").symlink_to(folder / "shared")
    (folder / "round").symlink_to("round")
    check_socket_path(f"{folder}/good/s")
    with pytest.raises(AddressError, match="other users can write to"):
        check_socket_path(f"{folder}/bad/s")
    with pytest.raises(AddressError, match="too many symbolic links"):
        check_socket_path(f"{folder}/round/s")


def test_what_is_no_socket_is_left_alone(folder: Path) -> None:
    (folder / "s").write_text("")
    with pytest.raises(AddressError, match="no socket of this server"):
        check_socket_path(f"{folder}/s")


def test_a_lock_that_is_a_link_is_not_followed(folder: Path) -> None:
    victim = folder / "victim"
    victim.write_text("kept")
    (folder / "s.lock").symlink_to(victim)
    with pytest.raises(AddressError, match="symbolic link"), hold_socket_path(f"{folder}/s"):
        pass
    (folder / "s.lock").unlink()
    (folder / "s.lock").hardlink_to(victim)
    with pytest.raises(AddressError, match="no lock file of yours"), hold_socket_path(f"{folder}/s"):
        pass
    assert victim.read_text() == "kept"


@needs_root
def test_the_lock_and_the_directory_of_another_user_are_not_believed(folder: Path) -> None:
    (folder / "s.lock").touch()
    os.chown(folder / "s.lock", OTHER_USER, OTHER_USER)
    with (
        pytest.raises(AddressError, match=f"no lock file of yours .uid {OTHER_USER}"),
        hold_socket_path(f"{folder}/s"),
    ):
        pass
    (folder / "theirs").mkdir()
    os.chown(folder / "theirs", OTHER_USER, OTHER_USER)
    with pytest.raises(AddressError, match=f"belongs to uid {OTHER_USER}"), hold_socket_path(f"{folder}/theirs/s"):
        pass


def test_a_token_that_others_can_read_or_that_is_a_link_is_not_used(folder: Path) -> None:
    token = make_token()
    file = folder / "state/dragoman/token"
    file.chmod(0o644)
    with pytest.raises(AddressError, match="can be read by others"):
        read_token()
    file.chmod(0o600)
    assert read_token() == token
    file.rename(folder / "elsewhere")
    file.symlink_to(folder / "elsewhere")
    with pytest.raises(AddressError, match="cannot be read"):
        make_token()


def test_a_token_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("DRAGOMAN_TOKEN", "0123456789abcdef")
    assert make_token() == "0123456789abcdef"
    assert not (folder / "state/dragoman/token").exists()
    monkeypatch.setenv("DRAGOMAN_TOKEN", "short")
    with pytest.raises(AddressError, match="fewer than 16"):
        make_token()


@pytest.mark.parametrize("address", ["nonsense", "unix:relative"])
async def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(DragomanError) as caught:
        open_channel(address, [])
    assert caught.value.reason is Reason.ADDRESS_UNTRUSTED


async def test_requests_do_not_go_to_another_machine_where_they_must_not() -> None:
    with pytest.raises(DragomanError, match="another machine"):
        open_channel("192.0.2.1:7777", [], only_local=True)


@needs_root
async def test_a_socket_of_another_user_is_not_dialed(folder: Path) -> None:
    """Squatted in a shared directory, or in one of theirs."""
    folder.chmod(0o1777)
    async with listener(folder / "s", user=OTHER_USER):
        with pytest.raises(DragomanError, match=r"other users can write to|belongs to uid"):
            open_channel(f"unix:{folder}/s", [])
        folder.chmod(0o755)
        with pytest.raises(DragomanError, match=f"belongs to uid {OTHER_USER}"):
            open_channel(f"unix:{folder}/s", [])
        # Who created the socket does not matter: what counts is who listens.
        os.chown(folder / "s", 0, 0)
        with pytest.raises(DragomanError, match=f"run by uid {OTHER_USER}"):
            open_channel(f"unix:{folder}/s", [])


@needs_root
async def test_a_port_of_another_user_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    make_token()
    async with listener("tcp", user=OTHER_USER) as port:
        with pytest.raises(DragomanError, match=f"run by uid {OTHER_USER}"):
            open_channel(f"127.0.0.1:{port}", [])
        address = f"127.0.0.1:{port}"
        monkeypatch.setenv("DRAGOMAN_TOKEN", "a-token-that-was-given-for-it")
        await open_channel(address, channel_options(address)).close()


@needs_root
async def test_a_port_that_another_user_took_meanwhile_gets_no_token() -> None:
    make_token()
    async with listener("tcp", user=OTHER_USER) as port:
        pass
    channel = open_channel(f"127.0.0.1:{port}", [])
    async with listener(f"tcp:{port}", user=OTHER_USER):
        method: Any = channel.unary_unary("/a/b")
        with pytest.raises(DragomanError, match=f"run by uid {OTHER_USER}"):
            method(b"")
    await channel.close()


async def test_the_token_goes_with_the_metadata_of_the_call() -> None:
    called: list[Any] = []
    calls = SimpleNamespace(
        unary_unary=lambda _method: lambda request, **named: called.append((request, named)),
    )
    call = _TokenChannel(cast("grpc.aio.Channel", calls), "t", None).unary_unary("/a/b")
    call(b"r", metadata=(("traceparent", "1"),), timeout=2)
    call(b"s")
    token = ("authorization", "Bearer t")
    assert called == [
        (b"r", {"metadata": (("traceparent", "1"), token), "timeout": 2}),
        (b"s", {"metadata": (token,)}),
    ]


@pytest.mark.parametrize("token", ["ä" * 20, "0123456789\nabcdefghi", "0123456789 abcdefghi"])
async def test_a_token_that_no_call_can_carry_is_refused_by_both_sides(
    monkeypatch: pytest.MonkeyPatch, folder: Path, token: str
) -> None:
    monkeypatch.setenv("DRAGOMAN_TOKEN", token)
    for use in (make_token, read_token):
        with pytest.raises(AddressError, match="DRAGOMAN_TOKEN holds characters"):
            use()
    for address in ("127.0.0.1:1", "example.net:1"):
        with pytest.raises(DragomanError, match="holds characters"):
            open_channel(address, channel_options(address))
    monkeypatch.delenv("DRAGOMAN_TOKEN")
    with pytest.raises(DragomanError, match="holds characters"):
        open_channel("127.0.0.1:1", channel_options("127.0.0.1:1"), token=token)
    make_token()
    (folder / "state/dragoman/token").write_text(token, encoding="utf-8")
    with pytest.raises(AddressError, match="holds characters"):
        make_token()


def test_a_newline_after_the_token_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("DRAGOMAN_TOKEN", "0123456789abcdef\n")
    assert make_token() == "0123456789abcdef"
    monkeypatch.setenv("DRAGOMAN_TOKEN", "\n")
    assert make_token() == (folder / "state/dragoman/token").read_text().strip()


def test_a_directory_becomes_private_but_not_one_that_is_meant_for_all(folder: Path) -> None:
    own = folder / "new" / "own"
    make_private_directory(own)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    for mode in (0o755, 0o775):
        own.chmod(mode)
        make_private_directory(own)
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
    (folder / "link").symlink_to(own)
    make_private_directory(folder / "link")
    for mode in (0o777, 0o1777, 0o1770):
        own.chmod(mode)
        with pytest.raises(AddressError, match="other users can write to"):
            make_private_directory(own)
        assert stat.S_IMODE(own.stat().st_mode) == mode


@needs_root
def test_a_directory_of_another_user_or_in_one_is_not_private(folder: Path) -> None:
    theirs = folder / "theirs"
    (theirs / "mine").mkdir(parents=True)
    os.chown(theirs, OTHER_USER, OTHER_USER)
    for path in (theirs, theirs / "mine"):
        with pytest.raises(AddressError, match=f"theirs belongs to uid {OTHER_USER}"):
            make_private_directory(path)
    assert theirs.stat().st_mode & 0o777 == 0o755
