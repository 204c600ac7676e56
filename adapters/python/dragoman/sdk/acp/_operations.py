"""What is done for the agent: the protocol's file and terminal methods, on a workbench."""

import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._output.outcome import signal_name
from dragoman.sdk._process.host_services import Command, HostServices

Done: TypeAlias = Awaitable[JsonValue]
"""The result of a method, when it is there."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command that the agent wants run."""

    command: str
    args: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    most_bytes: int | None = None

    @property
    def shown(self) -> str:
        """The command line, as policy and people see it."""
        return shlex.join((self.command, *self.args)) if self.args else self.command

    @property
    def argv(self) -> tuple[str, ...]:
        """What is started: without arguments, agents mean a line for the shell."""
        if self.args or os.path.isabs(self.command) or not set(self.command) & _SHELL:  # noqa: PTH117 - a string is at hand
            return self.command, *self.args
        return "/bin/sh", "-c", self.command


_SHELL: Final = frozenset(" \t\n;&|<>`$(){}*?\"'")


async def read(services: HostServices, path: str, line: int | None, limit: int | None) -> JsonValue:
    """Do ``fs/read_text_file``.

    Args:
        services: where.
        path: the file.
        line: the first line to return, from 1. None: from the beginning.
        limit: how many lines. None: all.
    """
    content = await services.read_text(path)
    if line is not None or limit is not None:
        first = max(0, (line or 1) - 1)
        lines = content.split("\n")[first:]
        content = "\n".join(lines if limit is None else lines[:limit])
    return {"content": content}


async def write(services: HostServices, path: str, content: str) -> JsonValue:
    """Do ``fs/write_text_file``."""
    await services.write_text(path, content)
    return {}


async def start(services: HostServices, command_line: CommandLine) -> JsonValue:
    """Do ``terminal/create``."""
    terminal = await services.start(
        command_line.argv, cwd=command_line.cwd, env=command_line.env, most_bytes=command_line.most_bytes
    )
    return {"terminalId": terminal}


async def _output(services: HostServices, terminal_id: str) -> JsonValue:
    command = services.command(terminal_id)
    result: dict[str, JsonValue] = {"output": command.output, "truncated": command.truncated}
    if command.exit is not None:
        result["exitStatus"] = _exit_status(command)
    return result


async def _wait(services: HostServices, terminal_id: str) -> JsonValue:
    command = services.command(terminal_id)
    await command.ended.wait()
    return _exit_status(command)


async def _kill(services: HostServices, terminal_id: str) -> JsonValue:
    services.kill(terminal_id)
    return {}


async def _release(services: HostServices, terminal_id: str) -> JsonValue:
    services.release(terminal_id)
    return {}


def _exit_status(command: Command) -> dict[str, JsonValue]:
    code, signal = command.exit or (None, None)
    return {"exitCode": code, "signal": signal_name(signal) if signal else None}


OF_TERMINALS: Final[Mapping[str, Callable[[HostServices, str], Done]]] = {
    "terminal/output": _output,
    "terminal/wait_for_exit": _wait,
    "terminal/kill": _kill,
    "terminal/release": _release,
}
"""Methods about one terminal."""
