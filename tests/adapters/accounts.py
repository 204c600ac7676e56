"""Programs that pretend to be an agent which is asked for its account."""

import json
import os
from pathlib import Path

from dragoman.sdk import Adapter
from dragoman.v1 import adapter_pb2 as api


def install(folder: Path, name: str, script: str) -> dict[str, str]:
    """Put a program on PATH that runs a script of the shell; return the variables that find it."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.defpath}", "HOME": str(folder)}


def printing(*frames: object) -> str:
    """Return what prints objects, one a line, and waits for the end of its input."""
    return "".join(f"echo '{json.dumps(frame)}'\n" for frame in frames) + "while read more; do :; done"


async def steps(adapter: Adapter, env: dict[str, str], method: str = "") -> list[api.LoginResponse]:
    """Return the steps of a login."""
    return [step async for step in adapter.log_in(api.LoginRequest(env=env, method=method))]
