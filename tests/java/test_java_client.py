"""The generated Java client against a router: `make test-java`."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest
from dragoman.protocol.private import make_token

from tests.router.harness import config, manifest, routing

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2] / "clients/java"


async def test_the_tests_of_the_java_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = shutil.which("mvn")
    assert maven is not None, "Maven is needed: it is in Debian's package maven"
    monkeypatch.setenv("DRAGOMAN_TOKEN", make_token())
    command = [sys.executable, "-m", "dragoman.cli.main", "adapter", "serve", "process"]
    process = manifest(tmp_path, "process", command=command)
    async with routing(config(tmp_path, manifests=(process,), listen=("127.0.0.1:0",))) as (router, _caller):
        run = await asyncio.create_subprocess_exec(
            *(maven, "--quiet", "--batch-mode", "--file", str(PROJECT), "test"),
            env={**os.environ, "DRAGOMAN_ROUTER": router.addresses[0]},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await run.communicate()
    assert run.returncode == 0, output.decode()
    reports = PROJECT.parents[1] / "build/java/surefire-reports"
    assert 'tests="3"' in (reports / "TEST-dragoman.ClientTest.xml").read_text()
