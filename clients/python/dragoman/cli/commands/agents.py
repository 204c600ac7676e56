"""``dragoman agents``: agents that a router stores, which requests name."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._options import json_option, router_option
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display.printing import print_json, print_lines, print_list
from dragoman.cli.display.style import Segment
from dragoman.cli.display.table import table
from dragoman.cli.display.text import one_line
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from dragoman.v1 import router_pb2

if TYPE_CHECKING:
    from dragoman.client import Client

_EXAMPLES = """\b
Examples:
  dragoman agents create reviewer.toml
  dragoman run @reviewer "Review the last commit."
  dragoman agents show reviewer > reviewer.toml
  dragoman agents update reviewer.toml
  dragoman agents use reviewer --task release-1.2
  dragoman run @ "Review it." --task release-1.2
"""
_HINT = "the guide on stored agents documents the file"
_COMPANY = click.option("--company", metavar="ID", default="", help="The company that the task is of.")
_FILE = click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))


@click.group("agents", invoke_without_command=True, epilog=_EXAMPLES)
@click.option("--task", metavar="KEY", default="", help="Mark the active agent of this task.")
@_COMPANY
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum number.")
@json_option("Print one line of JSON per agent, a StoredAgent.")
@router_option()
@click.pass_context
def agents_command(
    context: click.Context, /, task: str, company: str, limit: int, as_json: bool, router: str | None
) -> int | None:
    """List the agents that a router stores, by name. 'dragoman run @NAME' runs one."""
    if context.invoked_subcommand is not None:
        return None
    if task and as_json:
        raise click.UsageError(
            "--json has no marks: 'dragoman agents show --task KEY --json' prints the active agent"
        )

    async def work(client: "Client") -> None:
        agents = await client.list_agents(limit=limit)
        active = await _active_name(client, task, company) if task else None
        print_list(agents, _table(agents, active), as_json=as_json)

    return run_connected(router, work)


@agents_command.command("show")
@click.argument("name", required=False, default="")
@click.option("--task", metavar="KEY", default="", help="The active agent of this task, in place of NAME.")
@_COMPANY
@json_option("Print the StoredAgent as JSON.")
@router_option()
def _show_command(name: str, task: str, company: str, as_json: bool, router: str | None) -> int:
    """Print the agent NAME as a file for 'dragoman agents update'."""
    if bool(name) == bool(task):
        raise click.UsageError("give NAME, or --task KEY for the active agent of a task")

    async def work(client: "Client") -> None:
        from dragoman.cli.agent_file import AgentFileError, agent_text  # noqa: PLC0415 - not before a router starts

        agent = await client.get_agent(name.removeprefix("@"), task_key=task, company_id=company)
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


@agents_command.command("use")
@click.argument("name", required=False, default="")
@click.option("--task", metavar="KEY", required=True, help="The task.")
@_COMPANY
@click.option("--none", "is_none", is_flag=True, help="Leave the task without an active agent.")
@router_option()
def _use_command(name: str, task: str, company: str, is_none: bool, router: str | None) -> int:
    """Make NAME the active agent of a task: 'dragoman run @ --task KEY' runs it."""
    name = name.removeprefix("@")
    if bool(name) == is_none:
        raise click.UsageError("give NAME, or --none to leave the task without an active agent")

    async def work(client: "Client") -> int:
        before = await client.set_active_agent(task, name, company_id=company)
        now = one_line(name) or "none"
        print_lines([[Segment(f"active at {one_line(task)}: {now}, was {one_line(before) or 'none'}")]])
        return EXIT_OK

    return run_connected(router, work)


async def _active_name(client: "Client", task: str, company: str) -> str:
    """Return the name of a task's active agent; empty if it has none."""
    from dragoman.client import DragomanError, Reason  # noqa: PLC0415 - they import gRPC

    try:
        return (await client.get_agent(task_key=task, company_id=company)).name
    except DragomanError as error:
        if error.reason is not Reason.AGENT_NOT_FOUND:
            raise
    return ""


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


def _table(agents: Sequence[router_pb2.StoredAgent], active: str | None) -> list[list[Segment]]:
    """Return the lines of a table; with a column of marks if the active agent of a task is given, or '' for none."""
    head: tuple[str, ...]
    head, rows = ("NAME", "ADAPTER", "MODEL", "VERSION", "DESCRIPTION"), [_row(agent) for agent in agents]
    if active is not None:
        marks = ["*" if agent.name == active else "-" for agent in agents]
        head, rows = ("ACTIVE", *head), [(mark, *row) for mark, row in zip(marks, rows, strict=True)]
    return table(head, rows, empty="no stored agents")


def _row(agent: router_pb2.StoredAgent) -> tuple[str, ...]:
    return (
        one_line(agent.name, 64),
        one_line(agent.adapter, 30),
        one_line(agent.model, 30) or "-",
        str(agent.version),
        one_line(agent.description, 80),
    )
