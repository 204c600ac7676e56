"""One side of a JSON-RPC conversation."""

import json
from typing import Any

import pytest
from dragoman.sdk._encoding.jsonrpc import Notification, Peer, Request, Response, RpcError, Stray
from hypothesis import given
from hypothesis import strategies as st


def line(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_an_answer_comes_back_with_the_context_of_its_request() -> None:
    peer = Peer[str]()
    first = json.loads(peer.request("a", {}, "tag-a"))
    second = json.loads(peer.request("b", {"x": "\u2028"}, "tag-b"))
    assert first["jsonrpc"] == "2.0"
    assert first["id"] != second["id"]
    assert peer.pending == ("tag-a", "tag-b")
    assert peer.read(line(id=second["id"], result={"y": 1})) == Response("tag-b", {"y": 1})
    error = {"code": -32000, "message": "no", "data": [1]}
    assert peer.read(line(id=first["id"], error=error)) == Response("tag-a", None, RpcError(-32000, "no", [1]))
    assert not peer.pending


def test_a_late_second_answer_is_nobodys() -> None:
    peer = Peer[str]()
    peer.request("a", {}, "tag")
    assert isinstance(peer.read(line(id=1, result=None)), Response)
    assert peer.read(line(id=1, result=None)) == Stray()


@pytest.mark.parametrize("wrong", ["1", True, 2, -1, 1.5, None])
def test_an_answer_to_what_was_not_asked_is_nobodys(wrong: Any) -> None:
    peer = Peer[str]()
    peer.request("a", {}, "tag")
    assert isinstance(peer.read(line(id=wrong, result={})), Stray)
    assert peer.pending == ("tag",)


def test_the_two_sides_ids_have_nothing_to_do_with_each_other() -> None:
    peer = Peer[str]()
    peer.request("a", {}, "tag")
    assert peer.read(line(id=1, method="b", params={"z": 1})) == Request(1, "b", {"z": 1})
    assert json.loads(peer.result(1, {})) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert peer.pending == ("tag",)


@pytest.mark.parametrize("request_id", [0, 7, "seven", 1.5, None])
def test_an_id_is_returned_as_it_came(request_id: Any) -> None:
    peer = Peer[str]()
    request = peer.read(line(id=request_id, method="b"))
    assert isinstance(request, Request)
    assert json.loads(peer.error(request.id, -1, "no"))["id"] == request_id


def test_a_notification_wants_no_answer() -> None:
    assert Peer[str]().read(line(method="b", params=[1])) == Notification("b", {})


@pytest.mark.parametrize("data", [b"", b"words", b"[]", b"{}", b'{"id": 1}', b'{"id": true, "method": "b"}', b"1"])
def test_what_is_no_message_is_none(data: bytes) -> None:
    assert Peer[str]().read(data) is None


def test_some_leave_the_version_out() -> None:
    assert json.loads(Peer[str](says_version=False).notify("initialized")) == {"method": "initialized"}


def test_a_line_is_one_line_whatever_is_in_it() -> None:
    data = Peer[str]().notify("a", {"text": "one\ntwo\u2028three\r\ud800"})
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    assert data.isascii()


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_nothing_that_is_read_raises(data: bytes) -> None:
    Peer[str]().read(data)
