"""Sizes, times and channel options: the numbers of the contract, and that gRPC does what they are for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from dragoman.protocol import limits
from dragoman.protocol.limits import channel_options, server_options


def test_the_numbers_are_those_of_the_contract() -> None:
    """protocol.md §2 and §8 and the comments in proto/."""
    assert limits.MAX_REQUEST_BYTES == limits.MAX_LINE_BYTES == 16 * 2**20
    assert limits.MAX_EVENT_BYTES == 2**20
    assert limits.MAX_BATCH_BYTES == 256 * 2**10
    assert limits.MAX_NATIVE_BYTES == 64 * 2**10
    assert limits.MAX_TRAILER_BYTES == 8 * 2**10
    assert (limits.HEARTBEAT_AFTER_S, limits.DEFAULT_GRACE_S) == (15, 15)
    assert (limits.SERVER_ENDED_GRACE_S, limits.REATTACH_S, limits.CLIENT_ORPHAN_AFTER_S) == (30, 30, 30)
    assert limits.ROUTER_ORPHAN_AFTER_S == 60
    assert limits.MAX_ORPHAN_AFTER_S == 24 * 60 * 60
    assert limits.DEFAULT_INPUT_TIMEOUT_S == 10 * 60
    assert (limits.KEEPALIVE_S, limits.PING_TIMEOUT_S) == (30, 10)


def test_a_reader_may_lag_by_many_of_the_largest_events_and_by_no_more_than_is_kept() -> None:
    assert 4 * limits.MAX_EVENT_BYTES <= limits.READER_LAG_BYTES <= limits.RUN_BUFFER_BYTES


@pytest.mark.parametrize(
    "options",
    [server_options(), channel_options("127.0.0.1:1"), channel_options("unix:/a", local=True)],
    ids=["server", "tcp", "unix"],
)
def test_options_are_set_once_and_sizes_leave_room_for_our_own_refusal(
    options: list[limits.ChannelOption],
) -> None:
    names = [name for name, _ in options]
    assert len(names) == len(set(names))
    sizes = {name: value for name, value in options if name.endswith("message_length")}
    assert len(sizes) == 2
    assert all(int(size) > limits.MAX_REQUEST_BYTES for size in sizes.values())


def test_only_unix_sockets_get_an_authority_and_only_local_peers_no_probing() -> None:
    authority = ("grpc.default_authority", "localhost")
    probing = ("grpc.http2.bdp_probe", 0)
    assert authority in channel_options("unix:/run/a.sock")
    assert authority not in channel_options("127.0.0.1:50051")
    assert probing in channel_options("unix:/run/a.sock", local=True)
    assert probing not in channel_options("unix:/run/a.sock")


# --- what they are for


@asynccontextmanager
async def echo(address: str) -> AsyncIterator[str]:
    """Serve a method that returns the size of what it got."""

    async def call(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return str(len(request)).encode()

    server = grpc.aio.server(options=server_options())
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(call)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", {"Call": handler})])
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield address if address.startswith("unix:") else f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def method(channel: grpc.aio.Channel) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]":
    return channel.unary_unary("/test.Service/Call")


@pytest.mark.parametrize("size", [0, limits.MAX_REQUEST_BYTES])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_the_largest_request_passes(kind: str, size: int, tmp_path: Path) -> None:
    listen = "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/s"
    async with (
        echo(listen) as address,
        grpc.aio.insecure_channel(address, options=channel_options(address, local=True)) as channel,
    ):
        reply = await method(channel)(b"x" * size, timeout=20)
    assert reply == str(size).encode()


async def test_a_proxy_variable_does_not_catch_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with (
        echo("127.0.0.1:0") as address,
        grpc.aio.insecure_channel(address, options=channel_options(address)) as channel,
    ):
        assert await method(channel)(b"", timeout=20)


async def test_two_servers_never_share_a_port_in_silence() -> None:
    async with echo("127.0.0.1:0") as address:
        second = grpc.aio.server(options=server_options())
        with pytest.raises(RuntimeError, match="bind"):
            second.add_insecure_port(address)
        await second.stop(None)


async def test_a_failed_connection_is_tried_again_soon() -> None:
    """A sidecar that comes up a moment later must not be waited for by the minute."""
    async with echo("127.0.0.1:0") as address:
        port = int(address.rpartition(":")[2])
    async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(channel)(b"", timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        async with echo(f"127.0.0.1:{port}"):
            started = asyncio.get_running_loop().time()
            await method(channel)(b"", timeout=20, wait_for_ready=True)
            assert asyncio.get_running_loop().time() - started < 5


async def test_a_connection_may_take_a_while(tmp_path: Path) -> None:
    """Who is busy, or far away, says its first word late; giving up before then would be giving up for ever."""
    passing: list[asyncio.Task[None]] = []

    async def pass_on_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)  # what is tested: much longer than the pause between two attempts
        far_reader, far_writer = await asyncio.open_unix_connection(f"{tmp_path}/far")
        passing.extend(asyncio.ensure_future(_copy(*way)) for way in ((reader, far_writer), (far_reader, writer)))

    near = await asyncio.start_unix_server(pass_on_late, f"{tmp_path}/near")
    address = f"unix:{tmp_path}/near"
    async with (
        echo(f"unix:{tmp_path}/far"),
        grpc.aio.insecure_channel(address, options=channel_options(address)) as channel,
    ):
        assert await method(channel)(b"xy", timeout=20) == b"2"
    near.close()
    await asyncio.gather(*passing)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()
