"""Who may call: this user over a Unix socket, who has the token over TCP, and no agent from beneath its run."""

import asyncio
import base64
import contextlib
import io
import os
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import grpc
import pytest
from dragoman.guard import tree
from dragoman.protocol import callers
from dragoman.protocol.access import Gate
from dragoman.protocol.callers import MARKER, Connections
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import channel_options
from dragoman.protocol.private import make_token
from dragoman.protocol.server import Context, DragomanServer, _Gated, _unlimited, service_handler
from dragoman.protocol.statuses import to_status
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc

from tests.strangers import CALL_AND_LEAVE, CALL_OVER_ANOTHERS, OTHER_USER, call, call_from_a_run, needs_root, run

SERVICE = pb.DESCRIPTOR.services_by_name["AdapterService"]
DETECT = "/dragoman.v1.AdapterService/Detect"
RESPOND = "/dragoman.v1.AdapterService/Respond"
HEALTH = "/grpc.health.v1.Health/Check"


class Counting:
    """Counts the calls that reach it."""

    def __init__(self) -> None:
        self.calls = 0

    async def Detect(self, _request: pb.DetectRequest, _context: Context) -> pb.DetectResponse:  # noqa: N802
        self.calls += 1
        return pb.DetectResponse()

    async def Respond(self, _request: pb.RespondRequest, _context: Context) -> pb.RespondResponse:  # noqa: N802
        self.calls += 1
        return pb.RespondResponse()

    async def drain(self, grace_s: float) -> None:
        """Nothing is to be ended."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="dr-") as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def user_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the token of this machine's user out of this."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DRAGOMAN_TOKEN", raising=False)


@contextlib.asynccontextmanager
async def serving(listen: str) -> AsyncIterator[tuple[Counting, str]]:
    service = Counting()
    server = DragomanServer({SERVICE: service_handler(SERVICE, service)}, [listen])
    await server.start()
    await server.set_serving()
    try:
        yield service, server.addresses[0]
    finally:
        await server.stop([service], 1)


async def test_tcp_answers_no_caller_without_the_token() -> None:
    async with serving("127.0.0.1:0") as (service, address):
        for metadata in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {make_token()}"}):
            ((code, reason, message),) = await call(address, DETECT, metadata=metadata)
            assert (code, reason) == ("UNAUTHENTICATED", "TOKEN_REQUIRED")
            assert "dragoman token" in message
        assert service.calls == 0
        assert await call(address, DETECT, metadata={"authorization": f"Bearer {make_token()}"}) == [("OK", "", "")]
        assert service.calls == 1


async def test_health_needs_no_token_and_reflection_does() -> None:
    async with serving("127.0.0.1:0") as (_, address), grpc.aio.insecure_channel(address) as channel:
        assert await call(address, HEALTH) == [("OK", "", "")]
        method: Any = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        # Nothing is sent: where that fails as the call is over, gRPC reports that failure instead.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(timeout=20).read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_our_own_channels_find_the_token() -> None:
    async with serving("127.0.0.1:0") as (service, address):
        async with open_channel(address, channel_options(address)) as channel:
            await adapter_pb2_grpc.AdapterServiceStub(channel).Detect(pb.DetectRequest())
        async with open_channel(address, channel_options(address), token="not-the-token-at-all") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await adapter_pb2_grpc.AdapterServiceStub(channel).Detect(pb.DetectRequest())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert service.calls == 1


@needs_root
async def test_another_user_gets_nothing_over_tcp() -> None:
    async with serving("127.0.0.1:0") as (service, address):
        ((code, _, _),) = await call(address, DETECT, user=OTHER_USER)
        assert code == "UNAUTHENTICATED"
        assert service.calls == 0


@needs_root
async def test_another_user_cannot_open_a_unix_socket(folder: Path) -> None:
    folder.chmod(0o755)
    async with serving(f"unix:{folder}/s") as (service, address):
        ((code, _, _),) = await call(address, DETECT, user=OTHER_USER)
        assert code == "UNAVAILABLE"
        assert service.calls == 0


@needs_root
async def test_another_user_is_not_answered_on_a_socket_that_was_opened_to_all(folder: Path) -> None:
    folder.chmod(0o755)
    async with serving(f"unix:{folder}/s") as (service, address):
        (folder / "s").chmod(0o666)
        assert await call(address, DETECT) == [("OK", "", "")]
        refused = await call(address, DETECT, user=OTHER_USER, count=20)
        # Now and then gRPC sees that the connection is closed before it reads why.
        answers = {(code, reason) for code, reason, _ in refused} - {("UNAVAILABLE", None)}
        assert answers == {("PERMISSION_DENIED", "CALLER_REFUSED")}
        health = await call(address, HEALTH, user=OTHER_USER, count=5)
        assert {code for code, _, _ in health} - {"UNAVAILABLE"} == {"PERMISSION_DENIED"}
        assert service.calls == 1


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
async def test_an_agent_is_not_answered_and_the_refusal_says_what_would_help(folder: Path) -> None:
    async with serving(f"unix:{folder}/s") as (service, address):
        for bare in (False, True):
            ((code, reason, message),) = await call_from_a_run(address, DETECT, bare=bare)
            assert (code, reason) == ("PERMISSION_DENIED", "CALLER_REFUSED")
            assert "DRAGOMAN_TOKEN" in message
        assert service.calls == 0


async def test_an_agent_whose_run_has_the_token_is_answered(folder: Path) -> None:
    async with serving(f"unix:{folder}/s") as (service, address):
        assert await call_from_a_run(address, DETECT, env={"DRAGOMAN_TOKEN": make_token()}) == [("OK", "", "")]
        ((code, _, _),) = await call_from_a_run(address, DETECT, env={"DRAGOMAN_TOKEN": "something else entirely"})
        assert code == "PERMISSION_DENIED"
        assert service.calls == 1


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
async def test_others_are_answered_while_agents_are_refused(folder: Path) -> None:
    """A call does not say which connection it came on: none of an agent's is answered, and none of ours refused."""
    async with serving(f"unix:{folder}/s") as (service, address):
        refusing = asyncio.ensure_future(call_from_a_run(address, DETECT, count=40))
        answered = 0
        async with open_channel(address, channel_options(address)) as channel:
            stub: adapter_pb2_grpc.AdapterServiceAsyncStub = adapter_pb2_grpc.AdapterServiceStub(channel)
            while not refusing.done():
                await stub.Detect(pb.DetectRequest())
                answered += 1
        # Cut by another call's look before it was asked anything, a connection can only break.
        assert {code for code, _, _ in refusing.result()} <= {"PERMISSION_DENIED", "UNAVAILABLE"}
        assert service.calls == answered


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
async def test_an_agent_that_does_not_wait_for_its_answer_changes_nothing(folder: Path) -> None:
    async with serving(f"unix:{folder}/s") as (service, address):
        await run(CALL_AND_LEAVE, f"{folder}/s", RESPOND, "1", "0")
        assert await call(address, RESPOND) == [("OK", "", "")]
        # This user may leave, too. gRPC 1.76 begins none of these calls, later versions some.
        await run(CALL_AND_LEAVE, f"{folder}/s", RESPOND, "200", "0")
        before = service.calls
        await run(CALL_AND_LEAVE, f"{folder}/s", RESPOND, "200", "0", env={MARKER: "r1"})
        await run(CALL_AND_LEAVE, f"{folder}/s", RESPOND, "20", "0.2", env={MARKER: "r1"})
        assert await call(address, RESPOND) == [("OK", "", "")]
        assert service.calls == before + 1


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
async def test_a_connection_whose_opener_has_ended_is_not_answered(folder: Path) -> None:
    """The kernel reports only who opened it, and an agent can let a child do that."""
    async with serving(f"unix:{folder}/s") as (service, address):
        for env in ({MARKER: "r1"}, {}):
            refusal = await run(CALL_OVER_ANOTHERS, f"{folder}/s", RESPOND, env=env)
            assert "has ended" in refusal
        assert service.calls == 0
        assert await call(address, RESPOND) == [("OK", "", "")]


