"""Login: the steps of a login of the agent, and its end with the call."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from dragoman.protocol.errors import Reason, invalid
from dragoman.sdk import AdapterInfo, capabilities
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.sdk.serving import Scripted, refusal, serving

KEY = {"API_KEY": "a1b2-c3d4-e5f6-g7h8"}


class Entering(Scripted):
    """Asks for a login, and waits until it is left."""

    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()

    def describe(self) -> AdapterInfo:
        return replace(self.info, capabilities=capabilities(pb.FEATURE_PROMPT, pb.FEATURE_LOGIN))

    async def log_in(self, request: api.LoginRequest) -> AsyncGenerator[api.LoginResponse, None]:
        if request.method:
            raise invalid("method", "is not known")
        try:
            yield api.LoginResponse(prompt=api.LoginPrompt(url="https://login.example"))
            keys = [*request.env.values(), *request.config.get_or_create_struct("env").values()]
            if keys:
                failure = pb.Failure(kind=pb.FAILURE_KIND_AUTH_REQUIRED, message=f"no {keys[0]}")
                yield api.LoginResponse(outcome=api.LoginOutcome(failure=failure))
            await asyncio.Event().wait()
        finally:
            self.left.set()


@pytest.mark.parametrize("where", [{"env": KEY}, {"config": {"env": KEY}}], ids=["env", "config"])
async def test_a_login(where: dict[str, Any]) -> None:
    async with serving(Entering()) as sidecar:
        request = api.LoginRequest(**where)
        prompt, ended = [event async for event in sidecar.stub.Login(request)]
    assert prompt.prompt.url == "https://login.example"
    assert ended.outcome.failure.message == "no [redacted]"


async def test_a_login_that_is_left_or_wrong() -> None:
    adapter = Entering()
    async with serving(adapter) as sidecar:
        call: Any = sidecar.stub.Login(api.LoginRequest())
        assert (await call.read()).HasField("prompt")
        call.cancel()
        await adapter.left.wait()
        error = await refusal(sidecar.stub.Login(api.LoginRequest(method="x")).read())
        assert [violation.path for violation in error.violations] == ["method"]


async def test_a_drain_ends_a_login() -> None:
    adapter = Entering()
    async with serving(adapter) as sidecar:
        call: Any = sidecar.stub.Login(api.LoginRequest())
        assert (await call.read()).HasField("prompt")
        stopping = asyncio.create_task(sidecar.server.stop(0))
        assert (await refusal(call.read())).reason is Reason.DRAINING
        await stopping
    assert adapter.left.is_set()


async def test_a_login_that_is_not_declared() -> None:
    async with serving(Scripted()) as sidecar:
        error = await refusal(sidecar.stub.Login(api.LoginRequest()).read())
        assert error.reason is Reason.NOT_IMPLEMENTED
