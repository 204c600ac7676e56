"""How much of an account's rate limits is used, at the command line."""

import json

from dragoman.testkit import FakeAdapter
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from tests.cli.program import dragoman, routed

WINDOWS = [
    pb.RateLimit(window="five_hour", used_percent=42, resets_at=Timestamp(seconds=1_893_456_000)),
    pb.RateLimit(window="weekly", status="allowed"),
]


async def test_a_line_for_each_window() -> None:
    async with routed(FakeAdapter(answers={"GetQuota": api.GetQuotaResponse(windows=WINDOWS)})) as env:
        done = await dragoman("quota", "codex", env=env)
        assert (done.code, done.err) == (0, "")
        lines = [" ".join(line.split()) for line in done.out.splitlines()]
        assert lines == ["five_hour 42 % 2030-01-01 00:00", "weekly allowed"]
        shown = json.loads((await dragoman("quota", "codex", "--json", env=env)).out)
    assert [window["window"] for window in shown["windows"]] == ["five_hour", "weekly"]


async def test_why_there_is_none() -> None:
    failure = pb.Failure(kind=pb.FAILURE_KIND_AUTH_REQUIRED, message="Log in.")
    async with routed(FakeAdapter(answers={"GetQuota": api.GetQuotaResponse(failure=failure)})) as env:
        done = await dragoman("quota", "codex", env=env)
    assert (done.code, done.out) == (1, "Log in.\n")
