"""TLS from a client through a router to an adapter that runs elsewhere."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from dragoman.client import Client, DragomanError, Reason, execute_request
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.limits import channel_options
from dragoman.protocol.private import make_token
from dragoman.protocol.statuses import from_rpc_error
from dragoman.router.app import Router
from dragoman.sdk._serving.server import AdapterServer
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2
from dragoman.v1.adapter_pb2_grpc import AdapterServiceStub
from dragoman.v1.router_pb2_grpc import RouterServiceStub

from tests.certificates import VARIABLES, Authority, Files
from tests.router.harness import Caller, config, kinds
from tests.router.sidecar import Sidecar, serving
from tests.sdk.serving import Scripted


@pytest.mark.parametrize("is_trusted", [True, False], ids=["trusted", "stranger"])
async def test_each_hop_speaks_tls_with_peers_of_the_same_authority(
    is_trusted: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("DRAGOMAN_TOKEN", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    authority = Authority()
    ours, the_adapters = Files(tmp_path / "ours"), Files(tmp_path / "adapter")
    ours.fill(authority)
    the_adapters.fill(authority if is_trusted else Authority(), trusted=[authority])
    with the_adapters.used(monkeypatch):
        adapter = AdapterServer(Scripted(), ["0.0.0.0:0"])
        await adapter.start()
    at = adapter.addresses[0].replace("0.0.0.0", "127.0.0.1")
    try:
        with ours.used(monkeypatch):
            async with (
                Router(config(folder, listen=("127.0.0.1:0",), addresses=(at,), run_log="memory")) as router,
                Client(router.addresses[0]) as client,
            ):
                stream = client.execute(execute_request("scripted", "hello", cwd=str(tmp_path)))
                if is_trusted:
                    assert [event.WhichOneof("body") async for event in stream][-1] == "result"
                else:
                    with pytest.raises(DragomanError) as refused:
                        await anext(stream)
                    assert refused.value.reason is Reason.ADAPTER_NOT_FOUND
    finally:
        await adapter.stop(0.2)


IDENTITIES = """
[[identities]]
uri = "spiffe://test/ci"
scopes = ["run"]
adapters = ["scripted"]

[[identities]]
uri = "spiffe://test/people/*"
scopes = ["read"]

[[identities]]
uri = "spiffe://test/router"
scopes = ["admin"]
"""
LOOPBACK = ("localhost", "127.0.0.1")


class Hops:
    """A router and its adapter on TCP with mutual TLS, each with a trust file of the same table."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        for name in ("DRAGOMAN_TOKEN", *VARIABLES):
            monkeypatch.delenv(name, raising=False)
        self.trust = folder / "trust.toml"
        self.trust.write_text(IDENTITIES)
        monkeypatch.setenv("DRAGOMAN_TRUST", str(self.trust))
        self._folder = folder
        self._patch = monkeypatch
        self.authority = Authority()
        self.router_files, self.adapter_files = Files(folder / "router"), Files(folder / "adapter")
        self.router_files.fill(self.authority, *LOOPBACK, "spiffe://test/router")
        self.adapter_files.fill(self.authority, *LOOPBACK, "spiffe://test/adapter")
        self.adapter = ""

    def caller(self, *names: str, authority: Authority | None = None) -> Files:
        """Return the files of a caller with a certificate of its own."""
        files = Files(self._folder / f"caller-{os.urandom(4).hex()}")
        files.fill(authority or self.authority, "caller", *names, trusted=[self.authority])
        return files

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Yield the router's address."""
        with self.adapter_files.used(self._patch):
            adapter = AdapterServer(Scripted(), ["0.0.0.0:0"])
            await adapter.start()
        self.adapter = adapter.addresses[0].replace("0.0.0.0", "127.0.0.1")
        listen, routed = ("127.0.0.1:0",), (self.adapter,)
        try:
            with self.router_files.used(self._patch):
                router = Router(config(self._folder, listen=listen, addresses=routed, run_log="memory"))
                await router.__aenter__()
            try:
                yield router.addresses[0]
            finally:
                await router.stop(0.0)
        finally:
            await adapter.stop(0.2)

    @contextlib.contextmanager
    def dialed(self, address: str, files: Files, token: str = "") -> Iterator[grpc.aio.Channel]:
        """Yield a channel with a caller's certificate, and no token unless one is given."""
        pool = ("grpc.use_local_subchannel_pool", 1)
        with files.used(self._patch):
            yield open_channel(address, [*channel_options(address), pool], token=token)

    async def status(self, address: str, files: Files, call: str = "ListRuns", token: str = "") -> tuple[str, str]:
        """Make a call; return its status and reason."""
        with self.dialed(address, files, token) as channel:
            adapter, router = AdapterServiceStub(channel), RouterServiceStub(channel)
            request = pb.ExecuteRequest(adapter="scripted", prompt="hello")
            request.workspace.cwd = str(self._folder)
            try:
                match call:
                    case "ListRuns":
                        await router.ListRuns(router_pb2.ListRunsRequest())
                    case "Execute":
                        assert [event async for event in adapter.Execute(request)]
                    case "Detect":
                        await adapter.Detect(pb.DetectRequest())
            except grpc.aio.AioRpcError as error:
                return error.code().name, str(from_rpc_error(error).reason)
            finally:
                await channel.close()
        return "OK", ""


