"""Addresses: what is one, where one may listen without TLS, and who holds a socket's path."""

import errno
import os
import socket
import stat
import sys
from pathlib import Path

import pytest
from dragoman.protocol.addresses import (
    Address,
    AddressError,
    check_listen,
    parse_address,
    port_address,
    private_files,
    why_not_bound,
)
from dragoman.protocol.private import hold_socket_path


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("unix:/run/a.sock", Address(path="/run/a.sock"), "unix:/run/a.sock"),
        ("unix:///run/a.sock", Address(path="/run/a.sock"), "unix:/run/a.sock"),
        ("127.0.0.1:0", Address(host="127.0.0.1", port=0), "127.0.0.1:0"),
        ("localhost:7777", Address(host="localhost", port=7777), "localhost:7777"),
        ("[::1]:65535", Address(host="::1", port=65535), "[::1]:65535"),
        ("host.example:1", Address(host="host.example", port=1), "host.example:1"),
    ],
)
def test_addresses(text: str, address: Address, written: str) -> None:
    assert parse_address(text) == address
    assert str(address) == written
    assert parse_address(written) == address


@pytest.mark.parametrize(
    "text",
    ["", "7777", ":7777", "host", "host:", "host:x", "host:-1", "host:65536", "unix:", "unix:a.sock", "unix://a/b"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AddressError, match=r"e\.g\."):
        parse_address(text)


def test_a_port_beside_those_of_the_contract() -> None:
    assert port_address("9464") == Address(host="127.0.0.1", port=9464)
    assert port_address("0.0.0.0:9464") == Address(host="0.0.0.0", port=9464)
    for wrong in ("unix:/run/metrics.sock", "nonsense", "", "70000"):
        with pytest.raises(AddressError):
            port_address(wrong)


def test_a_socket_path_that_the_kernel_would_cut_is_refused() -> None:
    longest = "/" + "x" * 106
    assert parse_address(f"unix:{longest}").path == longest
    for path in (f"{longest}x", "/" + "ä" * 54):
        with pytest.raises(AddressError, match="at most 107 bytes"):
            parse_address(f"unix:{path}")


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/a"])
def test_loopback_and_sockets_need_no_tls(text: str) -> None:
    check_listen(parse_address(text))


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "192.168.0.1:1", "host.example:1", "[::ffff:1.2.3.4]:1"])
def test_elsewhere_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(AddressError, match=r"without TLS.*127\.0\.0\.1:PORT or unix:/path"):
        check_listen(parse_address(text))


def test_a_socket_path_has_one_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    with hold_socket_path(path), pytest.raises(AddressError, match="another server"), hold_socket_path(path):
        raise AssertionError("held twice")
    listening = socket.socket(socket.AF_UNIX)
    with listening, hold_socket_path(path):
        listening.bind(path)
        listening.listen()
        its_name = f"process {os.getpid()}" if sys.platform == "linux" else "another server"
        with pytest.raises(AddressError, match=its_name), hold_socket_path(path):
            pass
    with hold_socket_path(path):  # free again
        assert stat.S_IMODE(Path(f"{path}.lock").stat().st_mode) == 0o600


def test_an_absent_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="No such file"), hold_socket_path(str(tmp_path / "none/a.sock")):
        raise AssertionError("held nothing")


def test_private_files_are_for_this_user_alone(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "private").touch()
    (tmp_path / "usual").touch(mode=0o644)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "usual").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("address", "number", "why"),
    [
        ("127.0.0.1:80", errno.EACCES, "this user is not allowed to (ports below 1024 mostly are"),
        ("unix:/x/y.sock", errno.EACCES, "this user is not allowed to; choose another path"),
        ("[::1]:80", errno.EADDRNOTAVAIL, "this machine has no such address"),
        ("127.0.0.1:80", errno.ENOBUFS, "odd; choose another port"),
    ],
)
def test_why_a_server_could_not_be_bound(
    address: str, number: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bind(_self: object, _address: object) -> None:
        raise OSError(number, "odd")

    monkeypatch.setattr("socket.socket.bind", bind)
    assert why_not_bound(parse_address(address)).startswith(why)


def test_an_address_that_is_free_by_now_is_left_free(tmp_path: Path) -> None:
    for address in (f"unix:{tmp_path / 'a.sock'}", "127.0.0.1:0"):
        assert why_not_bound(parse_address(address)).endswith("try again")
    assert list(tmp_path.iterdir()) == []
