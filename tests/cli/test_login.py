"""Logging an agent in at the command line."""

import json
from typing import Any

from dragoman.testkit import FakeAdapter
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tests.cli.program import dragoman, routed

PROMPT = api.LoginPrompt(url="https://login.example/device", user_code="AB-12", expires_at=Timestamp(seconds=60))


class Entering(FakeAdapter):
    """Sends these steps of a login."""

    def __init__(self, *events: api.LoginResponse) -> None:
        super().__init__()
        self._events = events

    async def handle(self, name: str, request: Any, context: Any) -> Message | None:
        if name != "Login":
            return await super().handle(name, request, context)
        self.calls.append((name, request))
        for event in self._events:
            await context.write(event)
        return None


async def test_what_to_open_and_how_it_ended() -> None:
    fake = Entering(api.LoginResponse(prompt=PROMPT), api.LoginResponse(outcome=api.LoginOutcome()))
    async with routed(fake) as env:
        done = await dragoman("login", "fake", "--method", "device_code", env=env)
        shown = await dragoman("login", "fake", "--json", env=env)
    expected = "open https://login.example/device, until 00:01:00 UTC\ncode: AB-12\nlogged in\n"
    assert (done.code, done.out, done.err) == (0, expected, "")
    assert [request.method for request in fake.requests("Login")] == ["device_code", ""]
    assert [list(json.loads(line)) for line in shown.out.splitlines()] == [["prompt"], ["outcome"]]


async def test_why_it_failed() -> None:
    failure = pb.Failure(kind=pb.FAILURE_KIND_AUTH_REQUIRED, message="Not entered in time.")
    async with routed(Entering(api.LoginResponse(outcome=api.LoginOutcome(failure=failure)))) as env:
        done = await dragoman("login", "fake", env=env)
    assert (done.code, done.out) == (1, "Not entered in time.\n")


async def test_what_it_does_not_know_is_no_outcome() -> None:
    later = api.LoginResponse.FromString(b"\xfa\x01\x00")  # field 31, of a later contract
    async with routed(Entering(later, api.LoginResponse(outcome=api.LoginOutcome()), later)) as env:
        done = await dragoman("login", "fake", env=env)
    assert (done.code, done.out) == (0, "logged in\n")
    async with routed(Entering(api.LoginResponse(prompt=api.LoginPrompt(url="https://l.example")), later)) as env:
        ended = await dragoman("login", "fake", env=env)
    assert (ended.code, ended.out) == (1, "open https://l.example\n")
    assert ended.err.startswith("error: the login ended without an outcome\n")
