"""Looking for programs and asking them short questions. Nothing here raises for what it finds, or takes long."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+(?:\.\d+)*(?:[-+][0-9A-Za-z.+-]+)?)")
_CHUNK_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer of a program to a short question."""

    exit_code: int | None
    """None if it could not be started, was ended by a signal, or was killed."""
    stdout: str
    stderr: str
    timed_out: bool = False
    error: str = ""
    """Why it could not be started, e.g. "Permission denied"."""


def find_executable(
    names: Sequence[str], path_env: str, overrides: Sequence[str] = (), extra_dirs: Sequence[str] = ()
) -> Path | None:
    """Return the absolute path of the first program found; None if there is none.

    Args:
        names: names to look for on the path, best first.
        path_env: the value of PATH to look on.
        overrides: paths or names asked for; if any is given, nothing else is looked for.
        extra_dirs: directories to look in after PATH.
    """
    search = os.pathsep.join([path_env, *extra_dirs]) if extra_dirs else path_env
    for name in overrides or names:
        # With an empty path `which` would fall back to a default of its own.
        found = shutil.which(name, path=search or os.devnull)
        if found:
            return Path(found).absolute()
    return None


def parse_version(text: str) -> str | None:
    """Return the first version number in ``text``, e.g. ``2.1.330``; None if there is none."""
    match = _VERSION.search(text)
    return match.group(1) if match else None


async def probe(argv: Sequence[str], env: Mapping[str, str], timeout_s: float, max_output: int = 64 * 1024) -> Probe:
    """Start a program, give it no input, and return what it said.

    It runs in a session of its own; at the time limit, and afterwards in any case, its whole group is killed, so
    that neither one that ignores SIGTERM nor one that leaves a child behind costs more than ``timeout_s``.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Probe(
            None, "", "", error=(error.strerror if isinstance(error, OSError) else "") or "cannot be started"
        )
    assert process.stdout is not None
    assert process.stderr is not None
    reads = asyncio.gather(_read(process.stdout, max_output), _read(process.stderr, max_output), process.wait())
    try:
        stdout, stderr, code = await asyncio.wait_for(reads, timeout_s)
    except TimeoutError:
        return Probe(None, "", "", timed_out=True)
    finally:
        _kill_group(process.pid)
        await process.wait()
    return Probe(code if code >= 0 else None, stdout, stderr)


async def _read(stream: asyncio.StreamReader, most: int) -> str:
    kept = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        kept += chunk[: max(0, most - len(kept))]
    return kept.decode("utf-8", "replace")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
