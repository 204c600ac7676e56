"""TLS of the TypeScript SDK and of the client in TypeScript: `make test-typescript` builds both."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from dragoman.protocol.private import make_token

from tests.certificates import VARIABLES, Authority, Files
from tests.router.harness import config, manifest, routing
from tests.tls_adapters import CASES, Case
from tests.typescript.test_typescript_adapters import CLIENT, NODE, PROGRAMS

pytestmark = [pytest.mark.typescript, pytest.mark.timeout(180)]

CALLS = """
import { createInterface } from "node:readline";
import { Client } from "@dragoman/client";
const client = new Client();
for await (const _ of createInterface({ input: process.stdin })) {
  console.log(await client.describe("process").then(({ adapter }) => adapter, ({ code }) => `code ${code}`));
}
client.close();
"""
"""A program that calls the router for each line that it reads."""


@pytest.mark.parametrize("case", CASES)
async def test_an_adapter(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await case([NODE, str(PROGRAMS["lines"])], tmp_path, monkeypatch)


async def test_the_client_calls_with_the_certificates_that_are_there_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DRAGOMAN_TOKEN", make_token())
    server, own = Files(tmp_path / "server"), Files(tmp_path / "client")
    before, after = Authority(), Authority()
    server.fill(before)
    own.fill(before)
    command = [sys.executable, "-m", "dragoman.cli.main", "adapter", "serve", "process"]
    routed = config(tmp_path, manifests=(manifest(tmp_path, "process", command=command),), listen=("127.0.0.1:0",))
    with server.used(monkeypatch):
        serving = routing(routed)
        router, _caller = await serving.__aenter__()
    try:
        with own.used(monkeypatch):
            environment = {**os.environ, "DRAGOMAN_ROUTER": router.addresses[0]}
        program = await asyncio.create_subprocess_exec(
            *(NODE, "--input-type=module", "--eval", CALLS),
            cwd=CLIENT,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert program.stdin is not None
        assert program.stdout is not None

        async def call() -> str:
            program.stdin.write(b"\n")  # type: ignore[union-attr] # checked above
            return (await program.stdout.readline()).decode().strip()  # type: ignore[union-attr] # checked above

        assert await call() == "process"
        own.fill(after)
        assert await call() == "code 14", "the server shows a certificate of the other authority"
        server.fill(after)
        async with asyncio.timeout(20):
            while await call() != "process":  # noqa: ASYNC110 - the router reads them at its next handshake
                await asyncio.sleep(0.05)
        own.paths[2].write_text("no certificate")
        assert await call() == "process", "with the last ones"
        program.stdin.close()
        assert await program.wait() == 0
    finally:
        await serving.__aexit__(None, None, None)
