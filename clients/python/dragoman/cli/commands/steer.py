"""``dragoman cancel``, ``respond``, ``runs`` and ``show``: runs that somebody else started."""

import json
import sys
from collections.abc import Sequence

import click
from dragoman.cli import _values
from dragoman.cli._connect import run_connected
from dragoman.cli._show import print_json, print_lines
from dragoman.cli._style import Segment, Style
from dragoman.cli._summary import EXIT_FAILED, EXIT_OK, processes
from dragoman.cli._table import table
from dragoman.cli._text import one_line, seconds, word
from dragoman.cli.commands._options import Seconds, adapter_option, json_option, router_option
from dragoman.client import Client
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

_OUTCOMES = {name.removeprefix("OUTCOME_").lower(): number for name, number in pb.Outcome.items() if number}


@click.command("cancel")
@click.argument("run_id", metavar="RUN")
@click.option("--grace", type=Seconds(), metavar="SECONDS", help="Time to end by itself; 0 kills now.")
@click.option("--reason", default="", help="Why, for people.")
@json_option("Print the CancelResponse as JSON.")
@adapter_option()
@router_option(finds_runs=True)
def cancel_command(
    run_id: str, grace: float | None, reason: str, as_json: bool, adapter: str, router: str | None
) -> int:
    """Stop RUN, and say how it ended and whether its processes are proven gone.

    Exit code 1 if they are not.
    """

    async def work(client: Client) -> int:
        response = await client.cancel(run_id, grace_s=grace, reason=reason, adapter=adapter)
        result = pb.Result(outcome=response.outcome)
        if response.HasField("tree_confirmed_dead"):
            result.tree_confirmed_dead = response.tree_confirmed_dead
        if as_json:
            print_json(response)
        else:
            outcome = word(pb.Outcome.DESCRIPTOR, response.outcome, "OUTCOME_")
            print_lines([[Segment(f"{one_line(run_id)}: {outcome}; {processes(result)}")]])
        proven = result.tree_confirmed_dead or not result.HasField("tree_confirmed_dead")
        return EXIT_OK if proven else EXIT_FAILED

    return run_connected(router, work)


@click.command("respond")
@click.argument("run_id", metavar="RUN")
@click.argument("request_id", metavar="REQUEST")
@click.option(
    "--option", "options", multiple=True, metavar="ID", help="An option. May be repeated where several may be."
)
@click.option("--text", help="A free answer.")
@click.option("--value", metavar="JSON", help="An answer that fits the request's schema.")
@click.option("--input", "updated_input", metavar="JSON", help="The tool's input, changed.")
@click.option("--message", default="", help="Words to the agent, e.g. why it was refused.")
@adapter_option()
@router_option(finds_runs=True)
def respond_command(
    run_id: str,
    request_id: str,
    options: tuple[str, ...],
    text: str | None,
    value: str | None,
    updated_input: str | None,
    message: str,
    adapter: str,
    router: str | None,
) -> int:
    """Answer the question REQUEST of RUN. The first valid answer wins."""
    if not options and text is None and value is None:
        raise click.UsageError("an answer is --option, --text or --value")
    answer = pb.InputAnswer(
        option_ids=options,
        text=text or "",
        value_json=_json(value, "--value"),
        updated_input_json=_json(updated_input, "--input"),
        message=message,
    )

    async def work(client: Client) -> None:
        response = await client.respond(
            run_id, request_id, answer, responder="dragoman command line", adapter=adapter
        )
        print_lines([[Segment(f"answered; recorded as event {response.sequence}")]])

    return run_connected(router, work)


def _json(text: str | None, option: str) -> str:
    if text is None:
        return ""
    try:
        json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}", param_hint=option) from error
    return text


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
        print_json(response) if as_json else print_lines(_details(response))

    return run_connected(router, work)


def _state(run: router_pb2.RunSummary) -> str:
    if run.HasField("result"):
        return word(pb.Outcome.DESCRIPTOR, run.result.outcome, "OUTCOME_")
    return word(pb.RunPhase.DESCRIPTOR, run.phase, "RUN_PHASE_")


def _when(run: router_pb2.RunSummary) -> str:
    return run.accepted_at.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC") if run.HasField("accepted_at") else ""


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


def _details(response: router_pb2.GetRunResponse) -> list[list[Segment]]:
    run = response.run
    result = run.result
    facts = {
        "state": _state(run),
        "adapter": one_line(run.adapter, 60),
        "accepted": _when(run),
        "took": seconds(result.duration.ToNanoseconds() / 1e9) if result.HasField("duration") else "",
        "sequence": str(run.last_sequence),
        "attempt": str(run.attempt) if run.attempt > 1 else "",
        "task": one_line(run.task_key),
        "agent": one_line(run.agent_id),
        "labels": ", ".join(f"{one_line(key)}={one_line(value)}" for key, value in sorted(run.labels.items())),
        "readers": str(run.readers) if run.readers else "",
        "session": one_line(result.session.handle.display_id or result.session.handle.native_id),
        "failure": one_line(result.failure.message, 600),
        "exit": one_line(result.signal) or (f"code {result.exit_code}" if result.exit_code else ""),
        "summary": one_line(result.summary, 600),
    }
    lines = [[Segment(one_line(run.run_id), Style.STRONG)]]
    lines += [[Segment(f"{name:9} {value}")] for name, value in facts.items() if value]
    lines += [[Segment(f"remark    {one_line(remark, 400)}", Style.TOOL)] for remark in run.remarks]
    for asked in response.pending_requests:
        lines.append([Segment(f"asks      {one_line(asked.id)}: {one_line(asked.title, 300)}", Style.TOOL)])
        command = f"dragoman respond {one_line(run.run_id)} {one_line(asked.id)} {_answer(asked)}"
        lines.append([Segment(f"          {command}")])
    return lines


def _answer(asked: pb.InputRequest) -> str:
    """Return how a question is answered, as options of ``dragoman respond``."""
    if asked.kind == pb.INPUT_KIND_SCHEMA:
        return "--value JSON"
    if not asked.options:
        return "--text ANSWER"
    return f"--option {'|'.join(one_line(option.id, 40) for option in asked.options)}"
