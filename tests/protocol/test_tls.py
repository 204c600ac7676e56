"""TLS on TCP: who is answered, what is refused, and certificates that are replaced while servers and calls live."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from dragoman.protocol.addresses import AddressError, check_listen, check_local, parse_address
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import channel_options
from dragoman.protocol.server import Context, DragomanServer, service_handler
from dragoman.protocol.tls import TlsFiles
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.certificates import VARIABLES, Authority, Files

SERVICE = pb.DESCRIPTOR.services_by_name["AdapterService"]


class Service:
    """Answers Detect."""

    async def Detect(self, _request: pb.DetectRequest, _context: Context) -> pb.DetectResponse:  # noqa: N802
        return pb.DetectResponse()

    async def drain(self, grace_s: float) -> None:
        """Nothing is to be ended."""


@pytest.fixture(autouse=True)
def _user_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("DRAGOMAN_TOKEN", *VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server_files(tmp_path: Path) -> Files:
    return Files(tmp_path / "server")


@pytest.fixture
def client_files(tmp_path: Path) -> Files:
    return Files(tmp_path / "client")


@contextlib.asynccontextmanager
async def serving(listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    service = Service()
    server = DragomanServer({SERVICE: service_handler(SERVICE, service)}, [listen])
    await server.start()
    await server.set_serving()
    try:
        yield server.addresses[0].replace("0.0.0.0", "127.0.0.1")
    finally:
        await server.stop([service], 1)


@contextlib.asynccontextmanager
async def serving_with(
    files: Files, monkeypatch: pytest.MonkeyPatch, listen: str = "127.0.0.1:0", *, count: int = 3
) -> AsyncIterator[str]:
    """Serve with the first ``count`` of the files, which nothing else in the block uses; yield the address."""
    async with contextlib.AsyncExitStack() as stack:
        with files.used(monkeypatch, count=count):
            address = await stack.enter_async_context(serving(listen))
        yield address


def dial(address: str) -> grpc.aio.Channel:
    return open_channel(address, [*channel_options(address), ("grpc.use_local_subchannel_pool", 1)])


async def detect(channel: grpc.aio.Channel) -> str:
    """Make a call; return its status."""
    try:
        await adapter_pb2_grpc.AdapterServiceStub(channel).Detect(pb.DetectRequest())
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def detect_once(address: str) -> str:
    """Make a call on a new connection; return its status."""
    async with dial(address) as channel:
        return await detect(channel)


async def test_mutual_tls_answers_who_has_a_certificate_and_the_token(
    server_files: Files, client_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, stranger = Authority(), Authority()
    server_files.fill(authority)
    client_files.fill(authority, "client")
    async with serving_with(server_files, monkeypatch, "0.0.0.0:0") as address:
        with client_files.used(monkeypatch):
            assert await detect_once(address) == "OK"
            async with open_channel(address, channel_options(address), token="not-the-token") as channel:
                assert await detect(channel) == "UNAUTHENTICATED"
        with client_files.used(monkeypatch, only_ca=True):
            assert await detect_once(address) == "UNAVAILABLE", "without a certificate"
        client_files.fill(stranger, "client", trusted=[authority])
        with client_files.used(monkeypatch):
            assert await detect_once(address) == "UNAVAILABLE", "with a certificate of another authority"
        assert await detect_once(address) == "UNAVAILABLE", "in the clear"


async def test_a_server_with_a_certificate_alone_asks_its_clients_for_none(
    server_files: Files, client_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    server_files.fill(authority)
    client_files.fill(authority, "client")
    async with serving_with(server_files, monkeypatch, count=2) as address:
        with client_files.used(monkeypatch, only_ca=True):
            assert await detect_once(address) == "OK"


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_a_client_sends_nothing_to_a_server_that_is_not_who_it_should_be(
    wrong: str, server_files: Files, client_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    if wrong == "authority":
        server_files.fill(Authority(), trusted=[authority])
    else:
        server_files.fill(authority, "elsewhere.example")
    client_files.fill(authority, "client")
    async with serving_with(server_files, monkeypatch) as address:
        with client_files.used(monkeypatch):
            assert await detect_once(address) == "UNAVAILABLE"


async def test_a_server_takes_up_new_certificates_and_keeps_the_connections_it_has(
    server_files: Files, client_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Authority(), Authority()
    server_files.fill(old)
    client_files.fill(old, "client")
    async with serving_with(server_files, monkeypatch) as address:
        with client_files.used(monkeypatch):
            async with dial(address) as channel:
                stub: Any = health_pb2_grpc.HealthStub(channel)
                watch = stub.Watch(health_pb2.HealthCheckRequest())
                assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
                server_files.paths[0].write_text("half of a certificate")
                with structlog.testing.capture_logs() as logs:
                    assert await detect_once(address) == "OK", "what cannot be used changes nothing"
                assert "certificate not reloaded; the last one stays" in {line["event"] for line in logs}
                server_files.fill(new)
                assert await detect_once(address) == "UNAVAILABLE", "the client trusts the old authority"
                client_files.fill(new, "client")
                assert await detect_once(address) == "OK"
                assert await detect(channel) == "OK", "on the connection from before"
                assert not watch.done()
                watch.cancel()


def test_unusable_files_are_named_before_anything_listens(
    server_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> None:
        DragomanServer({}, ["127.0.0.1:0"])

    server_files.fill(Authority())
    with server_files.used(monkeypatch, count=1), pytest.raises(AddressError, match="set both or neither"):
        start()
    with server_files.used(monkeypatch):
        server_files.paths[1].write_text("secret text")
        with pytest.raises(AddressError, match=r"key\.pem") as caught:
            start()
        assert "secret text" not in str(caught.value)
        server_files.paths[1].unlink()
        with pytest.raises(AddressError, match="No such file"):
            start()
        with pytest.raises(DragomanError) as refused:
            open_channel("127.0.0.1:1", ())
        assert refused.value.reason is Reason.ADDRESS_UNTRUSTED


def test_files_that_change_while_they_are_read_are_not_used(
    server_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_files.fill(Authority())
    with server_files.used(monkeypatch):
        files = TlsFiles.named()
        assert files.read().certificate
        stamps = iter([[(1, 1, 1)], [(2, 1, 1)]])
        monkeypatch.setattr(TlsFiles, "stamp", lambda _files: next(stamps))
        with pytest.raises(AddressError, match=r"TLS: .*pem is being replaced; try again"):
            files.read()


def test_empty_authorities_are_not_every_public_authority(
    server_files: Files, client_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for files in (server_files, client_files):
        files.fill(Authority(), "client")
        files.paths[2].write_text("")
        with files.used(monkeypatch), pytest.raises(AddressError, match=r"is empty; DRAGOMAN_TLS_CA names"):
            TlsFiles.named().read()
    with client_files.used(monkeypatch), pytest.raises(DragomanError, match="is empty"):
        open_channel("127.0.0.1:1", ())


async def test_a_token_goes_to_no_other_machine_in_the_clear(
    client_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DragomanError, match=r"in the clear; nothing was sent\. Set DRAGOMAN_TLS_CA") as refused:
        open_channel("192.0.2.1:7777", (), token="a-token-of-thirty-two-characters")
    assert refused.value.reason is Reason.ADDRESS_UNTRUSTED
    await open_channel("192.0.2.1:7777", ()).close()
    client_files.fill(Authority(), "client")
    with client_files.used(monkeypatch):
        await open_channel("192.0.2.1:7777", (), token="a-token-of-thirty-two-characters").close()


def test_other_machines_are_reached_and_let_in_with_tls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    far = parse_address("192.0.2.1:7777")
    with pytest.raises(AddressError, match="without TLS"):
        check_listen(far)
    with pytest.raises(AddressError, match="in the clear"):
        check_local(str(far))
    monkeypatch.setenv("DRAGOMAN_TLS_CERT", "/somewhere")
    monkeypatch.setenv("DRAGOMAN_TLS_CA", "/somewhere")
    check_listen(far)
    assert check_local(str(far)) == far
    with pytest.raises(AddressError, match="without a token"):
        DragomanServer({}, [str(far)], insecure_tcp_without_token=True)


async def test_a_channel_makes_new_calls_with_new_certificates_and_lets_old_ones_go_on(
    server_files: Files, client_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Authority(), Authority()
    server_files.fill(old)
    client_files.fill(old, "client")
    async with serving_with(server_files, monkeypatch) as address:
        with client_files.used(monkeypatch):
            channel = open_channel(address, channel_options(address))
        async with channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            stub = adapter_pb2_grpc.AdapterServiceStub(channel)
            await stub.Detect(pb.DetectRequest())
            server_files.fill(new)
            client_files.paths[2].write_text("half of a certificate")
            await stub.Detect(pb.DetectRequest())
            client_files.fill(new, "client")
            await stub.Detect(pb.DetectRequest())
            client_files.fill(old, "client")
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await stub.Detect(pb.DetectRequest())
            assert not watch.done()
