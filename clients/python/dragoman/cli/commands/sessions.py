"""``dragoman sessions``: the sessions that routers store by company, agent, adapter and task."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._options import json_option, router_option
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display.printing import print_lines, print_list, print_response
from dragoman.cli.display.style import Segment, Style
from dragoman.cli.display.table import table
from dragoman.cli.display.text import count, moment, one_line
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_OK, EXIT_USAGE
from dragoman.client import Client
from dragoman.v1 import router_pb2

_F = TypeVar("_F", bound=Callable[..., Any])

_WAYS: Final = {"task_key": "TASK", "adapter": "--adapter", "agent_id": "--agent", "company_id": "--company"}
"""How each part of a session's key is given."""
_SHOWN_AT_ONCE: Final = 10


def _agent_option(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value == "@":
        raise click.BadParameter("give the name of a stored agent after '@'")
    return value


def _filters(function: _F) -> _F:
    """Add the options that select sessions."""
    options = (
        click.option("--adapter", metavar="NAME", help="Only sessions of this adapter."),
        click.option(
            "--agent",
            "agent_id",
            metavar="ID",
            callback=_agent_option,
            help="Only sessions of this agent; @NAME for a stored one, '' for none.",
        ),
        click.option("--company", "company_id", metavar="ID", help="Only sessions of this company; '' for none."),
        router_option(finds_runs=True),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group("sessions", invoke_without_command=True)
@click.option("--task", "task_key", metavar="KEY", help="Only sessions of this task; '' for none.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number.")
@json_option("Print one line of JSON per session, a StoredSession.")
@_filters
@click.pass_context
def sessions_command(
    context: click.Context, /, limit: int, as_json: bool, router: str | None, **selection: str | None
) -> int | None:
    """List stored sessions, last used first.

    'dragoman run --task KEY' resumes the session of a task, and stores it again.
    """
    if context.invoked_subcommand is not None:
        for name in context.params:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"options go after '{context.invoked_subcommand}'")
        return None

    async def work(client: Client) -> None:
        sessions = (await _matching(client, selection, limit))[:limit]
        print_list(sessions, _table(sessions), as_json=as_json)

    return run_connected(router, work)


@sessions_command.command("show")
@click.argument("task_key", metavar="[TASK]", required=False)
@json_option("Print the StoredSession as JSON.")
@_filters
def _show_command(as_json: bool, router: str | None, **selection: str | None) -> int:
    """Show the details of the session of TASK."""

    async def work(client: Client) -> None:
        session = _only(await _matching(client, selection), selection)
        print_response(session, _details(session), as_json=as_json)

    return run_connected(router, work)


@sessions_command.command("delete")
@click.argument("task_key", metavar="[TASK]", required=False)
@click.option("--all", "several", is_flag=True, help="Delete all sessions that match.")
@_filters
def _delete_command(several: bool, router: str | None, **selection: str | None) -> int:
    """Delete the stored session of TASK: its next run starts a new session. The agent's own files are kept."""
    if not any(selection.values()):
        raise click.UsageError("no session selected; give TASK, --adapter, --agent or --company")

    async def work(client: Client) -> int:
        sessions = await _matching(client, selection)
        for session in sessions if several else [_only(sessions, selection)]:
            await client.delete_session(session.key, session.adapter)
            print_lines([[Segment(f"deleted: {_name(session)}")]])
        return EXIT_OK

    return run_connected(router, work)


async def _matching(
    client: Client, selection: Mapping[str, str | None], limit: int = sys.maxsize
) -> list[router_pb2.StoredSession]:
    """Return the selected sessions, at most ``limit`` of them where the router can select them.

    A value that was given as '' must be empty; for a router it selects everything, so the others are dropped here.
    So are those of other stored agents than the one asked for: a router that does not know that field ignores it.
    """
    request = router_pb2.ListSessionsRequest()
    for name, value in selection.items():
        if name == "agent_id" and value and value.startswith("@"):
            request.agent_name = value[1:]
        else:
            setattr(request, name, value or "")
    empty, agent = [name for name, value in selection.items() if value == ""], request.agent_name
    sessions = await client.list_sessions(request, limit=sys.maxsize if empty or agent else limit)
    of_agent = [session for session in sessions if not agent or session.agent_name == agent]
    return [session for session in of_agent if not any(_facts(session)[name] for name in empty)]


def _facts(session: router_pb2.StoredSession) -> dict[str, str]:
    key = session.key
    return {
        "task_key": key.task_key,
        "adapter": session.adapter,
        "agent_id": key.agent_id,
        "company_id": key.company_id,
    }


def _only(
    sessions: Sequence[router_pb2.StoredSession], selection: Mapping[str, str | None]
) -> router_pb2.StoredSession:
    if len(sessions) == 1:
        return sessions[0]
    if not sessions:
        hint = "'dragoman sessions' lists the stored sessions"
        raise CommandError(ErrorReport("no stored session matches", hint=hint, exit_code=EXIT_USAGE))
    names = "; ".join(_name(session) for session in sessions[:_SHOWN_AT_ONCE])
    more = f" and {len(sessions) - _SHOWN_AT_ONCE} more" if len(sessions) > _SHOWN_AT_ONCE else ""
    ways = " and ".join(way for name, way in _WAYS.items() if selection.get(name) is None)
    none = " ('' for none)" if any(not all(_facts(session).values()) for session in sessions) else ""
    hint = f"select one by {ways}{none}: {names}{more}"
    raise CommandError(ErrorReport(f"{len(sessions)} stored sessions match", hint=hint, exit_code=EXIT_USAGE))


def _name(session: router_pb2.StoredSession) -> str:
    parts = {name.partition("_")[0]: value for name, value in _facts(session).items()}
    return ", ".join(f"{name} {one_line(value, 80)}" for name, value in parts.items() if value)


def _table(sessions: Sequence[router_pb2.StoredSession]) -> list[list[Segment]]:
    head = ("TASK", "ADAPTER", "AGENT", "RUNS", "USED (UTC)", "SESSION")
    return table(head, [_row(session) for session in sessions], empty="no stored sessions")


def _row(session: router_pb2.StoredSession) -> tuple[str, ...]:
    return (
        one_line(session.key.task_key, 40) or "-",
        one_line(session.adapter, 30),
        _agent(session, 30) or "-",
        count(session.runs),
        moment(session.used_at, "%Y-%m-%d %H:%M"),
        one_line(session.handle.display_id or session.handle.native_id, 60),
    )


def _agent(session: router_pb2.StoredSession, width: int = 0) -> str:
    """Return the stored agent and the caller's agent of a session."""
    names = (session.agent_name and f"@{session.agent_name}", session.key.agent_id)
    text = " ".join(name for name in names if name)
    return one_line(text, width) if width else text


def _details(session: router_pb2.StoredSession) -> list[list[Segment]]:
    handle, key = session.handle, session.key
    facts = {
        "task": key.task_key,
        "agent": _agent(session),
        "company": key.company_id,
        "adapter": " ".join(part for part in (session.adapter, handle.adapter_version) if part),
        "directory": handle.cwd,
        "created": moment(session.created_at),
        "used": moment(session.used_at),
        "runs": f"{count(session.runs)}, last {session.last_run_id}",
        "tokens": f"{count(session.input_tokens)} in, not cached" if session.input_tokens else "",
        "summary": session.last_summary,
    }
    lines = [[Segment(one_line(handle.display_id or handle.native_id), Style.STRONG)]]
    lines += [[Segment(f"{name:9} {one_line(value, 600)}")] for name, value in facts.items() if value]
    return lines
