"""Programs that call as another user, one without rights, or from beneath a run."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.callers import MARKER

OTHER_USER = 65534
PATIENCE_S = 60.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

CALL = """
import json, os, sys
import grpc
from dragoman.protocol.statuses import from_rpc_error
BECOME
address, method, metadata, count = sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), int(sys.argv[5])
options = [("grpc.enable_retries", 0), ("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0)]
answers = []
for _ in range(count):
    for attempt in range(5):
        with grpc.insecure_channel(address, options=options) as channel:
            try:
                channel.unary_unary(method)(b"", timeout=30, metadata=[tuple(pair) for pair in metadata])
                answer = ["OK", "", ""]
            except grpc.RpcError as error:
                failure = from_rpc_error(error)
                answer = [error.code().name, failure.reason, failure.message]
        # A connection that is cut while its client still writes has no room for a reason.
        if answer[0] != "UNAVAILABLE":
            break
    answers.append(answer)
print(json.dumps(answers))
"""
"""Makes calls, each on a connection of its own, and prints what came of them."""

CALL_AND_LEAVE = """
import os, socket, sys, time
from dragoman.protocol.callers import _frame, _literal
head = [(":method", "POST"), (":scheme", "http"), (":path", sys.argv[3]), (":authority", "localhost")]
head += [("content-type", "application/grpc"), ("te", "trailers")]
data = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + _frame(4, 0, 0, b"")
data += _frame(1, 4, 1, b"".join(_literal(*pair) for pair in head)) + _frame(0, 1, 1, bytes(5))
for _ in range(int(sys.argv[4])):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.connect(sys.argv[2])
        caller.sendall(data)
    time.sleep(float(sys.argv[5]))
"""
"""Calls, and closes the connection without waiting for anything."""

CALL_OVER_ANOTHERS = """
import os, socket, sys
from dragoman.protocol.callers import _frame, _literal
head = [(":method", "POST"), (":scheme", "http"), (":path", sys.argv[3]), (":authority", "localhost")]
head += [("content-type", "application/grpc"), ("te", "trailers")]
data = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + _frame(4, 0, 0, b"")
data += _frame(1, 4, 1, b"".join(_literal(*pair) for pair in head)) + _frame(0, 1, 1, bytes(5))
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
    child = os.fork()
    if not child:
        caller.connect(sys.argv[2])
        os._exit(0)
    os.waitpid(child, 0)
    caller.sendall(data)
    caller.settimeout(10)
    answer = b""
    while b"grpc-status" not in answer and (piece := caller.recv(65536)):
        answer += piece
print(answer)
"""
"""Calls over a connection that a child opened, which has ended since."""

BENEATH = """
import subprocess, sys
sys.exit(subprocess.run(sys.argv[2:], env={}).returncode)
"""
"""Runs a program that has shed its environment."""

LISTEN = """
import os, socket, sys
BECOME
if "/" in sys.argv[2]:
    family, address = socket.AF_UNIX, sys.argv[2]
else:
    family, address = socket.AF_INET, ("127.0.0.1", int(sys.argv[2][4:] or 0))
with socket.socket(family, socket.SOCK_STREAM) as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(address)
    server.listen()
    print("" if family is socket.AF_UNIX else server.getsockname()[1], flush=True)
    sys.stdin.read()
"""
"""Listens until its input ends; prints the port."""


BECOME = """
if int(sys.argv[1]):
    os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
"""
# Within the program, as the interpreter may lie where another user cannot start it.


async def run(program: str, *arguments: str, user: int = 0, env: Mapping[str, str] | None = None) -> str:
    """Run a Python program to its end, and return what it printed."""
    process = await start(program, *arguments, user=user, env=env)
    output, _ = await asyncio.wait_for(process.communicate(b""), PATIENCE_S)
    assert process.returncode == 0, output
    return output.decode()


async def start(
    program: str, *arguments: str, user: int = 0, env: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start a Python program, as another user if wanted."""
    command = [sys.executable, "-c", program.replace("BECOME", BECOME), str(user), *arguments]
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )


async def call(
    address: str,
    method: str,
    *,
    metadata: Mapping[str, str] | None = None,
    user: int = 0,
    env: Mapping[str, str] | None = None,
    count: int = 1,
    bare: bool = False,
) -> list[tuple[str, str, str]]:
    """Call a server from a process of its own; return status, reason and message of each call.

    Args:
        address: the server's.
        method: the full name.
        metadata: of the call.
        user: who calls.
        env: what the process is started with, over our own.
        count: how many calls, each on a connection of its own.
        bare: whether the caller is a child, without any environment, of the process with that environment.
    """
    program, arguments = CALL, [address, method, json.dumps(list((metadata or {}).items())), str(count)]
    if bare:
        program, arguments = BENEATH, [sys.executable, "-c", CALL.replace("BECOME", BECOME), "0", *arguments]
    return [tuple(answer) for answer in json.loads(await run(program, *arguments, user=user, env=env))]


async def call_from_a_run(address: str, method: str, **how: Any) -> list[tuple[str, str, str]]:
    """Call as an agent's tool does."""
    return await call(address, method, env={MARKER: "r1", **how.pop("env", {})}, **how)


@contextlib.asynccontextmanager
async def listener(where: str | Path, *, user: int) -> AsyncIterator[str]:
    """Let another user listen at a path, or at ``tcp`` or ``tcp:PORT``; yields the port."""
    process = await start(LISTEN, str(where), user=user)
    assert process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).decode().strip()
    finally:
        await process.communicate(b"")
