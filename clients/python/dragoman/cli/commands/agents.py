"""``dragoman agents``: agents that a router stores, which requests name."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._options import json_option, router_option
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display.printing import print_json, print_json_lines, print_lines
from dragoman.cli.display.style import Segment
from dragoman.cli.display.summary import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from dragoman.cli.display.table import table
from dragoman.cli.display.text import one_line
from dragoman.cli.error_report import ErrorReport
from dragoman.v1 import router_pb2

if TYPE_CHECKING:
    from dragoman.client import Client

_EXAMPLES = """\b
Examples:
  dragoman agents create reviewer.toml
  dragoman run @reviewer "Review the last commit."
  dragoman agents show reviewer > reviewer.toml
  dragoman agents update reviewer.toml
"""
_HINT = "the guide on stored agents documents the file"
_FILE = click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))


@click.group("agents", invoke_without_command=True, epilog=_EXAMPLES)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum number.")
@json_option("Print one line of JSON per agent, a StoredAgent.")
@router_option()
@click.pass_context
def agents_command(context: click.Context, /, limit: int, as_json: bool, router: str | None) -> int | None:
    """List the agents that a router stores, by name. 'dragoman run @NAME' runs one."""
    if context.invoked_subcommand is not None:
        return None

    async def work(client: "Client") -> None:
        agents = await client.list_agents(limit=limit)
        print_json_lines(agents) if as_json else print_lines(_table(agents))

    return run_connected(router, work)


@agents_command.command("show")
@click.argument("name")
@json_option("Print the StoredAgent as JSON.")
@router_option()
def _show_command(name: str, as_json: bool, router: str | None) -> int:
    """Print the agent NAME as a file for 'dragoman agents update'."""

    async def work(client: "Client") -> None:
        from dragoman.cli.agent_file import AgentFileError, agent_text  # noqa: PLC0415 - not before a router starts

        agent = await client.get_agent(name.removeprefix("@"))
        if as_json:
            print_json(agent)
            return
        try:
            sys.stdout.write(agent_text(agent))
        except AgentFileError as error:
            message = f"agent {agent.name!r} cannot be shown as a file: {error}"
            raise CommandError(ErrorReport(message, hint="'--json' shows all of it")) from error

    return run_connected(router, work)


@agents_command.command("create")
@_FILE
@router_option()
def _create_command(file: Path, router: str | None) -> int:
    """Store the agent in FILE, in TOML; '-' reads standard input."""
    agent = _read(file)

    async def work(client: "Client") -> int:
        return await _stored(client, agent, is_new=True)

    return run_connected(router, work)


@agents_command.command("update")
@_FILE
@router_option()
def _update_command(file: Path, router: str | None) -> int:
    """Replace the stored agent that FILE names; with a version in FILE, only that version."""
    agent = _read(file)

    async def work(client: "Client") -> int:
        if not agent.version:
            agent.version = (await client.get_agent(agent.name)).version
        return await _stored(client, agent, is_new=False)

    return run_connected(router, work)


@agents_command.command("delete")
@click.argument("name")
@router_option()
def _delete_command(name: str, router: str | None) -> int:
    """Delete the agent NAME. Runs that it has continue."""

    async def work(client: "Client") -> int:
        if await client.delete_agent(name.removeprefix("@")):
            print_lines([[Segment(f"deleted: {one_line(name)}")]])
            return EXIT_OK
        hint = "'dragoman agents' lists the stored agents"
        raise CommandError(ErrorReport(f"no stored agent {one_line(name)}", hint=hint, exit_code=EXIT_FAILED))

    return run_connected(router, work)


async def _stored(client: "Client", agent: router_pb2.StoredAgent, *, is_new: bool) -> int:
    """Store an agent, and print its version; what is wrong is named as in its file."""
    from dragoman.client import DragomanError, FieldViolation  # noqa: PLC0415 - they import gRPC

    try:
        kept = await (client.create_agent(agent) if is_new else client.update_agent(agent))
    except DragomanError as error:
        error.violations = [
            FieldViolation(_key_of(violation.path, agent), violation.description) for violation in error.violations
        ]
        if error.violations:
            error.message = f"{error.violations[0].path}: {error.violations[0].description}"
        raise
    what = "stored" if is_new else "updated"
    print_lines([[Segment(f"{what}: {one_line(kept.name)}, version {kept.version}")]])
    return EXIT_OK


def _key_of(path: str, agent: router_pb2.StoredAgent) -> str:
    """Return the key in a file for the path of a field."""
    key = path.removeprefix("agent.")
    for number, server in enumerate(agent.mcp_servers):
        for transport in ("stdio.", "http.", ""):
            key = key.replace(f"mcp_servers[{number}].{transport}", f"mcp_servers.{server.name}.")
    for name in ("start_up", "idle", "wall", "tool_call", "grace"):
        if key == f"limits.{name}":
            return f"{key}_s"
    return "permissions.default" if key == "permissions.default_decision" else key


def _read(file: Path) -> router_pb2.StoredAgent:
    from dragoman.cli.agent_file import AgentFileError, parse_agent  # noqa: PLC0415 - needed once

    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CommandError(ErrorReport(f"{file}: {error.strerror}", exit_code=EXIT_USAGE)) from error
    try:
        return parse_agent(data)
    except AgentFileError as error:
        raise CommandError(ErrorReport(f"{file}: {error}", hint=_HINT, exit_code=EXIT_USAGE)) from error


def _table(agents: Sequence[router_pb2.StoredAgent]) -> list[list[Segment]]:
    if not agents:
        return [[Segment("no stored agents")]] if sys.stdout.isatty() else []
    return table(("NAME", "ADAPTER", "MODEL", "VERSION", "DESCRIPTION"), [_row(agent) for agent in agents])


def _row(agent: router_pb2.StoredAgent) -> tuple[str, ...]:
    return (
        one_line(agent.name, 64),
        one_line(agent.adapter, 30),
        one_line(agent.model, 30) or "-",
        str(agent.version),
        one_line(agent.description, 80),
    )
