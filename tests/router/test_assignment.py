"""Where a run is, as the log stores it: what any release has written is read."""

import pytest
from dragoman.router.model.assignment import (
    Assignment,
    BetweenAttempts,
    Dispatched,
    Unassigned,
    decode_place,
    encode_place,
)
from hypothesis import given
from hypothesis import strategies as st

PLACES: list[tuple[str, Assignment, str]] = [
    ("{}", Unassigned(), ""),
    ('{"router": "unix:/r"}', Unassigned(), "unix:/r"),
    ('{"address": "unix:/a", "instance_id": "i", "router": "unix:/r"}', Dispatched("unix:/a", "i"), "unix:/r"),
    ('{"between": "attempts", "router": "unix:/r"}', BetweenAttempts(), "unix:/r"),
]


@pytest.mark.parametrize(("place", "assignment", "router"), PLACES)
def test_what_is_stored_is_read(place: str, assignment: Assignment, router: str) -> None:
    assert decode_place(place) == (assignment, router)
    if place != "{}":
        assert encode_place(assignment, router) == place


def test_what_an_earlier_release_wrote_is_read() -> None:
    assert decode_place('{"wants": "unix:/a", "router": ""}') == (Unassigned(), "")
    launched = '{"address": "unix:/a", "instance_id": "i", "launched": "here", "router": ""}'
    assert decode_place(launched) == (Dispatched("unix:/a", "i"), "")


TEXTS = st.text(max_size=20)
ASSIGNMENTS = st.one_of(st.just(Unassigned()), st.builds(Dispatched, TEXTS, TEXTS), st.just(BetweenAttempts()))


@given(assignment=ASSIGNMENTS, router=TEXTS)
def test_it_comes_back_as_it_was(assignment: Assignment, router: str) -> None:
    assert decode_place(encode_place(assignment, router)) == (assignment, router)
