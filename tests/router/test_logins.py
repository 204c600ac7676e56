"""Logins of agents through a router: what reaches the adapter, what is refused, and how one ends with the router."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.protocol.server import Context
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, config, failure, routing
from tests.router.sidecar import Sidecar, serving

PROMPT = pb.LoginResponse(prompt=pb.LoginPrompt(url="https://login.example", user_code="AB-12"))
POLICY = '[environment]\ndeny = ["LD_*"]\n[settings.deny]\none = ["command"]\n'


class Waiting(Sidecar):
    """Shows a page, and waits for a person."""

    def __init__(self) -> None:
        super().__init__("one", aliases=["solo"])
        self.asked: list[str] = []
        self.left = asyncio.Event()

    async def Login(self, request: pb.LoginRequest, context: Context) -> None:  # noqa: N802 - the contract's name
        self.asked.append(request.adapter)
        try:
            await context.write(PROMPT.SerializeToString())
            await asyncio.Event().wait()
        finally:
            self.left.set()


async def test_an_alias_reaches_the_adapter_as_its_type_and_leaving_ends_it(folder: Path) -> None:
    sidecar, address = Waiting(), f"unix:{folder}/one.sock"
    async with serving(sidecar, address), routing(config(folder, addresses=(address,))) as (_router, caller):
        await caller.until("one", router_pb2.ADAPTER_STATE_READY)
        login: Any = caller.adapter.Login(pb.LoginRequest(adapter="solo"))
        assert await login.read() == PROMPT
        login.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await sidecar.left.wait()
    assert sidecar.asked == ["one"]


async def test_a_login_ends_with_the_router(folder: Path) -> None:
    sidecar, address = Waiting(), f"unix:{folder}/one.sock"
    async with serving(sidecar, address), routing(config(folder, addresses=(address,))) as (router, caller):
        await caller.until("one", router_pb2.ADAPTER_STATE_READY)
        login: Any = caller.adapter.Login(pb.LoginRequest(adapter="one"), timeout=PATIENCE_S)
        assert await login.read() == PROMPT
        stopping = asyncio.ensure_future(router.stop(0.0))
        assert (await failure(login.read())).reason is Reason.DRAINING
        await stopping
        async with asyncio.timeout(PATIENCE_S):
            await sidecar.left.wait()


async def test_none_begins_while_the_router_drains(folder: Path) -> None:
    sidecar, address = Waiting(), f"unix:{folder}/one.sock"
    async with serving(sidecar, address), routing(config(folder, addresses=(address,))) as (router, caller):
        await caller.until("one", router_pb2.ADAPTER_STATE_READY)
        lasting = caller.execute("one", "a", {"gate": "g"}, {"end": "SUCCEEDED"})
        await lasting.until("text")
        stopping = asyncio.ensure_future(router.stop(4 * PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            while await caller.execute("one", {"end": "SUCCEEDED"}).rest_or_error() is not Reason.DRAINING:
                pass
        refused = await failure(caller.adapter.Login(pb.LoginRequest(adapter="one")).read())
        assert refused.reason is Reason.DRAINING
        sidecar.open("g")
        await stopping
    assert sidecar.asked == []


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"env": {"LD_PRELOAD": "/lib/x.so"}}, "env.LD_PRELOAD"),
        ({"config": {"command": "other"}}, "config.command"),
    ],
)
async def test_the_policy_applies(folder: Path, fields: dict[str, Any], path: str) -> None:
    (folder / "policy.toml").write_text(POLICY)
    sidecar, address = Waiting(), f"unix:{folder}/one.sock"
    configured = config(folder, addresses=(address,), policy=folder / "policy.toml")
    async with serving(sidecar, address), routing(configured) as (_router, caller):
        await caller.until("one", router_pb2.ADAPTER_STATE_READY)
        refused = await failure(caller.adapter.Login(pb.LoginRequest(adapter="one", **fields)).read())
        assert (refused.reason, [one.path for one in refused.violations]) == (Reason.POLICY_DENIED, [path])
    assert sidecar.asked == []
