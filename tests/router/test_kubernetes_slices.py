"""EndpointSlices without a cluster: events in, table out."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from dragoman.router.adapters.kubernetes.slices import (
    Bookmark,
    Changed,
    Deleted,
    EndpointSlice,
    Event,
    EventError,
    Failed,
    HeldTable,
    Listed,
    ServiceName,
    SliceTable,
    Table,
    read_event,
    read_page,
)
from dragoman.router.adapters.registry import Endpoint
from hypothesis import given
from hypothesis import strategies as st

from tests.router.kubernetes_api import endpoint, endpoint_slice

FAKE = ServiceName("agents", "fake")


def stored(one: dict[str, Any], version: int = 1, uid: str = "u1") -> EndpointSlice:
    """Return a slice as the API server has it."""
    metadata = {**one["metadata"], "namespace": "agents", "uid": uid, "resourceVersion": str(version)}
    return msgspec.convert({**one, "metadata": metadata}, EndpointSlice)


def after(*events: Event) -> SliceTable:
    table = SliceTable()
    for event in events:
        table = table.after(event)
    return table


def taking(table: Table, name: ServiceName = FAKE) -> list[str]:
    """Return the names of the endpoints that take new runs."""
    return [one.name for one in table[name] if one.takes_runs]


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({"ready": True}, ""),
        ({"ready": None}, ""),  # unknown is ready, by the API's definition
        ({"ready": False}, "is not ready"),
        ({"ready": False, "serving": False}, "is not ready"),
        ({"ready": False, "serving": True, "terminating": True}, "is terminating"),
        ({"ready": True, "serving": True, "terminating": True}, "is terminating"),  # publishNotReadyAddresses
        ({"ready": False, "serving": None, "terminating": True}, "is terminating"),
        ({"ready": False, "serving": False, "terminating": True}, "is terminating and no longer serves"),
    ],
)
def test_conditions_say_whether_new_runs_may_go_there(conditions: dict[str, Any], reason: str) -> None:
    table = after(Listed((stored(endpoint_slice("s", "fake", [endpoint("10.0.0.1", "a", **conditions)])),), "1"))
    assert table.services()[FAKE] == (Endpoint("uid-a", "10.0.0.1:7801", "a", not reason, reason),)


def test_several_slices_of_a_service_are_one_list() -> None:
    slices = (
        stored(endpoint_slice("s1", "fake", [endpoint("10.0.0.1", "a")])),
        stored(endpoint_slice("s2", "fake", [endpoint("10.0.0.2", "b")], port=7900)),
        stored(endpoint_slice("s3", "other", [endpoint("10.0.0.3", "c")])),
    )
    found = after(Listed(slices, "5")).services()
    assert [(one.name, one.address) for one in found[FAKE]] == [("a", "10.0.0.1:7801"), ("b", "10.0.0.2:7900")]
    assert [one.name for one in found[ServiceName("agents", "other")]] == ["c"]


def test_an_endpoint_in_two_slices_counts_once_with_the_better_of_its_conditions() -> None:
    slices = [
        stored(endpoint_slice("s1", "fake", [endpoint("10.0.0.1", "a", ready=False)])),
        stored(endpoint_slice("s2", "fake", [endpoint("10.0.0.1", "a")])),
    ]
    for order in (slices, slices[::-1]):
        assert after(Listed(tuple(order), "1")).services()[FAKE] == (Endpoint("uid-a", "10.0.0.1:7801", "a"),)


def test_of_two_address_families_the_first_counts() -> None:
    slices = (
        stored(endpoint_slice("a6", "fake", [endpoint("fd00::1", "a"), endpoint("fd00::2", "b")], family="IPv6")),
        stored(endpoint_slice("b4", "fake", [endpoint("10.0.0.1", "a")], family="IPv4")),
        stored(endpoint_slice("c", "fake", [endpoint("a.example", "c")], family="FQDN")),
    )
    addresses = [one.address for one in after(Listed(slices, "1")).services()[FAKE]]
    assert addresses == ["10.0.0.1:7801", "[fd00::2]:7801"]


@pytest.mark.parametrize(
    ("ports", "address"),
    [
        ([{"name": "", "port": 7}], "10.0.0.1:7"),
        ([{"port": 7}], "10.0.0.1:7"),
        ([{"name": "metrics", "port": 9}, {"name": "grpc", "port": 7}], "10.0.0.1:7"),
        ([{"name": "metrics", "port": 9}, {"name": "web", "port": 7}], None),
        ([{"name": "grpc"}], None),
        ([], None),
        (None, None),
    ],
)
def test_the_port_is_the_only_one_or_that_named_grpc(ports: Any, address: str | None) -> None:
    one = {**endpoint_slice("s", "fake", [endpoint("10.0.0.1", "a")]), "ports": ports}
    found = after(Listed((stored(one),), "1")).services()[FAKE]
    assert [one.address for one in found] == ([address] if address else [])


def test_an_endpoint_without_a_target_is_known_by_its_address() -> None:
    bare = {"addresses": ["10.0.0.9"]}
    table = after(Listed((stored(endpoint_slice("s", "fake", [bare, {"addresses": []}])),), "1"))
    assert table.services()[FAKE] == (Endpoint("10.0.0.9:7801", "10.0.0.9:7801", "10.0.0.9:7801"),)


def test_a_slice_of_no_service_is_passed_over() -> None:
    one = stored(endpoint_slice("s", "", [endpoint("10.0.0.1", "a")]))
    assert after(Listed((one,), "1")).services() == {}


def test_an_event_that_comes_twice_or_late_changes_nothing() -> None:
    new = stored(endpoint_slice("s", "fake", [endpoint("10.0.0.2", "b")]), version=100)
    old = stored(endpoint_slice("s", "fake", [endpoint("10.0.0.1", "a")]), version=99)
    table = after(Changed(new))
    assert table.after(Changed(new)) == table
    assert table.after(Changed(old)) == table
    assert table.after(Deleted(old)) == table


def test_a_slice_that_was_created_again_replaces_the_one_before() -> None:
    """As after a restore of etcd from a backup: its versions are smaller."""
    table = after(
        Changed(stored(endpoint_slice("s", "fake", [endpoint("10.0.0.1", "a")]), version=9000, uid="u1")),
        Changed(stored(endpoint_slice("s", "fake", [endpoint("10.0.0.2", "b")]), version=12, uid="u2")),
    )
    assert taking(table.services()) == ["b"]


def test_the_version_follows_events_and_bookmarks() -> None:
    table = after(Listed((), "5"), Bookmark("8"))
    assert table.version == "8"
    assert table.after(Bookmark("")).version == "8"
    assert table.after(Changed(stored(endpoint_slice("s", "fake", []), version=9))).version == "9"


def test_lines_are_events() -> None:
    def line(kind: str, value: Any) -> bytes:
        return json.dumps({"type": kind, "object": value}).encode()

    one = {**endpoint_slice("s", "fake", []), "unknown": [1]}
    assert isinstance(read_event(line("ADDED", one)), Changed)
    assert isinstance(read_event(line("MODIFIED", one)), Changed)
    assert isinstance(read_event(line("DELETED", one)), Deleted)
    assert read_event(line("BOOKMARK", {"metadata": {"resourceVersion": "7"}})) == Bookmark("7")
    expired = read_event(line("ERROR", {"kind": "Status", "code": 410, "message": "too old"}))
    assert expired == Failed(410, "too old")
    assert read_event(line("LATER", {"what": "ever"})) is None


def test_one_unreadable_slice_does_not_hide_the_others() -> None:
    good = endpoint_slice("s", "fake", [])
    bad = {**good, "endpoints": "many"}
    page = read_page(
        json.dumps({"metadata": {"resourceVersion": "3", "continue": "c"}, "items": [bad, good]}).encode()
    )
    assert (len(page.slices), page.unreadable, page.version, page.next) == (1, 1, "3", "c")
    assert read_page(b'{"metadata": {"resourceVersion": "3"}, "items": null}').slices == ()


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | st.just(b"[" * 100_000))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for read in (read_event, read_page):
        with contextlib.suppress(EventError):
            read(data)


# --- any order of changes

PODS = ("a", "b", "c")
CONDITION = st.sampled_from([True, False, None])
ENDPOINTS = st.lists(st.tuples(st.sampled_from(PODS), CONDITION, CONDITION), max_size=4)
CHANGES = st.lists(st.tuples(st.sampled_from(["s1", "s2", "s3"]), st.sampled_from(["x", "y"]), st.none() | ENDPOINTS))


def slice_of(
    name: str, service: str, endpoints: list[tuple[str, bool | None, bool | None]], version: int
) -> EndpointSlice:
    listed = [
        endpoint(f"10.0.0.{PODS.index(pod)}", pod, ready=ready, terminating=terminating)
        for pod, ready, terminating in endpoints
    ]
    return stored(endpoint_slice(name, service, listed), version)


@given(CHANGES, st.randoms(use_true_random=False))
def test_what_counts_is_the_newest_of_each_slice(changes: list[Any], random: Any) -> None:
    """Events that come twice, and late ones among them, do not change what is there in the end."""
    events: list[Event] = []
    newest: dict[str, EndpointSlice] = {}
    for version, (name, service, endpoints) in enumerate(changes, start=1):
        if endpoints is None:
            if name in newest:
                gone = newest.pop(name)
                events.append(Deleted(msgspec.structs.replace(gone, metadata=_at(gone, version))))
            continue
        newest[name] = slice_of(name, service, endpoints, version)
        events.append(Changed(newest[name]))
    table = SliceTable()
    for event in events:
        table = table.after(event)
        if random.random() < 0.3:
            table = table.after(event)
    assert table.services() == after(Listed(tuple(newest.values()), "1")).services()
    for endpoints_of in table.services().values():
        keys = [one.key for one in endpoints_of]
        assert keys == sorted(set(keys))
        assert all(one.takes_runs == (not one.reason) for one in endpoints_of)


def _at(one: EndpointSlice, version: int) -> Any:
    return msgspec.structs.replace(one.metadata, resource_version=str(version))


# --- the hold-down

A, B = Endpoint("a", "10.0.0.1:1", "a"), Endpoint("b", "10.0.0.2:1", "b")


def test_the_last_endpoints_of_a_service_are_held_for_a_while() -> None:
    held = HeldTable().after({FAKE: (A, B)}, 0.0, 30.0)
    assert held.after({FAKE: (B,)}, 1.0, 30.0).table == {FAKE: (B,)}  # others are left
    gone = held.after({}, 10.0, 30.0)
    assert (gone.table, gone.next_end) == ({FAKE: (A, B)}, 40.0)
    still = gone.after({}, 39.9, 30.0)
    assert still == gone
    assert still.after({}, 40.0, 30.0) == HeldTable()


def test_a_service_without_endpoints_stays_when_they_are_let_go_of() -> None:
    held = HeldTable().after({FAKE: (A,)}, 0.0, 30.0).after({FAKE: ()}, 0.0, 30.0)
    assert held.table == {FAKE: (A,)}
    assert held.after({FAKE: ()}, 30.0, 30.0).table == {FAKE: ()}


def test_a_service_that_comes_back_is_as_it_is_then() -> None:
    held = HeldTable().after({FAKE: (A,)}, 0.0, 30.0).after({}, 1.0, 30.0)
    assert held.after({FAKE: (B,)}, 2.0, 30.0) == HeldTable({FAKE: (B,)})
    again = held.after({FAKE: (B,)}, 2.0, 30.0).after({}, 20.0, 30.0)
    assert again.next_end == 50.0  # the time begins anew


@given(
    st.lists(
        st.tuples(st.floats(0.0, 20.0), st.sampled_from([{}, {FAKE: ()}, {FAKE: (A,)}, {FAKE: (A, B)}])), max_size=12
    )
)
def test_nothing_is_held_beyond_its_time_nor_let_go_before(steps: list[tuple[float, Table]]) -> None:
    held, now = HeldTable(), 0.0
    last: tuple[Endpoint, ...] = ()
    last_seen: float | None = None
    for passed, found in steps:
        now += passed
        held = held.after(found, now, 10.0)
        if found.get(FAKE):
            last_seen, last = None, found[FAKE]
            assert held.table[FAKE] == last
        elif last:
            last_seen = now if last_seen is None else last_seen
            if now < last_seen + 10.0:
                assert held.table[FAKE] == last
            else:
                assert held.table.get(FAKE, ()) == ()
                last = ()
        assert (held.next_end is None) == (not held.until)
