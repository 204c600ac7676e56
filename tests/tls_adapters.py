"""TLS of adapters that are programs in any language: what their servers do with the files of a certificate."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import pytest
from dragoman.client import Client, execute_request
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.limits import channel_options
from dragoman.protocol.private import make_token
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import adapter_pb2_grpc

from tests.certificates import VARIABLES, Authority, Files

__all__ = ["CASES", "Case", "trust"]

_PATIENCE_S = 20.0

Case = Callable[[Sequence[str], Path, pytest.MonkeyPatch], Awaitable[None]]
"""A case of an adapter's TLS: the command of the adapter, a folder, the environment."""


class _Served:
    """An adapter that was started, and where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    async def logged(self, text: str) -> str:
        """Return the next line of its log that has a text in it."""
        assert self.process.stderr is not None
        async with asyncio.timeout(_PATIENCE_S):
            while line := (await self.process.stderr.readline()).decode():
                if text in line:
                    return line
        raise AssertionError(f"the adapter ended before it logged {text!r}")


async def _start(command: Sequence[str], host: str) -> _Served:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "DRAGOMAN_LISTEN": f"{host}:{port}"}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    return _Served(process, f"127.0.0.1:{port}")


@contextlib.asynccontextmanager
async def _serving(command: Sequence[str], host: str = "127.0.0.1") -> AsyncIterator[_Served]:
    served = await _start(command, host)
    try:
        await served.logged("adapter ready")
        yield served
    finally:
        if served.process.returncode is None:
            served.process.terminate()
        await served.process.wait()


async def _describe(address: str, token: str | None = None) -> str:
    """Call the adapter on a new connection; return the call's status."""
    options = [*channel_options(address), ("grpc.use_local_subchannel_pool", 1)]
    async with open_channel(address, options, token=token) as channel:
        try:
            await adapter_pb2_grpc.AdapterServiceStub(channel).Describe(api.DescribeRequest())
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


def _user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Files, Files]:
    """Make a user with a token; return the files of a server and of its client."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DRAGOMAN_TOKEN", make_token())
    return Files(folder / "server"), Files(folder / "client")


async def mutual(command: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer those that have a certificate and the token, on all addresses of the machine."""
    server, client = _user(folder, monkeypatch)
    authority, stranger = Authority(), Authority()
    server.fill(authority)
    client.fill(authority, "client")
    async with contextlib.AsyncExitStack() as stack:
        with server.used(monkeypatch):
            address = (await stack.enter_async_context(_serving(command, "0.0.0.0"))).address
        with client.used(monkeypatch):
            assert await _describe(address) == "OK"
            assert await _describe(address, token="not-the-token") == "UNAUTHENTICATED"
        with client.used(monkeypatch, only_ca=True):
            assert await _describe(address) == "UNAVAILABLE", "without a certificate"
        client.fill(stranger, "client", trusted=[authority])
        with client.used(monkeypatch):
            assert await _describe(address) == "UNAVAILABLE", "with a certificate of another authority"
        assert await _describe(address) == "UNAVAILABLE", "in the clear"


async def own_certificate(command: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask clients for no certificate where no authorities are named."""
    server, client = _user(folder, monkeypatch)
    authority = Authority()
    server.fill(authority)
    client.fill(authority)
    async with contextlib.AsyncExitStack() as stack:
        with server.used(monkeypatch, count=2):
            address = (await stack.enter_async_context(_serving(command))).address
        with client.used(monkeypatch, only_ca=True):
            assert await _describe(address) == "OK"
            client.fill(Authority(), trusted=[Authority()])
            assert await _describe(address) == "UNAVAILABLE", "to a client that trusts other authorities"


async def rotation(command: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give new connections the certificate that the files hold by then, and keep the connections there are."""
    server, client = _user(folder, monkeypatch)
    before, after = Authority(), Authority()
    server.fill(before)
    client.fill(before)
    async with contextlib.AsyncExitStack() as stack:
        with server.used(monkeypatch):
            served = await stack.enter_async_context(_serving(command))
        address = served.address
        with client.used(monkeypatch):
            options = [*channel_options(address), ("grpc.use_local_subchannel_pool", 1)]
            old = await stack.enter_async_context(open_channel(address, options))
            await adapter_pb2_grpc.AdapterServiceStub(old).Describe(api.DescribeRequest())
        server.paths[1].write_text("no key")
        with client.used(monkeypatch):
            assert await _describe(address) == "OK", "while the files cannot be used"
        assert str(server.paths[1]) in await served.logged("certificate not reloaded; the last one stays")
        server.fill(after)
        client.fill(after)
        with client.used(monkeypatch):
            async with asyncio.timeout(_PATIENCE_S):
                while await _describe(address) != "OK":  # noqa: ASYNC110 - another process reads them
                    await asyncio.sleep(0.05)
        await adapter_pb2_grpc.AdapterServiceStub(old).Describe(api.DescribeRequest())


async def run_of_a_client(command: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do a run for a client whose certificate is of the authority."""
    server, client = _user(folder, monkeypatch)
    authority = Authority()
    server.fill(authority)
    client.fill(authority)
    async with contextlib.AsyncExitStack() as stack:
        with server.used(monkeypatch):
            address = (await stack.enter_async_context(_serving(command))).address
        with client.used(monkeypatch):
            caller = await stack.enter_async_context(Client(address))
            request = execute_request("", "hello", cwd=str(folder), config={"command": "cat"})
            async with caller.execute(request) as run:
                assert [event.log.text async for event in run if event.HasField("log")] == ["hello"]


async def refusals(command: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to start in the clear beyond this machine, and with files that cannot be used, and say what is wrong."""
    server, other = _user(folder, monkeypatch)
    server.fill(Authority())
    other.fill(Authority())
    empty = folder / "empty"
    empty.touch()
    certificate, key, authorities = (str(path) for path in server.paths)
    for values, host, text in [
        ([], "0.0.0.0", "refusing to listen on"),
        ([], "0.0.0.0", "DRAGOMAN_TLS_CERT and DRAGOMAN_TLS_KEY"),
        ([certificate, ""], "127.0.0.1", "DRAGOMAN_TLS_CERT and DRAGOMAN_TLS_KEY belong together"),
        ([certificate, str(other.paths[1])], "0.0.0.0", str(other.paths[1])),
        ([certificate, str(folder / "absent")], "127.0.0.1", str(folder / "absent")),
        ([certificate, key, str(empty)], "127.0.0.1", str(empty)),
        (["", "", authorities], "0.0.0.0", "refusing to listen on"),
    ]:
        with monkeypatch.context() as patch:
            for variable, value in zip(VARIABLES, values, strict=False):
                patch.setenv(variable, value)
            served = await _start(command, host)
        try:
            assert text in await served.logged("adapter failed")
            assert await served.process.wait() == 1
        finally:
            if served.process.returncode is None:
                served.process.kill()
                await served.process.wait()


async def trust(command: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to start on TCP with a table of identities, which only other SDKs know."""
    _user(folder, monkeypatch)
    monkeypatch.setenv("DRAGOMAN_TRUST", str(folder / "trust.toml"))
    served = await _start(command, "127.0.0.1")
    try:
        assert "DRAGOMAN_TRUST is set" in await served.logged("adapter failed")
        assert await served.process.wait() == 1
    finally:
        if served.process.returncode is None:
            served.process.kill()
            await served.process.wait()


CASES = [mutual, own_certificate, rotation, run_of_a_client, refusals, trust]
