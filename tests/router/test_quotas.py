"""Quotas of callers: live runs, open streams, and bytes in a time."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.quotas import Quota, Quotas
from dragoman.router.policy.operator_policy import PolicyError, parse_policy
from dragoman.router.policy.quotas import Accounts
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.router.harness import failure
from tests.router.test_scopes import HELD, holders, user_of_its_own

__all__ = ["user_of_its_own"]

EXCEEDED = Reason.QUOTA_EXCEEDED


def refusal(accounts: Accounts, name: str, quota: Quota, now: float, size: int = 1, *, stream: bool = False) -> Any:
    """Begin a call; return its refusal, or None."""
    try:
        accounts.begin(name, quota, now, size, is_stream=stream)
    except DragomanError as error:
        return error
    return None


def test_bytes_come_back_with_time() -> None:
    accounts, quota = Accounts(), Quota(bytes=100, window_s=10)
    assert refusal(accounts, "a", quota, 0.0, 60) is None
    assert refusal(accounts, "a", quota, 0.0, 60) is None  # the last one may go beyond it
    refused = refusal(accounts, "a", quota, 0.0)
    assert (refused.reason, refused.code) == (EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert refused.retry_after_s == 2.0
    assert refused.metadata == {"caller": "a", "quota": "bytes"}
    assert refusal(accounts, "b", quota, 0.0, 60) is None, "another caller has its own"
    assert refusal(accounts, "a", quota, 1.9) is not None
    assert refusal(accounts, "a", quota, 2.1) is None
    accounts.add("a", 1000)
    assert refusal(accounts, "a", quota, 50.0) is not None
    assert refusal(accounts, "a", quota, 110.0) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40), st.integers(0, 4))
def test_no_caller_has_more_streams_than_it_may(calls: list[tuple[str, bool]], most: int) -> None:
    accounts, quota, held = Accounts(), Quota(streams=most), {"a": 0, "b": 0}
    for name, begins in calls:
        if begins:
            is_refused = refusal(accounts, name, quota, 0.0, stream=True) is not None
            assert is_refused == (held[name] >= most)
            held[name] += not is_refused
        elif held[name]:
            accounts.end(name)
            held[name] -= 1


def test_who_may_do_everything_has_no_default() -> None:
    default, own = Quota(runs=1), Quota(runs=2)
    quotas = Quotas(default, {"uid 0": own})
    assert quotas.of("token a", is_admin=False) is default
    assert quotas.of("token", is_admin=True) is None
    assert quotas.of("uid 0", is_admin=True) is own


def test_a_policy_has_quotas_and_says_what_is_wrong_with_them() -> None:
    text = b'[quotas.default]\nruns = 2\nstreams = 3\n[quotas.callers."token ci"]\nbytes = 10\nwindow_s = 5\n'
    assert parse_policy(text).quotas == Quotas(Quota(runs=2, streams=3), {"token ci": Quota(bytes=10, window_s=5)})
    for wrong in (b"[quotas.default]\nrun = 1", b"[quotas.default]\nruns = -1", b"[quotas.default]\nwindow_s = 0"):
        with pytest.raises(PolicyError, match=r"quotas\.default"):
            parse_policy(wrong)


async def test_a_router_refuses_what_is_beyond_the_quota_of_a_caller(folder: Path) -> None:
    policy = folder / "policy.toml"
    policy.write_text("[quotas.default]\nruns = 2\nstreams = 3\n")
    async with holders(folder, policy=policy, a="run", b="run", root="admin") as at:
        runs = [at["a"].execute("fake", {"ask": "q"}, run_id=f"r{n}", orphan_after=HELD) for n in range(2)]
        for run in runs:
            await run.until("input_request")
        refused = await at["a"].execute("fake", run_id="r2", orphan_after=HELD).error()
        assert (refused.reason, refused.metadata["quota"]) == (EXCEEDED, "runs")
        assert refused.retry_after_s is not None
        assert await at["a"].execute("fake", {"ask": "q"}, run_id="r0", orphan_after=HELD).until("input_request")
        # What was refused has left nothing; another caller is not concerned.
        missing = await failure(at["root"].router.GetRun(router_pb2.GetRunRequest(run_id="r2")))
        assert missing.reason is Reason.RUN_NOT_FOUND
        other = at["b"].execute("fake", {"ask": "q"}, run_id="b0", orphan_after=HELD)
        await other.until("input_request")
        # Streams: two of the runs, and the one that joined; a list that is watched is a stream, too.
        for stream in (at["a"].attach("r0"), at["a"].execute("fake", {"ask": "q"}, run_id="r1", orphan_after=HELD)):
            refused = await stream.error()
            assert (refused.reason, refused.metadata["quota"]) == (EXCEEDED, "streams")
        watch = at["a"].router.WatchAdapters(router_pb2.WatchAdaptersRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await watch.read()
        assert await at["a"].router.ListRuns(router_pb2.ListRunsRequest())
        for _ in range(6):
            assert await at["root"].attach("r0").until("input_request")
        await at["a"].adapter.Cancel(pb.CancelRequest(run_id="r0"))
        await runs[0].rest()
        policy.write_text("[quotas.default]\nruns = 2\n")  # read again at the next call
        again = at["a"].execute("fake", {"ask": "q"}, run_id="r3", orphan_after=HELD)
        await again.until("input_request")


async def test_bytes_of_requests_and_of_streams_count(folder: Path) -> None:
    policy = folder / "policy.toml"
    policy.write_text('[quotas.callers."token a"]\nbytes = 50000\nwindow_s = 3600\n')
    async with holders(folder, policy=policy, a="run", b="run") as at:
        events = await at["a"].execute("fake", {"flood": [30, 2000]}, {"end": "SUCCEEDED"}, run_id="r").rest()
        assert events[-1].HasField("result"), "a stream that is open continues"
        for call in (at["a"].attach("r").error(), failure(at["a"].router.ListRuns(router_pb2.ListRunsRequest()))):
            refused = await call
            assert (refused.reason, refused.metadata) == (EXCEEDED, {"caller": "token a", "quota": "bytes"})
            assert 1 <= (refused.retry_after_s or 0) < 3600
        await at["b"].execute("fake", os.urandom(30_000).hex(), {"end": "SUCCEEDED"}).rest()
        await at["b"].execute("fake", os.urandom(30_000).hex(), {"end": "SUCCEEDED"}).rest()
        with contextlib.suppress(DragomanError):
            await at["a"].execute("fake").rest()


def test_what_the_documentation_shows_is_valid() -> None:
    text = (Path(__file__).parents[2] / "docs/guides/policy.md").read_text(encoding="utf-8")
    (shown,) = (block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[quotas" in block)
    quotas = parse_policy(shown.encode()).quotas
    assert quotas.default == Quota(runs=4, streams=16, bytes=100_000_000, window_s=60)
    assert quotas.callers == {"token ci": Quota(runs=20)}
