from __future__ import annotations

import json
import signal
import socket
from typing import TYPE_CHECKING

import pytest
from dragoman.guard.control import _USUAL, LINE_BYTES, Channel, CommandError, decode_command, encode
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), VALUES))
def test_every_event_is_one_line_of_json(message: dict[str, object]) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert json.loads(line) == message


@pytest.mark.parametrize("to", ["leader", "group", "tree"])
def test_a_signal_and_its_target(to: str) -> None:
    command = decode_command(b'{"signal":"SIGINT","to":"%s"}' % to.encode())
    assert (command.kind, command.signum, command.to) == ("signal", signal.SIGINT, to)


def test_the_leader_is_meant_by_default() -> None:
    assert decode_command(b'{"signal":"SIGTERM"}').to == "leader"


@pytest.mark.parametrize("order", [{"kill": True}, {"signal": "SIGTERM"}])
def test_an_order_to_end_is_read_without_an_import(order: dict[str, object]) -> None:
    line = json.dumps(order).encode()
    assert line in _USUAL
    read, spaced = decode_command(line), decode_command(line + b" ")
    assert (read.kind, read.signum, read.to) == (spaced.kind, spaced.signum, spaced.to)


@pytest.mark.parametrize("kind", ["kill", "sweep"])
def test_an_order_without_a_signal(kind: str) -> None:
    assert decode_command(b'{"%s":true}' % kind.encode()).kind == kind


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"kill",
        b"\xff",
        b"[]",
        b"{}",
        b'{"kill":false}',
        b'{"kill":1}',
        b'{"sweep":false}',
        b'{"sweep":true,"kill":true}',
        b'{"kill":true,"signal":"SIGINT"}',
        b'{"signal":"SIGINT","from":"x"}',
        b'{"signal":"INT"}',
        b'{"signal":2}',
        b'{"signal":["SIGINT"]}',
        b'{"signal":"SIGINT","to":"world"}',
        b'{"signal":"SIGINT","to":["tree"]}',
    ],
)
def test_anything_else_is_no_command(line: bytes) -> None:
    with pytest.raises(CommandError):
        decode_command(line)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours.detach())
    with theirs:
        yield channel, theirs
    channel.close()


def test_lines_come_whole_however_they_were_sent(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    assert channel.receive() == []
    peer.sendall(b"on")
    assert channel.receive() == []
    peer.sendall(b"e\ntwo\nthr")
    assert channel.receive() == [b"one", b"two"]
    peer.sendall(b"ee\n")
    assert channel.receive() == [b"three"]


def test_a_peer_that_hangs_up_is_gone(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    peer.close()
    with pytest.raises(EOFError):
        channel.receive()
    assert not channel.send({"event": "gone"})


def test_a_peer_that_never_ends_its_line_is_gone(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    peer.setblocking(False)

    def babble() -> None:
        for _ in range(3):
            peer.send(b"x" * LINE_BYTES)
            channel.receive()

    with pytest.raises(EOFError):
        babble()


def test_a_peer_that_does_not_read_blocks_no_other(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    sent = [channel.send({"event": "x" * 10_000}) for _ in range(100)]
    assert sent[0]
    assert not sent[-1]
