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

_WAYS: Final = {"task_key": "TASK", "adapter": "--adapter", "agent_id": "--agent", "company_id": "--company"}
"""What says which sessions are meant, as it is typed."""
_SHOWN_AT_ONCE: Final = 10


def _filters(function: _F) -> _F:
    """Add the options that say which sessions are meant."""
    options = (
        click.option("--adapter", metavar="NAME", help="Only of this adapter."),
        click.option("--agent", "agent_id", metavar="ID", help="Only of this agent; '' for none."),
        click.option("--company", "company_id", metavar="ID", help="Only of this company; '' for none."),
        router_option(finds_runs=True),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group("sessions", invoke_without_command=True)
@click.option("--task", "task_key", metavar="KEY", help="Only of this task; '' for none.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@json_option("Print one line of JSON per session, a StoredSession; so is what does not go to a terminal.")
@_filters
@click.pass_context
def sessions_command(
    context: click.Context, /, limit: int, as_json: bool, router: str | None, **wanted: str | None
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
        found = (await _matching(client, wanted, limit))[:limit]
        if as_json or not sys.stdout.isatty():
            print_json_lines(found)
        else:
            print_lines(_table(found))

    return run_connected(router, work)


@sessions_command.command("show")
@click.argument("task_key", metavar="[TASK]", required=False)
@json_option("Print the StoredSession as JSON.")
@_filters
def _show_command(as_json: bool, router: str | None, **wanted: str | None) -> int:
    """Tell all that is known of the session of TASK."""

    async def work(client: Client) -> None:
        session = _only(await _matching(client, wanted), wanted)
        print_json(session) if as_json else print_lines(_details(session))

    return run_connected(router, work)


@sessions_command.command("delete")
@click.argument("task_key", metavar="[TASK]", required=False)
@click.option("--all", "several", is_flag=True, help="All that match, should it be more than one.")
@_filters
def _delete_command(several: bool, router: str | None, **wanted: str | None) -> int:
    """Forget the session of TASK: its next run begins a new one. The agent's own files stay."""
    if not any(wanted.values()):
        raise click.UsageError("say which: a TASK, --adapter, --agent or --company")

    async def work(client: Client) -> int:
        found = await _matching(client, wanted)
        for session in found if several else [_only(found, wanted)]:
            await client.delete_session(session.key, session.adapter)
            print_lines([[Segment(f"forgotten: {_name(session)}")]])
        return EXIT_OK

    return run_connected(router, work)


async def _matching(
    client: Client, wanted: Mapping[str, str | None], limit: int = sys.maxsize
) -> list[router_pb2.StoredSession]:
    """Return the sessions that are meant, all of them unless no more than ``limit`` matter.

    What was given as empty must be empty. To a router that says nothing, so those that are not are left out here.
    """
    request = router_pb2.ListSessionsRequest()
    for name, value in wanted.items():
        setattr(request, name, value or "")
    empty = [name for name, value in wanted.items() if value == ""]
    found = await client.list_sessions(request, limit=sys.maxsize if empty else limit)
    return [session for session in found if not any(_facts(session)[name] for name in empty)]


def _facts(session: router_pb2.StoredSession) -> dict[str, str]:
    key = session.key
    return {
        "task_key": key.task_key,
        "adapter": session.adapter,
        "agent_id": key.agent_id,
        "company_id": key.company_id,
    }


def _only(found: Sequence[router_pb2.StoredSession], wanted: Mapping[str, str | None]) -> router_pb2.StoredSession:
    if len(found) == 1:
        return found[0]
    if not found:
        hint = "'dragoman sessions' lists those there are"
        raise ProblemError(Complaint("no stored session matches", hint=hint, exit_code=EXIT_USAGE))
    names = "; ".join(_name(session) for session in found[:_SHOWN_AT_ONCE])
    more = f" and {len(found) - _SHOWN_AT_ONCE} more" if len(found) > _SHOWN_AT_ONCE else ""
    ways = " and ".join(way for name, way in _WAYS.items() if wanted.get(name) is None)
    none = " ('' for none)" if any(not all(_facts(session).values()) for session in found) else ""
    hint = f"say which by {ways}{none}: {names}{more}"
    raise ProblemError(Complaint(f"{len(found)} stored sessions match", hint=hint, exit_code=EXIT_USAGE))


def _name(session: router_pb2.StoredSession) -> str:
    told = {name.partition("_")[0]: value for name, value in _facts(session).items()}
    return ", ".join(f"{name} {one_line(value, 80)}" for name, value in told.items() if value)


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