async def test_what_is_there_already_is_not_looked_at_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(f"unix:{folder}/s") as (_, address):
        looked: list[int] = []
        judge = Connections._judge_new

        def judging(connections: Connections) -> bool:
            looked.append(1)
            return judge(connections)

        monkeypatch.setattr(Connections, "_judge_new", judging)
        async with open_channel(address, channel_options(address)) as channel:
            stub: adapter_pb2_grpc.AdapterServiceAsyncStub = adapter_pb2_grpc.AdapterServiceStub(channel)
            await stub.Detect(pb.DetectRequest())
            first = len(looked)
            for _ in range(20):
                await stub.Detect(pb.DetectRequest())
        assert 0 < first == len(looked)


async def test_where_the_list_of_epoll_cannot_be_read_all_descriptors_are_looked_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connections, "_find_list", lambda _self: None)
    async with serving(f"unix:{folder}/s") as (service, address):
        assert await call(address, DETECT) == [("OK", "", "")]
        ((code, _, _),) = await call_from_a_run(address, DETECT)
        assert code == "PERMISSION_DENIED"
        assert service.calls == 1


def test_the_marker_is_the_guards() -> None:
    assert callers.MARKER == tree.MARKER


def test_a_run_of_which_this_process_is_a_part_does_not_count() -> None:
    assert callers.run_environment(os.getpid()) is None
    assert callers.run_environment(os.getppid()) is None


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_a_token_that_an_agent_gives_its_own_child_is_not_the_runs() -> None:
    script = "env -i DRAGOMAN_TOKEN=forged sh -c 'echo $$; read _; :'; :"
    env = {"PATH": os.environ["PATH"], MARKER: "r1", "DRAGOMAN_TOKEN": "given"}
    with subprocess.Popen(
        ["/bin/sh", "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        run_env = callers.run_environment(child)
        shell.stdin.close()
    assert child != shell.pid
    assert run_env is not None
    assert run_env["DRAGOMAN_TOKEN"] == "given"


@pytest.mark.parametrize("message", ["né" * 200, "x", "xy", "xyz"])
def test_a_farewell_is_the_status_in_literal_headers(message: str) -> None:
    refusal = DragomanError(Reason.CALLER_REFUSED, message)
    data = callers.farewell(refusal)
    frames = []
    while data:
        size = int.from_bytes(data[:3], "big")
        frames.append((data[3], data[9 : 9 + size]))
        data = data[9 + size :]
    assert [kind for kind, _ in frames] == [1, 7]
    headers = dict(literals(frames[0][1]))
    assert headers["grpc-status"] == str(refusal.code.value[0])
    assert unquote(headers["grpc-message"]) == message
    details = headers["grpc-status-details-bin"]
    assert not details.endswith("="), "gRPC sends binary values without padding"
    ((_, sent),) = to_status(refusal).trailing_metadata
    assert base64.b64decode(details + "===") == sent


def literals(block: bytes) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a header block that begins with ``:status: 200``; see RFC 7541, 5.2 and 6.2."""

    stream = io.BytesIO(block)

    def text() -> str:
        (size,) = stream.read(1)
        shift, more = 0, size == 127
        while more:
            (byte,) = stream.read(1)
            size += (byte & 127) << shift
            shift, more = shift + 7, byte > 127
        return stream.read(size).decode()

    assert stream.read(1) == b"\x88"
    while kind := stream.read(1):
        assert kind == b"\0"
        yield text(), text()


def test_a_token_is_created_once_and_for_this_user_alone(tmp_path: Path) -> None:
    first = make_token()
    file = tmp_path / "state" / "dragoman" / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert (make_token(), len(first) >= 40) == (first, True)
    assert [path.name for path in file.parent.iterdir()] == ["token"]


async def test_a_caller_that_is_gone_before_its_refusal_is_not_answered() -> None:
    class Refusing(Gate):
        async def admit(self, method: str, context: Any) -> None:
            raise DragomanError(Reason.TOKEN_REQUIRED, method)

    class Gone:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        async def abort_with_status(self, _status: grpc.Status) -> None:
            raise RuntimeError("a type of gRPC's own")

    answered = []

    async def answer(request: Any, _context: Any) -> None:
        answered.append(request)

    handler: Any = grpc.unary_unary_rpc_method_handler(answer)

    async def found(_details: Any) -> Any:
        return handler

    gated = _Gated(Refusing([], asks_token=False), _unlimited)
    details: Any = SimpleNamespace(method=DETECT)
    behind = await gated.intercept_service(found, details)
    with pytest.raises(asyncio.CancelledError):
        await behind.unary_unary(b"", Gone())
    assert answered == []
