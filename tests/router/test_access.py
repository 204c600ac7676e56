"""Who a router answers, and where it sends what it is asked."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.client import Client, execute_request
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.private import make_token
from dragoman.router.adapters.launch_spec import LaunchSpec
from dragoman.router.adapters.launcher import GuardLauncher
from dragoman.router.adapters.starting import GuardStarter, adapter_environment
from dragoman.router.app import Router, RouterConfig
from dragoman.router.cluster.forwarding import ReplicaForwarder
from dragoman.router.model.stored import StoredRun
from dragoman.v1 import router_pb2

from tests.router.harness import config
from tests.strangers import BECOME, CALL

LIST_RUNS = "/dragoman.v1.RouterService/ListRuns"
DETECT = "/dragoman.v1.AdapterService/Detect"


@pytest.fixture(autouse=True)
def user_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the token of this machine's user out of this."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for name in ("XDG_RUNTIME_DIR", "DRAGOMAN_TOKEN", "DRAGOMAN_ROUTER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
async def test_an_agents_tool_can_ask_neither_its_router_nor_its_sidecar(folder: Path) -> None:
    async with (
        Router(config(folder, entry_points=True)) as router,
        Client(router.addresses[0]) as client,
    ):
        await client.describe("process")
        listed = await client.list_adapters()
        sidecar = next(entry.address for entry in listed.adapters if entry.adapter == "process")
        for address, method in ((router.addresses[0], LIST_RUNS), (sidecar, DETECT)):
            assert await _answer_to_agent(client, address, method) == ["PERMISSION_DENIED", "CALLER_REFUSED"]
        env = {"DRAGOMAN_TOKEN": make_token()}
        assert await _answer_to_agent(client, router.addresses[0], LIST_RUNS, env) == ["OK", ""]


async def _answer_to_agent(client: Client, address: str, method: str, env: dict[str, str] | None = None) -> list[str]:
    program = CALL.replace("BECOME", BECOME)
    settings = {"command": sys.executable, "args": ["-c", program, "0", address, method, "[]", "1"]}
    request = execute_request("process", "", cwd="/", config=settings, env=env)
    async with client.execute(request) as run:
        printed = [event.log.text async for event in run if event.WhichOneof("body") == "log"]
    answer: list[str] = json.loads(printed[-1])[0]
    return answer[:2]


@pytest.mark.parametrize("place", ["192.0.2.1:7777", "nonsense"])
async def test_a_row_of_the_log_does_not_choose_where_requests_go(place: str) -> None:
    stored = StoredRun("r", 0.0, "a", router_pb2.GetRunResponse(), "o", 0.0, router=place)
    context: Any = SimpleNamespace(invocation_metadata=lambda: (), time_remaining=lambda: 1.0)
    with pytest.raises(DragomanError) as caught:
        await ReplicaForwarder().answer(stored, "Cancel", b"", context)
    assert caught.value.reason is Reason.ADDRESS_UNTRUSTED


async def test_a_row_of_the_log_names_no_adapter_in_a_directory_of_strangers(folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert await GuardLauncher(GuardStarter(folder, folder, orphan_after_s=1)).adopt(f"unix:{shared}/a.1.s") is None


def test_what_is_advertised_is_on_this_machine() -> None:
    with pytest.raises(AddressError, match="another machine"):
        RouterConfig(advertise="192.0.2.1:7777")
    assert RouterConfig(advertise="127.0.0.1:7777").advertise == "127.0.0.1:7777"


def test_an_adapter_gets_neither_the_token_nor_the_routers_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("DRAGOMAN_ROUTER", "127.0.0.1:1")
    environment = adapter_environment(LaunchSpec(("x",)), Path("/s"))
    assert {"DRAGOMAN_TOKEN", "DRAGOMAN_ROUTER"}.isdisjoint(environment)


async def test_a_router_listens_where_clients_look_for_it(folder: Path) -> None:
    with pytest.raises(DragomanError, match="start one with 'dragoman serve'"):
        await Client().__aenter__()
    async with Router(config(folder, listen=())) as router, Client() as client:
        assert router.addresses == [client.address] == [f"unix:{folder}/state/dragoman/run/router.sock"]
        assert (await client.list_adapters()).router_pid
