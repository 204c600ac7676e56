"""What the router makes of detections, without an adapter: logins that work again, and what it may cache how long."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from dragoman.router.adapters.detection import BAD_TTL_S, CachedDetection, FileMark, is_cacheable
from dragoman.router.api.detection import AgentDetector
from dragoman.v1 import adapter_pb2 as pb

OK, MISSING, EXPIRED = pb.AUTH_STATE_OK, pb.AUTH_STATE_MISSING, pb.AUTH_STATE_EXPIRED
MARK = FileMark(mtime_ns=1, size=2)


def detection(auth: Any = OK, *, problems: bool = False) -> pb.Detection:
    found = pb.Detection(adapter="fake", available=True, auth=auth)
    if problems:
        found.problems.add(code="version_timeout")
    return found


class Backend:
    """An adapter that finds one thing after another."""

    def __init__(self, *found: pb.Detection) -> None:
        self.record = SimpleNamespace(type="fake", spec=SimpleNamespace(reference=""))
        self._found = iter(found)

    async def use(self) -> Any:
        async def answer(*_args: Any, **_options: Any) -> bytes:
            return pb.DetectResponse(detections=[next(self._found)]).SerializeToString()

        return nullcontext(SimpleNamespace(channel=SimpleNamespace(answer=answer)))


def detector(stored: dict[str, CachedDetection] | None = None) -> tuple[AgentDetector, Mock]:
    admission = Mock()
    clock = SimpleNamespace(time=lambda: 1000.0)
    context = SimpleNamespace(clock=clock, timing=SimpleNamespace(detect_s=1.0, detect_ttl_s=600.0))
    store = Mock(load=lambda: stored or {}, mark=lambda _: MARK, environment=lambda _: "env", logins=lambda: "a")
    anything: Any = AgentDetector
    return anything(None, admission, context, store, "1"), admission


@pytest.mark.parametrize(
    ("found", "fields", "restored"),
    [
        ([detection()], {}, 0),  # it may have worked all the time
        ([detection()], {"refresh": True}, 1),
        ([detection(), detection()], {"refresh": True}, 1),
        ([detection(MISSING), detection()], {"refresh": True}, 1),
        ([detection(EXPIRED), detection(EXPIRED), detection()], {"refresh": True}, 1),
        ([detection(MISSING), detection(), detection(MISSING), detection()], {"refresh": True}, 2),
        ([detection(MISSING)], {"refresh": True}, 0),
        ([detection(problems=True)], {"refresh": True}, 0),
        ([detection(MISSING), detection(problems=True)], {"refresh": True}, 0),
        ([detection(), detection(MISSING, problems=True), detection()], {"refresh": True}, 1),
        ([detection(MISSING), detection()], {"refresh": True, "env": {"A": "b"}}, 0),  # of another environment
    ],
)
async def test_when_a_login_works_again(found: list[pb.Detection], fields: dict[str, Any], restored: int) -> None:
    tested, admission = detector()
    backend: Any = Backend(*found)
    for _ in found:
        request = pb.DetectRequest(adapter="fake", **fields)
        await tested.one(backend, request, request.SerializeToString(), 1.0)
    assert admission.login_restored.call_count == restored
    if restored:
        admission.login_restored.assert_called_with("fake", 1000.0)


async def test_a_stored_detection_is_what_was_found_before() -> None:
    stored = CachedDetection(0.0, "1 a", MARK, detection(MISSING).SerializeToString(), "old")
    tested, admission = detector({"fake": stored})
    backend: Any = Backend(detection())
    request = pb.DetectRequest(adapter="fake")
    await tested.one(backend, request, request.SerializeToString(), 1.0)
    assert admission.login_restored.call_count == 1


@pytest.mark.parametrize(("variables", "cached"), [("a", True), ("b", False)])
async def test_what_was_found_with_other_variables_does_not_count(variables: str, cached: bool) -> None:
    stored = CachedDetection(999.0, f"1 {variables}", None, detection().SerializeToString())
    tested, _ = detector({"fake": stored})
    backend: Any = Backend(detection(MISSING))
    request = pb.DetectRequest(adapter="fake")
    answer = await tested.one(backend, request, request.SerializeToString(), 1.0)
    (found,) = pb.DetectResponse.FromString(answer).detections
    assert (found.cached, found.auth) == (cached, OK if cached else MISSING)


@pytest.mark.parametrize(
    ("age_s", "config_mark", "cached"),
    [(599.0, MARK, True), (59.0, FileMark(0, 2), True), (60.0, FileMark(0, 2), False), (60.0, None, False)],
)
async def test_a_login_that_ended_elsewhere_is_found_a_minute_later(
    age_s: float, config_mark: FileMark | None, cached: bool
) -> None:
    known = detection()
    known.config_dir = "/home/u/.fake"
    data = known.SerializeToString()
    tested, _ = detector({"fake": CachedDetection(1000.0 - age_s, "1 a", None, data, config_mark=config_mark)})
    backend: Any = Backend(detection(MISSING))
    request = pb.DetectRequest(adapter="fake")
    answer = await tested.one(backend, request, request.SerializeToString(), 1.0)
    (found,) = pb.DetectResponse.FromString(answer).detections
    assert (found.cached, found.auth) == (cached, OK if cached else MISSING)
    if cached:
        assert found.detected_at.ToNanoseconds() == (1000 - age_s) * 1e9


async def test_what_is_found_is_kept_with_the_mark_of_its_config_directory() -> None:
    known = detection()
    known.config_dir = "/home/u/.fake"
    tested, _ = detector()
    backend: Any = Backend(known)
    request = pb.DetectRequest(adapter="fake")
    await tested.one(backend, request, request.SerializeToString(), 1.0)
    answer = await tested.one(backend, request, request.SerializeToString(), 1.0)  # that of the cache
    (found,) = pb.DetectResponse.FromString(answer).detections
    assert found.cached
    assert tested._cached["fake"].config_mark == MARK


@pytest.mark.parametrize(("age", "ready"), [(0.0, 1), (599.9, 1), (600.0, 0), (-0.1, 0)])
def test_what_is_ready_is_young(age: float, ready: int) -> None:
    found = detection().SerializeToString()
    tested, _ = detector({"fake": CachedDetection(1000.0 - age, "1 a", MARK, found)})
    assert len(tested.ready()) == ready


def test_what_was_ready_with_other_variables_may_not_be_now() -> None:
    tested, _ = detector({"fake": CachedDetection(999.0, "1 b", MARK, detection().SerializeToString())})
    assert tested.ready() == []


@pytest.mark.parametrize(
    ("fields", "fresh"),
    [
        ({}, True),
        ({"now": 599.9}, True),
        ({"now": 600.0}, False),
        ({"now": -0.1}, False),
        ({"router_version": "2"}, False),
        ({"mark": None}, False),
        ({"mark": FileMark(1, 3)}, False),
        ({"environment": "other"}, True),  # only one that is not good depends on it
    ],
)
def test_a_good_one_is_fresh(fields: dict[str, Any], fresh: bool) -> None:
    usual = {"now": 10.0, "ttl_s": 600.0, "router_version": "1", "mark": MARK, "environment": ""}
    assert CachedDetection(0.0, "1", MARK, b"").is_fresh(**{**usual, **fields}) is fresh


@pytest.mark.parametrize(
    ("now", "ttl_s", "environment", "fresh"),
    [(BAD_TTL_S - 0.1, 600, "e", True), (BAD_TTL_S, 600, "e", False), (5, 600, "f", False), (5, 5, "e", False)],
)
def test_a_bad_one_is_fresh_for_a_minute(now: float, ttl_s: float, environment: str, fresh: bool) -> None:
    assert CachedDetection(0.0, "1", MARK, b"", "e").is_fresh(now, ttl_s, "1", MARK, environment) is fresh


@pytest.mark.parametrize(
    ("fields", "mark", "cacheable"),
    [
        ({}, MARK, True),
        ({"auth": pb.AUTH_STATE_UNKNOWN}, MARK, True),
        ({"auth": pb.AUTH_STATE_NOT_NEEDED}, MARK, True),
        ({"auth": MISSING}, MARK, False),
        ({"auth": EXPIRED}, MARK, False),
        ({"available": False}, MARK, False),
        ({"problems": [pb.DetectionProblem(code="c")]}, MARK, False),
        ({}, None, False),
        ({"confidence": pb.DETECTION_CONFIDENCE_NOT_APPLICABLE}, None, True),
        ({"confidence": pb.DETECTION_CONFIDENCE_NOT_APPLICABLE, "executable": "/x"}, None, False),
    ],
)
def test_what_is_good(fields: dict[str, Any], mark: FileMark | None, cacheable: bool) -> None:
    assert is_cacheable(pb.Detection(**{"available": True, "auth": OK, **fields}), mark) is cacheable
