"""``dragoman sessions``: the conversations that routers keep by company, agent, adapter and task."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from dragoman.cli._connect import run_connected
from dragoman.cli._failures import Complaint
from dragoman.cli._problem import ProblemError
from dragoman.cli._show import print_json, print_json_lines, print_lines
from dragoman.cli._style import Segment, Style
from dragoman.cli._summary import EXIT_OK, EXIT_USAGE
from dragoman.cli._table import table
from dragoman.cli._text import count, one_line
from dragoman.cli.commands._options import json_option, router_option
from dragoman.client import Client
from dragoman.v1 import router_pb2
from google.protobuf import timestamp_pb2

_F = TypeVar("_F", bound=Callable[..., Any])

_MOST: Final = 1000
"""Sessions that one command looks at."""
_SHOWN_AT_ONCE: Final = 10


def _filters(function: _F) -> _F:
    """Add the options that say which sessions are meant."""
    options = (
        click.option("--adapter", default="", metavar="NAME", help="Only of this adapter."),
        click.option("--agent", "agent_id", default="", metavar="ID", help="Only of this agent."),
        click.option("--company", "company_id", default="", metavar="ID", help="Only of this company."),
        router_option(finds_runs=True),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group("sessions", invoke_without_command=True)
@click.option("--task", "task_key", default="", metavar="KEY", help="Only of this task.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@json_option("Print one line of JSON per session, a StoredSession; so is what does not go to a terminal.")
@_filters
@click.pass_context
def sessions_command(
    context: click.Context, /, limit: int, as_json: bool, router: str | None, **wanted: str
) -> int | None:
    """List stored sessions, last used first.

    'dragoman run --task KEY' goes on with the session of a task, and keeps it.
    """
    if context.invoked_subcommand is not None:
        for name in context.params:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"options go behind '{context.invoked_subcommand}'")
        return None

    async def work(client: Client) -> None:
        found = await client.list_sessions(_request(wanted), limit=limit)
        if as_json or not sys.stdout.isatty():
            print_json_lines(found)
        else:
            print_lines(_table(found))

    return run_connected(router, work)


@sessions_command.command("show")
@click.argument("task_key", metavar="[TASK]", required=False, default="")
@json_option("Print the StoredSession as JSON.")
@_filters
def _show_command(as_json: bool, router: str | None, **wanted: str) -> int:
    """Tell all that is known of the session of TASK."""

    async def work(client: Client) -> None:
        session = _only(await client.list_sessions(_request(wanted), limit=_MOST))
        print_json(session) if as_json else print_lines(_details(session))

    return run_connected(router, work)


@sessions_command.command("delete")
@click.argument("task_key", metavar="[TASK]", required=False, default="")
@click.option("--all", "several", is_flag=True, help="All that match, should it be more than one.")
@_filters
def _delete_command(several: bool, router: str | None, **wanted: str) -> int:
    """Forget the session of TASK: its next run begins a new one. The agent's own files stay."""
    if not any(wanted.values()):
        raise click.UsageError("say which: a TASK, --adapter, --agent or --company")

    async def work(client: Client) -> int:
        found = await client.list_sessions(_request(wanted), limit=_MOST)
        for session in found if several else [_only(found)]:
            await client.delete_session(session.key, session.adapter)
            print_lines([[Segment(f"forgotten: {_name(session)}")]])
        return EXIT_OK

    return run_connected(router, work)


def _request(wanted: Mapping[str, str]) -> router_pb2.ListSessionsRequest:
    request = router_pb2.ListSessionsRequest()
    for name, value in wanted.items():
        setattr(request, name, value)
    return request


def _only(found: Sequence[router_pb2.StoredSession]) -> router_pb2.StoredSession:
    if len(found) == 1:
        return found[0]
    if not found:
        hint = "'dragoman sessions' lists those there are"
        raise ProblemError(Complaint("no stored session matches", hint=hint, exit_code=EXIT_USAGE))
    names = "; ".join(_name(session) for session in found[:_SHOWN_AT_ONCE])
    more = f" and {len(found) - _SHOWN_AT_ONCE} more" if len(found) > _SHOWN_AT_ONCE else ""
    hint = f"say which by --adapter, --agent and --company: {names}{more}"
    raise ProblemError(Complaint(f"{len(found)} stored sessions match", hint=hint, exit_code=EXIT_USAGE))


def _name(session: router_pb2.StoredSession) -> str:
    key = session.key
    facts = {"task": key.task_key, "adapter": session.adapter, "agent": key.agent_id, "company": key.company_id}
    return ", ".join(f"{name} {one_line(value, 80)}" for name, value in facts.items() if value)


def _table(found: Sequence[router_pb2.StoredSession]) -> list[list[Segment]]:
    if not found:
        return [[Segment("no stored sessions")]]
    return table(("TASK", "ADAPTER", "AGENT", "RUNS", "USED (UTC)", "SESSION"), [_row(session) for session in found])


def _row(session: router_pb2.StoredSession) -> tuple[str, ...]:
    return (
        one_line(session.key.task_key, 40) or "-",
        one_line(session.adapter, 30),
        one_line(session.key.agent_id, 30) or "-",
        count(session.runs),
        _when(session.used_at, "%Y-%m-%d %H:%M"),
        one_line(session.handle.display_id or session.handle.native_id, 60),
    )


def _when(time: timestamp_pb2.Timestamp, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    return time.ToDatetime().strftime(form) if time.ListFields() else ""


def _details(session: router_pb2.StoredSession) -> list[list[Segment]]:
    handle, key = session.handle, session.key
    facts = {
        "task": key.task_key,
        "agent": key.agent_id,
        "company": key.company_id,
        "adapter": " ".join(part for part in (session.adapter, handle.adapter_version) if part),
        "works in": handle.cwd,
        "begun": _when(session.created_at),
        "used": _when(session.used_at),
        "runs": f"{count(session.runs)}, last {session.last_run_id}",
        "tokens": f"{count(session.input_tokens)} in, not from a cache" if session.input_tokens else "",
        "summary": session.last_summary,
    }
    lines = [[Segment(one_line(handle.display_id or handle.native_id), Style.STRONG)]]
    lines += [[Segment(f"{name:9} {one_line(value, 600)}")] for name, value in facts.items() if value]
    return lines
