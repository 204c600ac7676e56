"""A program that passes for Claude Code: it prints what a test wants, and ends as it wants."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dragoman.adapters.claude_code.adapter import ClaudeCodeAdapter
from dragoman.client import Client, execute_request
from dragoman.sdk import AdapterServer
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb


class Impatient(ClaudeCodeAdapter):
    """Waits less for what lives on after its final message."""

    linger_s: ClassVar[float] = 0.3


@dataclass
class Pretender:
    """Lays out the program in a directory of its own."""

    root: Path
    version: str = "2.1.330 (Claude Code)"
    home: Path = field(init=False)
    program: Path = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.root / "home"
        self.program = self.root / "bin" / "claude"
        self.home.mkdir()
        self.program.parent.mkdir()
        (self.root / "work").mkdir()
        self.acts("exit 0")

    def acts(self, *script: str, on_version: str = "") -> None:
        """Say what it does once it has read its prompt, in shell; files are named relative to ``root``."""
        answer = on_version or f"echo '{self.version}'; exit 0"
        body = "\n".join(script)
        text = f"#!/bin/sh\n[ \"$1\" = --version ] && {{ {answer}; }}\ncd '{self.root}'\n"
        text += 'echo "$@" >> argv\nread -r prompt\n' if "auth status" not in body else ""
        self.program.write_text(f"{text}{body}\n")
        self.program.chmod(0o755)

    def says(self, name: str, data: bytes) -> str:
        """Return the command that prints these bytes."""
        (self.root / name).write_bytes(data)
        return f"cat {name}"

    @property
    def env(self) -> dict[str, str]:
        """The environment in which it is found."""
        return {"PATH": f"{self.program.parent}:/usr/bin:/bin", "HOME": str(self.home)}

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Client]:
        """Serve the adapter for it."""
        server = AdapterServer(Impatient(), [f"unix:{self.root}/s"])
        await server.start()
        async with Client(server.addresses[0]) as client:
            yield client
        await server.stop(0)

    async def run(self, **fields: Any) -> list[pb.AgentEvent]:
        """Run it to its end, with the stream checked."""
        request = execute_request("claude_code", "Do it.", cwd=str(self.root / "work"), env=self.env)
        request.MergeFrom(api.ExecuteRequest(**fields))
        async with self.served() as client, client.execute(request) as stream:
            events = [event async for event in stream]
        check_stream(events)
        return events