@pytest.fixture
def hops(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Hops:
    return Hops(folder, monkeypatch)


async def test_the_identity_of_a_certificate_is_the_caller(hops: Hops) -> None:
    refused = ("PERMISSION_DENIED", "NOT_PERMITTED")
    ci, other = hops.caller("spiffe://test/ci"), hops.caller("spiffe://test/people/eve")
    async with hops.running() as router:
        assert await hops.status(router, ci, "Execute") == ("OK", "")
        with hops.dialed(router, ci) as channel:
            runs = (await RouterServiceStub(channel).ListRuns(router_pb2.ListRunsRequest())).runs
            await channel.close()
        assert [run.started_by for run in runs] == ["spiffe://test/ci"]
        assert await hops.status(router, other) == ("OK", "")
        assert await hops.status(router, other, "Execute") == refused
        wrong = {
            "another workload": hops.caller("spiffe://test/adapter"),
            "the folder itself": hops.caller("spiffe://test/people"),
            "a longer name": hops.caller("spiffe://test/ci/more"),
            "two identities": hops.caller("spiffe://test/ci", "spiffe://test/people/eve"),
        }
        for what, files in wrong.items():
            assert await hops.status(router, files) == refused, what
            assert await hops.status(router, files, token=make_token()) == refused, f"{what}, with the token"
        nameless = hops.caller()
        assert await hops.status(router, nameless) == ("UNAUTHENTICATED", "TOKEN_REQUIRED")
        assert await hops.status(router, nameless, token=make_token()) == ("OK", "")
        stranger = hops.caller("spiffe://test/ci", authority=Authority())
        assert (await hops.status(router, stranger))[0] == "UNAVAILABLE"
        # An adapter does not know who started a run: it answers the router alone.
        for files in (ci, other, wrong["another workload"]):
            assert await hops.status(hops.adapter, files, "Detect") == refused
        assert await hops.status(hops.adapter, hops.router_files, "Detect") == ("OK", "")


async def test_the_table_of_identities_is_read_again_and_a_broken_one_changes_nothing(hops: Hops) -> None:
    ci = hops.caller("spiffe://test/ci")
    async with hops.running() as router:
        assert await hops.status(router, ci) == ("OK", "")
        with structlog.testing.capture_logs() as logs:
            hops.trust.write_text("[[identities]]\nuri = 'spiffe://test/ci'\n")
            assert await hops.status(router, ci) == ("OK", "")
        assert [line["why"] for line in logs if line["event"] == "trust kept as it was"]
        hops.trust.write_text(IDENTITIES.replace("spiffe://test/ci", "spiffe://test/renamed"))
        assert await hops.status(router, ci) == ("PERMISSION_DENIED", "NOT_PERMITTED")


async def test_certificates_rotated_under_load_fail_no_call(hops: Hops, tmp_path: Path) -> None:
    """Each process gets new certificates while runs and calls pass: of the same authority, and of another one."""
    caller = hops.caller("spiffe://test/ci")
    first, second = hops.authority, Authority()
    calls: asyncio.Queue[object] = asyncio.Queue()
    """How each round of the load went: None, or its error."""
    stopped = asyncio.Event()

    async def load(stub: Any, router: Any) -> None:
        request = pb.ExecuteRequest(adapter="scripted", prompt="hello")
        request.workspace.cwd = str(tmp_path)
        while not stopped.is_set():
            try:
                events = [event async for event in stub.Execute(request)]
                assert events[-1].WhichOneof("body") == "result"
                await router.ListRuns(router_pb2.ListRunsRequest())
                calls.put_nowait(None)
            except grpc.aio.AioRpcError as error:
                calls.put_nowait(error)

    async with hops.running() as address:
        with hops.dialed(address, caller) as channel:
            tasks = [asyncio.ensure_future(load(AdapterServiceStub(channel), RouterServiceStub(channel)))]
            # Both authorities are trusted before one of them is used, and until the other is used no more.
            steps = [(first, [first]), (first, [first, second]), (second, [first, second]), (second, [second])]
            for authority, trusted in [*steps, (second, [second])]:
                for files, names in (
                    (hops.adapter_files, (*LOOPBACK, "spiffe://test/adapter")),
                    (hops.router_files, (*LOOPBACK, "spiffe://test/router")),
                    (caller, ("caller", "spiffe://test/ci")),
                ):
                    files.fill(authority, *names, trusted=trusted)
                    assert [await calls.get() for _ in range(4)] == [None] * 4
            stopped.set()
            await asyncio.gather(*tasks)
            # What was trusted at first is not any more: the load has used the new certificates.
            late = hops.caller("spiffe://test/ci", authority=first)
            assert (await hops.status(address, late))[0] == "UNAVAILABLE"
            await channel.close()


@pytest.mark.parametrize("peer_name", ["routers.example", ""])
async def test_routers_that_share_a_certificate_reach_each_other_by_its_name(
    peer_name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As replicas in a cluster do, whose addresses are in no certificate."""
    monkeypatch.setenv("DRAGOMAN_TOKEN", "0123456789abcdef0123456789abcdef")
    files = Files(tmp_path / "files")
    files.fill(Authority(), "routers.example")
    sidecar, at = Sidecar(), f"unix:{folder}/a.sock"
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serving(sidecar, at))
        callers = []
        with files.used(monkeypatch):
            for name in ("one", "two"):
                listen = ("127.0.0.1:0", f"unix:{folder}/{name}.sock")
                router = await stack.enter_async_context(
                    Router(config(folder, listen=listen, addresses=(at,), peer_name=peer_name))
                )
                callers.append(Caller(router.addresses[1]))
                stack.push_async_callback(callers[-1].close)
        live = callers[0].execute("fake", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="live")
        await live.until("started")
        with files.used(monkeypatch):
            elsewhere = callers[1].attach("live")
            if peer_name:
                await elsewhere.until("started")
                sidecar.open("g")
                assert kinds(await elsewhere.rest())[-1] == "result"
            else:
                assert (await elsewhere.error()).reason is Reason.ADAPTER_UNAVAILABLE
                sidecar.open("g")
        assert kinds(await live.rest())[-1] == "result"
