"""``dragoman cancel`` and ``respond``: runs that somebody else started."""

import json

import click
from dragoman.cli._connect import run_connected
from dragoman.cli._show import print_json, print_lines
from dragoman.cli._style import Segment
from dragoman.cli._summary import (
    EXIT_FAILED,
    EXIT_OK,
    is_proven_gone,
    processes,
)
from dragoman.cli._text import one_line, word
from dragoman.cli.commands._options import Seconds, adapter_option, json_option, router_option
from dragoman.client import Client
from dragoman.v1 import event_pb2 as pb


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
        return EXIT_OK if is_proven_gone(result) else EXIT_FAILED

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
