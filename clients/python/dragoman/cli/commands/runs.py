"""``dragoman runs`` and ``show``: live and finished runs."""

import asyncio
import contextlib
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import click
from dragoman.cli import values
from dragoman.cli.commands._options import json_option, option, router_option, with_options
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display import phrases
from dragoman.cli.display.printing import print_json, print_lines, print_response
from dragoman.cli.display.style import Segment, Style
from dragoman.cli.display.summary import has_unconfirmed_processes, last_line, outcome_style, processes
from dragoman.cli.display.table import table
from dragoman.cli.display.text import enum_label, moment, one_line
from dragoman.client import Client, DragomanError
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from msgspec import Struct

_EARLIER_S = 2.0
"""Upper bound for reading how earlier attempts ended."""
_OUTCOMES = {name.removeprefix("OUTCOME_").lower(): number for name, number in pb.Outcome.items() if number}


class FilterOptions(Struct, frozen=True):
    """Which runs are listed."""

    adapter: Annotated[str, option("--adapter", "Only runs of this adapter.", "NAME", default="")]
    agent: Annotated[str, option("--agent", "Only runs of this agent; @NAME for a stored one.", "ID", default="")]
    task: Annotated[str, option("--task", "Only runs of this task.", "KEY", default="")]
    label_pairs: Annotated[tuple[str, ...], option("--label", "Only runs with this label.", "KEY=VALUE")]
    outcome: Annotated[
        str | None, option("--outcome", "Only runs that ended so.", type=click.Choice(list(_OUTCOMES)))
    ]
    live: Annotated[bool, option("--live", "Only live runs.")]

    def request(self) -> router_pb2.ListRunsRequest:
        """Return the request that lists them."""
        return router_pb2.ListRunsRequest(
            adapter=self.adapter,
            agent_id="" if self.agent.startswith("@") else self.agent,
            agent_name=self.agent[1:] if self.agent.startswith("@") else "",
            task_key=self.task,
            outcome=_OUTCOMES[self.outcome] if self.outcome else pb.OUTCOME_UNSPECIFIED,
            live_only=self.live,
            labels=values.labels(self.label_pairs),
        )


@click.command("runs")
@with_options("options", FilterOptions)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of runs.")
@json_option("Print a ListRunsResponse as JSON.")
@router_option(finds_runs=True)
def runs_command(options: FilterOptions, limit: int, as_json: bool, router: str | None) -> int:
    """List runs, newest first, including finished ones."""
    filters = options.request()

    async def work(client: Client) -> None:
        says_more = sys.stdout.isatty() and not as_json
        runs = await client.list_runs(filters, limit=limit + says_more)
        print_response(router_pb2.ListRunsResponse(runs=runs), _run_lines(runs[:limit]), as_json=as_json)
        if len(runs) > limit:
            print_lines([[Segment(f"the newest {limit} of more runs; --limit N lists N", Style.FAINT)]])

    return run_connected(router, work)


@click.command("show")
@click.argument("run_id", metavar="RUN")
@json_option("Print the GetRunResponse as JSON.")
@router_option(finds_runs=True)
def show_command(run_id: str, as_json: bool, router: str | None) -> int:
    """Show the details of RUN, and its open input requests."""

    async def work(client: Client) -> None:
        response = await client.get_run(run_id)
        if as_json:
            print_json(response)
        else:
            print_lines(_details(response, await _earlier_attempts(client, response.run)))

    return run_connected(router, work)


def _state(run: router_pb2.RunSummary) -> str:
    if run.HasField("result"):
        return enum_label(pb.Outcome.DESCRIPTOR, run.result.outcome, "OUTCOME_")
    return enum_label(pb.RunPhase.DESCRIPTOR, run.phase, "RUN_PHASE_")


def _run_lines(runs: Sequence[router_pb2.RunSummary]) -> list[list[Segment]]:
    head: tuple[str, ...] = ("RUN", "STATE", "ADAPTER", "ACCEPTED (UTC)", "SEQUENCE", "TASK")
    rows = [_run_row(run) for run in runs]
    if any(run.labels for run in runs):
        head = (*head[:-1], "LABELS", head[-1])
        rows = [(*row[:-1], _labels(run), row[-1]) for row, run in zip(rows, runs, strict=True)]
    return table(head, rows, empty="no matching runs")


def _labels(run: router_pb2.RunSummary) -> str:
    return one_line(",".join(f"{key}={value}" for key, value in sorted(run.labels.items())), 60)


def _run_row(run: router_pb2.RunSummary) -> tuple[str, ...]:
    accepted = moment(run.accepted_at, "%m-%d %H:%M:%S" if sys.stdout.isatty() else "%Y-%m-%dT%H:%M:%SZ")
    sequence, task = str(run.last_sequence), one_line(run.task_key, 80)
    return one_line(run.run_id), _state(run), one_line(run.adapter, 60), accepted, sequence, task


async def _earlier_attempts(client: Client, run: router_pb2.RunSummary) -> list[pb.AgentEvent]:
    """Return how the attempts before the current one ended, as far as they can be read in time."""
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
        "accepted": moment(run.accepted_at),
        "ended": moment(run.finished_at),
        "sequence": str(run.last_sequence),
        "attempt": str(run.attempt) if run.attempt > 1 else "",
        "task": one_line(run.task_key),
        "agent": " ".join(one_line(name) for name in (run.agent_name and f"@{run.agent_name}", run.agent_id) if name),
        "company": one_line(run.company_id),
        "labels": ", ".join(f"{one_line(key)}={one_line(value)}" for key, value in sorted(run.labels.items())),
        "readers": str(run.readers) if run.readers else "",
        "session": one_line(result.session.handle.display_id or result.session.handle.native_id),
        "model": " of ".join(one_line(name) for name in (result.model, result.provider) if name),
        "summary": one_line(result.summary, 600),
    }
    lines = [[Segment(one_line(run.run_id), Style.STRONG)]]
    lines += [[Segment(f"{name:9} {value}")] for name, value in facts.items() if value]
    lines += [[Segment(f"warning   {one_line(remark, 400)}", Style.TOOL)] for remark in run.remarks]
    for request in response.pending_requests:
        lines.append([Segment(f"request   {one_line(request.id)}: {one_line(request.title, 300)}", Style.TOOL)])
        command = f"dragoman respond {_word(run.run_id)} {_word(request.id)}"
        lines += [[Segment(f"          {command} {answer}")] for answer in _answers(request)]
    lines += [line for event in attempts for line in phrases.attempt_ended(event, False)]
    return [*lines, *_end(run)] if run.HasField("result") else lines


def _end(run: router_pb2.RunSummary) -> list[list[Segment]]:
    """Return what ``dragoman run`` prints at the end."""
    result = run.result
    lines = phrases.result(pb.AgentEvent(result=result), False)
    if has_unconfirmed_processes(result):
        lines.append([Segment(f"{one_line(run.run_id)}: {processes(result)}")])
    return [*lines, [Segment(last_line(result, run.run_id), outcome_style(result))]]


def _answers(request: pb.InputRequest) -> list[str]:
    """Return the options of ``dragoman respond`` that answer an input request, to be pasted into a shell."""
    if request.kind == pb.INPUT_KIND_SCHEMA:
        return ["--value JSON"]
    if not request.options:
        return ["--text ANSWER"]
    return [f"--option {_word(option.id)}" for option in request.options]


def _word(text: str) -> str:
    """Return what the agent may have chosen as one word of a shell."""
    return shlex.quote(one_line(text))
