"""pytest-grpc's synchronous fixtures, pointed at the real servers: a sidecar and a router in processes of their own.

The plugin serves a servicer in a thread of the test; here its address names a program instead, and nothing is served.
One contract is spoken by both, so every test runs against both.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.protocol.limits import channel_options
from dragoman.v1 import adapter_pb2_grpc

COMMANDS = {
    "sidecar": ["adapter", "serve", "process", "--log-format", "json"],
    "router": ["serve", "--no-detect", "--log-format", "json"],
}
_DEADLINE_S = 20.0


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def server_kind(request: pytest.FixtureRequest) -> str:
    """Which of the two is asked."""
    return str(request.param)


@pytest.fixture(scope="module")
def server_log(tmp_path_factory: pytest.TempPathFactory, server_kind: str) -> Path:
    """Where the server logs."""
    return tmp_path_factory.mktemp(server_kind) / "log"


@pytest.fixture(scope="module")
def grpc_addr(server_kind: str, server_log: Path) -> Iterator[str]:
    """The address of a real server in a process of its own."""
    command = [sys.executable, "-m", "dragoman.cli.main", *COMMANDS[server_kind], "--listen", "127.0.0.1:0"]
    command += ["--insecure-tcp-without-token"]
    if server_kind == "router":
        command += ["--state-dir", str(server_log.parent)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(server_log.parent)}
    with server_log.open("wb") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env)
    try:
        yield _address(server, server_log)
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.communicate(timeout=_DEADLINE_S)
        server.kill()
        server.communicate()


def _address(server: "subprocess.Popen[bytes]", log: Path) -> str:
    """Return where it listens, as soon as it says so."""
    while server.poll() is None:
        found = re.search(r"127\.0\.0\.1:[1-9]\d*", log.read_text())
        if found:
            return found[0]
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.02)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def grpc_server() -> None:
    """Serve nothing in this process: the real server is another one."""


@pytest.fixture(scope="module")
def grpc_channel(grpc_create_channel: Callable[..., grpc.Channel], grpc_addr: str) -> Iterator[grpc.Channel]:
    """A channel with our options; a proxy variable, for one, would catch even loopback."""
    options: list[Any] = channel_options(grpc_addr)
    with grpc_create_channel(options=options) as channel:
        yield channel


@pytest.fixture(scope="module")
def grpc_stub_cls() -> type[adapter_pb2_grpc.AdapterServiceStub]:
    """The stub of the one contract."""
    return adapter_pb2_grpc.AdapterServiceStub
