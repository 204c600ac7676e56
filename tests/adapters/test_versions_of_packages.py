"""Detect does not start an agent that takes long and whose npm package says its version; TestEnvironment does."""

import json
import os
from pathlib import Path

import pytest
from dragoman.adapters.gemini_cli.adapter import GeminiCliAdapter
from dragoman.adapters.pi.adapter import PiAdapter
from dragoman.sdk import CommandLineAdapter
from dragoman.sdk.detection import Checks

SLOW = [GeminiCliAdapter, PiAdapter]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("make", SLOW)
@pytest.mark.parametrize(("ending", "errors"), [("echo 7.8.9", []), ("exit 127", ["executable_broken"])])
async def test_only_the_test_of_the_environment_starts_it(
    tmp_path: Path, make: type[CommandLineAdapter], ending: str, errors: list[str]
) -> None:
    agent = make()
    name = agent.spec.executables[0]
    script = program(tmp_path / "lib/node_modules" / agent.spec.npm_package / "cli.js", "#!/usr/bin/env node\n")
    about = {"name": agent.spec.npm_package, "version": "7.8.9", "bin": {name: "cli.js"}}
    (script.parent / "package.json").write_text(json.dumps(about))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / name).symlink_to(script)
    started = tmp_path / "started"
    program(tmp_path / "bin/node", f"#!/bin/sh\ntouch {started}\n{ending}\n")
    env = {"PATH": f"{tmp_path}/bin:{os.defpath}", "HOME": str(tmp_path)}

    found = await agent.look(env, {})
    assert (found.available, found.version, started.exists()) == (True, "7.8.9", False)
    assert not [problem.code for problem in found.problems if problem.code.startswith(("executable", "version"))]
    assert await broken(agent, env) == errors
    started.unlink()
    program(tmp_path / "bin/node", f"#!/bin/sh\ntouch {started}\nexit 127\n")
    assert await broken(agent, env) == ["executable_broken"]
    assert started.exists(), "each time"


async def broken(agent: CommandLineAdapter, env: dict[str, str]) -> list[str]:
    checks = Checks()
    await agent.check_agent(env, {}, checks)
    return [check.code for check in checks.items if check.code == "executable_broken"]
