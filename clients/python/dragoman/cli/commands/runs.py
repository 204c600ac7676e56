"""``dragoman runs`` and ``show``: what is known of runs, finished ones too."""

import asyncio
import contextlib
import sys
from collections.abc import Sequence

import click
from dragoman.cli import _phrases, _values
from dragoman.cli._connect import run_connected
from dragoman.cli._show import print_json, print_lines
from dragoman.cli._style import Segment, Style
from dragoman.cli._summary import (
    has_doubtful_processes,
    last_line,
    outcome_style,
    processes,
)
from dragoman.cli._table import table
from dragoman.cli._text import one_line, word
from dragoman.cli.commands._options import json_option, router_option
from dragoman.client import Client, DragomanError
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from google.protobuf import timestamp_pb2

_EARLIER_S = 2.0
"""How long what is known already waits for how earlier attempts ended."""
_OUTCOMES = {name.removeprefix("OUTCOME_").lower(): number for name, number in pb.Outcome.items() if number}


@click.command("runs")
@click.option("--adapter", default="", help="Only of this adapter.")
@click.option("--agent", default="", metavar="ID", help="Only of this agent.")
@click.option("--task", default="", metavar="KEY", help="Only of this task.")
@click.option("--label", "label_pairs", multiple=True, metavar="KEY=VALUE", help="Only with this mark.")
@click.option("--outcome", type=click.Choice(list(_OUTCOMES)), help="Only those that ended so.")
@click.option("--live", is_flag=True, help="Only those that are under way.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
@json_option("Print a ListRunsResponse as JSON.")
@router_option(finds_runs=True)
def runs_command(
    adapter: str,
    agent: str,
    task: str,
    label_pairs: tuple[str, ...],
    outcome: str | None,
    live: bool,
    limit: int,
    as_json: bool,
    router: str | None,
) -> int:
    """List runs, newest first; finished ones too."""
    filters = router_pb2.ListRunsRequest(
        adapter=adapter,
        agent_id=agent,
        task_key=task,
        outcome=_OUTCOMES[outcome] if outcome else pb.OUTCOME_UNSPECIFIED,
        live_only=live,
        labels=_values.labels(label_pairs),
    )

    async def work(client: Client) -> None:
        runs = await client.list_runs(filters, limit=limit)
        if as_json:
            print_json(router_pb2.ListRunsResponse(runs=runs))
        else:
            print_lines(_run_lines(runs))

    return run_connected(router, work)


@click.command("show")
@click.argument("run_id", metavar="RUN")
@json_option("Print the GetRunResponse as JSON.")
@router_option(finds_runs=True)
def show_command(run_id: str, as_json: bool, router: str | None) -> int:
    """Tell all that is known of RUN, and what it waits for."""

    async def work(client: Client) -> None:
        response = await client.get_run(run_id)
        if as_json:
            print_json(response)
        else:
            print_lines(_details(response, await _earlier_attempts(client, response.run)))

    return run_connected(router, work)


def _state(run: router_pb2.RunSummary) -> str:
    if run.HasField("result"):
        return word(pb.Outcome.DESCRIPTOR, run.result.outcome, "OUTCOME_")
    return word(pb.RunPhase.DESCRIPTOR, run.phase, "RUN_PHASE_")


def _when(time: timestamp_pb2.Timestamp) -> str:
    return time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC") if time.ListFields() else ""


def _run_lines(runs: Sequence[router_pb2.RunSummary]) -> list[list[Segment]]:
    if not runs:
        return [[Segment("no such runs")]] if sys.stdout.isatty() else []
    head = ("RUN", "STATE", "ADAPTER", "ACCEPTED (UTC)", "SEQUENCE", "TASK")
    return table(head, [_run_row(run) for run in runs])


def _run_row(run: router_pb2.RunSummary) -> tuple[str, ...]:
    accepted = ""
    if run.HasField("accepted_at"):
        accepted = run.accepted_at.ToDatetime().strftime(
            "%m-%d %H:%M:%S" if sys.stdout.isatty() else "%Y-%m-%dT%H:%M:%SZ"
        )
    sequence, task = str(run.last_sequence), one_line(run.task_key, 80)
    return one_line(run.run_id), _state(run), one_line(run.adapter, 60), accepted, sequence, task


async def _earlier_attempts(client: Client, run: router_pb2.RunSummary) -> list[pb.AgentEvent]:
    """Return how the attempts before the present one ended, as far as that can be told within a moment."""
    ended: list[pb.AgentEvent] = []
    if run.attempt > 1:
        with contextlib.suppress(DragomanError, TimeoutError):
            async with asyncio.timeout(_EARLIER_S), client.attach(run.run_id, adapter=run.adapter) as stream:
                async for event in stream:
                    if event.HasField("replay_done") or event.attempt >= run.attempt:
                        break
                    if event.HasField("attempt_ended"):
                        ended.append(event)
    return ended


def _details(response: router_pb2.GetRunResponse, attempts: Sequence[pb.AgentEvent]) -> list[list[Segment]]:
    run = response.run
    result = run.result
    facts = {
        "state": _state(run),
        "adapter": one_line(run.adapter, 60),
        "accepted": _when(run.accepted_at),
        "ended": _when(run.finished_at),
        "sequence": str(run.last_sequence),
        "attempt": str(run.attempt) if run.attempt > 1 else "",
        "task": one_line(run.task_key),
        "agent": one_line(run.agent_id),
        "company": one_line(run.company_id),
        "labels": ", ".join(f"{one_line(key)}={one_line(value)}" for key, value in sorted(run.labels.items())),
        "readers": str(run.readers) if run.readers else "",
        "session": one_line(result.session.handle.display_id or result.session.handle.native_id),
        "model": " of ".join(one_line(name) for name in (result.model, result.provider) if name),
        "summary": one_line(result.summary, 600),
    }
    lines = [[Segment(one_line(run.run_id), Style.STRONG)]]
    lines += [[Segment(f"{name:9} {value}")] for name, value in facts.items() if value]
    lines += [[Segment(f"remark    {one_line(remark, 400)}", Style.TOOL)] for remark in run.remarks]
    for asked in response.pending_requests:
        lines.append([Segment(f"asks      {one_line(asked.id)}: {one_line(asked.title, 300)}", Style.TOOL)])
        command = f"dragoman respond {one_line(run.run_id)} {one_line(asked.id)} {_answer(asked)}"
        lines.append([Segment(f"          {command}")])
    lines += [line for event in attempts for line in _phrases.attempt_ended(event, False)]
    return [*lines, *_end(run)] if run.HasField("result") else lines


def _end(run: router_pb2.RunSummary) -> list[list[Segment]]:
    """Return what ``dragoman run`` says at the end."""
    result = run.result
    lines = _phrases.result(pb.AgentEvent(result=result), False)
    if has_doubtful_processes(result):
        lines.append([Segment(f"{one_line(run.run_id)}: {processes(result)}")])
    return [*lines, [Segment(last_line(result, run.run_id), outcome_style(result))]]


def _answer(asked: pb.InputRequest) -> str:
    """Return how a question is answered, as options of ``dragoman respond``."""
    if asked.kind == pb.INPUT_KIND_SCHEMA:
        return "--value JSON"
    if not asked.options:
        return "--text ANSWER"
    return f"--option {'|'.join(one_line(option.id, 40) for option in asked.options)}"
