"""When a session is resumed, when not and why, and what is kept afterwards."""

from pathlib import Path

import pytest
from dragoman.protocol.sessions import read_handle
from dragoman.sdk._request.sessions import NEW, is_uuid, make_handle, plan_session, session_update
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

NEW_ONE, RESUME = pb.SESSION_DISPOSITION_NEW, pb.SESSION_DISPOSITION_RESUME
REFUSED, FORK = pb.SESSION_DISPOSITION_RESUME_REFUSED, pb.SESSION_DISPOSITION_FORK


def handle(
    native_id: str = "id-1", *, adapter: str = "agent", cwd: str = "/w", **params: str | float
) -> pb.SessionHandle:
    session_handle = pb.SessionHandle(adapter=adapter, native_id=native_id, cwd=cwd)
    if params:
        session_handle.params.update(params)
    return session_handle


def plan(session: api.SessionSelector | None, cwd: str = "/w") -> tuple[int, str, str]:
    request = api.ExecuteRequest(session=session)
    planned = plan_session(
        request, adapter="agent", aliases=("agent_local",), cwd=cwd, is_session_id=lambda text: text.startswith("id-")
    )
    return planned.disposition, planned.native_id, planned.reason


def by(one: pb.SessionHandle, *, fork: bool = False) -> api.SessionSelector:
    return api.SessionSelector(handle=one, fork=fork)


def test_without_a_session_it_is_new() -> None:
    assert plan(None) == (NEW_ONE, "", "")
    assert plan(api.SessionSelector()) == (NEW_ONE, "", "")
    assert plan(api.SessionSelector(fresh=True)) == (NEW_ONE, "", "")
    assert not NEW.resumes


def test_why_a_router_begins_a_new_one_is_reported() -> None:
    selector = api.SessionSelector(fresh=True, reason="it has had 200 runs", handover="before: …")
    assert plan(selector) == (REFUSED, "", "it has had 200 runs")
    assert plan(api.SessionSelector(reason="of nothing")) == (NEW_ONE, "", "")


@pytest.mark.parametrize(
    "one",
    [
        handle(),
        handle(adapter="agent_local"),
        handle(adapter=""),
        handle(cwd=""),
        handle("", adapter="", cwd="", sessionId="id-1", cwd_="x"),
        handle("", adapter="", cwd="", session_id="id-1"),
        handle("id-1", sessionId="id-2"),
    ],
)
def test_what_matches_is_resumed(one: pb.SessionHandle) -> None:
    assert plan(by(one)) == (RESUME, "id-1", "")
    assert plan(by(one, fork=True)) == (FORK, "id-1", "")


def test_paperclips_session_params_are_enough() -> None:
    one = pb.SessionHandle()
    one.params.update({"sessionId": "id-1", "cwd": "/w"})
    assert read_handle(one) == ("id-1", "/w")
    assert plan(by(one)) == (RESUME, "id-1", "")
    assert plan(by(one), cwd="/other")[0] == REFUSED


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (handle(adapter="other"), "other"),
        (handle(cwd="/elsewhere"), "/elsewhere"),
        (handle("", sessionId=5.0), "no session"),
        (handle(""), "no session"),
        (handle("--dangerous"), "shape"),
        (handle("", sessionId="nonsense"), "shape"),
        (handle(cwd="/w/../x"), "/w/../x"),
        (handle(cwd="/w\0"), "belongs"),
    ],
)
def test_a_mismatch_is_reported(one: pb.SessionHandle, word: str) -> None:
    for fork in (False, True):
        disposition, native_id, reason = plan(by(one, fork=fork))
        assert (disposition, native_id) == (REFUSED, "")
        assert word in reason


def test_an_id_of_another_shape_is_named_as_the_reason() -> None:
    reason = "the session's id does not have the shape of this agent's ids"
    assert plan(by(handle("--dangerous"))) == (REFUSED, "", reason)


def test_a_cwd_is_the_same_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    one = handle(cwd=str(tmp_path / "link"))
    assert plan(by(one), cwd=str(tmp_path / "real"))[0] == RESUME


def test_params_with_a_number_that_json_lacks() -> None:
    one = handle("")
    one.params.fields["sessionId"].number_value = float("nan")
    assert plan(by(one))[0] == REFUSED


def test_a_handle_says_everything_twice_and_comes_back() -> None:
    session_handle = make_handle(
        adapter="agent", version="1.2", native_id="id-1", display_id="one", cwd="/w", params={"extra": "x"}
    )
    assert dict(session_handle.params) == {"sessionId": "id-1", "cwd": "/w", "extra": "x"}
    assert (session_handle.adapter, session_handle.adapter_version, session_handle.display_id) == (
        "agent",
        "1.2",
        "one",
    )
    parsed = pb.SessionHandle.FromString(session_handle.SerializeToString())
    assert plan(by(parsed)) == (RESUME, "id-1", "")
    only_params = pb.SessionHandle(params=session_handle.params)
    assert plan(by(only_params)) == (RESUME, "id-1", "")


S, F, C, T = pb.OUTCOME_SUCCEEDED, pb.OUTCOME_FAILED, pb.OUTCOME_CANCELLED, pb.OUTCOME_TIMED_OUT
SET, CLEAR = pb.SESSION_CHANGE_SET, pb.SESSION_CHANGE_CLEAR


@pytest.mark.parametrize(
    ("outcome", "lost", "has_handle", "change"),
    [
        (S, False, True, SET),
        (S, True, True, SET),
        (C, False, True, SET),
        (C, True, True, SET),
        (F, False, True, None),
        (T, False, True, None),
        (F, True, True, CLEAR),
        (T, True, False, CLEAR),
        (S, True, False, CLEAR),
        (S, False, False, None),
        (F, False, False, None),
    ],
)
def test_what_is_kept(outcome: pb.Outcome.ValueType, lost: bool, has_handle: bool, change: int | None) -> None:
    update = session_update(outcome, lost=lost, handle=handle() if has_handle else None)
    assert (update.change if update is not None else None) == change
    if update is not None:
        assert update.HasField("handle") == (change == SET)


@pytest.mark.parametrize(
    ("text", "is_one", "is_one_in_lower_case"),
    [
        ("0199f3a0-35dd-7551-b064-600a91c73bf6", True, True),
        ("0199F3A0-35dd-7551-b064-600a91c73bf6", True, False),
        ("11111111-1111-4111-8111-111111111111", True, True),
        ("11111111-1111-4111-8111-11111111111", False, False),
        ("11111111-1111-4111-8111-111111111111\n", False, False),
        (" 11111111-1111-4111-8111-111111111111", False, False),
        ("{11111111-1111-4111-8111-111111111111}", False, False),
        ("11111111111141118111111111111111", False, False),
        ("\u0661" * 8 + "-1111-4111-8111-111111111111", False, False),
        ("g1111111-1111-4111-8111-111111111111", False, False),
        ("", False, False),
    ],
)
def test_what_is_a_uuid(text: str, is_one: bool, is_one_in_lower_case: bool) -> None:
    assert is_uuid(text) is is_one
    assert is_uuid(text, lower_case=True) is is_one_in_lower_case
