"""The command line as a real program, for tests."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.testkit.fakes.adapter import FakeAdapter, serving
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

DESCRIBED = api.DescribeResponse(
    adapter="fake",
    label="Fake",
    version="1",
    revision=1,
    config_schema_json='{"properties": {"command": {"type": "string"}}}',
    capabilities=pb.Capabilities(
        items=[pb.Capability(feature=feature) for feature in (pb.FEATURE_WORKSPACE, pb.FEATURE_PERMISSION_REQUESTS)]
    ),
)


@dataclass
class Done:
    """How the program ended."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line on standard output."""
        return self.out.rstrip("\n").rpartition("\n")[2]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which nothing of the user's own decides anything."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DRAGOMAN_")}
    # Routers here start no adapters by themselves, and the router that this user may have is not found.
    quiet = {"NO_COLOR": "", "TERM": "xterm", "DRAGOMAN_DETECT": "0", "XDG_RUNTIME_DIR": ""}
    return {**kept, **quiet, **(extra or {})}


async def start(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = asyncio.subprocess.PIPE,
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.PIPE,
) -> asyncio.subprocess.Process:
    """Start ``dragoman ARGUMENTS``."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dragoman.cli.main",
        *arguments,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment(env),
        cwd=cwd,
    )


async def finish(process: asyncio.subprocess.Process, stdin: bytes = b"") -> Done:
    """Wait until the program has ended."""
    out, err = await process.communicate(stdin if process.stdin else None)
    assert process.returncode is not None
    return Done(process.returncode, (out or b"").decode(), (err or b"").decode())


async def dragoman(
    *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Done:
    """Run ``dragoman ARGUMENTS`` to its end."""
    return await finish(await start(*arguments, env=env, cwd=cwd), stdin)


@contextlib.asynccontextmanager
async def routed(fake: FakeAdapter) -> AsyncIterator[dict[str, str]]:
    """Serve ``fake``; yields the environment in which the program finds it."""
    async with serving(fake) as address:
        yield {"DRAGOMAN_ROUTER": address}


def written_to(terminal: int) -> str:
    """Return what was written to a terminal whose programs are gone; it comes in pieces, cut anywhere."""
    data = b""
    with contextlib.suppress(OSError):  # which it answers at its end
        while piece := os.read(terminal, 65536):
            data += piece
    return data.decode().replace("\r\n", "\n")
