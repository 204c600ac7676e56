"""``dragoman cancel``, ``respond``, ``send``, ``update`` and ``changes``: calls for a run by its ID."""

import json
from typing import Annotated, Final

import click
from dragoman.cli.commands._attachments import attachments
from dragoman.cli.commands._options import (
    Seconds,
    adapter_option,
    json_option,
    option,
    router_option,
    standard_input,
    with_options,
)
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display.changes import change_lines
from dragoman.cli.display.printing import print_response
from dragoman.cli.display.style import Segment
from dragoman.cli.display.summary import is_confirmed_dead, processes
from dragoman.cli.display.text import enum_label, one_line
from dragoman.cli.exit_codes import EXIT_FAILED, EXIT_OK
from dragoman.client import Client
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.identity import new_input_id
from dragoman.v1 import event_pb2 as pb
from dragoman.v1.adapter_pb2 import RespondResponse, SendResponse, UpdateRunResponse
from msgspec import Struct

_SENDER: Final = "dragoman command line"
"""Who answers, sends and changes, for the record."""


@click.command("cancel")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--grace", type=Seconds(), metavar="SECONDS", help="How long the agent gets to stop by itself; 0 kills it now."
)
@click.option("--reason", default="", metavar="TEXT", help="Why the run is cancelled; recorded with the run.")
@json_option("Print the CancelResponse as JSON.")
@adapter_option()
@router_option(finds_runs=True)
def cancel_command(
    run_id: str, grace: float | None, reason: str, as_json: bool, adapter: str, router: str | None
) -> int:
    """Cancel RUN, and report its outcome and whether all of its processes are confirmed dead.

    Exit code 1 if they are not.
    """

    async def work(client: Client) -> int:
        response = await client.cancel(run_id, grace_s=grace, reason=reason, adapter=adapter)
        result = pb.Result(outcome=response.outcome)
        if response.HasField("tree_confirmed_dead"):
            result.tree_confirmed_dead = response.tree_confirmed_dead
        outcome = enum_label(pb.Outcome.DESCRIPTOR, response.outcome, "OUTCOME_")
        line = f"{one_line(run_id)}: {outcome}; {processes(result)}"
        print_response(response, [[Segment(line)]], as_json=as_json)
        return EXIT_OK if is_confirmed_dead(result) else EXIT_FAILED

    return run_connected(router, work)


class AnswerOptions(Struct, frozen=True):
    """An answer to an input request."""

    options: Annotated[
        tuple[str, ...], option("--option", "ID of the option to choose; several for multiple choice.", "ID")
    ]
    text: Annotated[str | None, option("--text", "Answer as text.", "TEXT")]
    value: Annotated[str | None, option("--value", "Answer as JSON that matches the request's schema.", "JSON")]
    updated_input: Annotated[str | None, option("--input", "Changed input for the tool call.", "JSON")]
    message: Annotated[str, option("--message", "Message to the agent, e.g. a reason.", "TEXT", default="")]

    def answer(self) -> pb.InputAnswer:
        """Return the answer.

        Raises:
            click.UsageError: there is none.
            click.BadParameter: what must be JSON is not.
        """
        if not self.options and self.text is None and self.value is None:
            raise click.UsageError("no answer; give --option, --text or --value")
        return pb.InputAnswer(
            option_ids=self.options,
            text=self.text or "",
            value_json=_json(self.value, "--value"),
            updated_input_json=_json(self.updated_input, "--input"),
            message=self.message,
        )


@click.command("respond")
@click.argument("run_id", metavar="RUN")
@click.argument("request_id", metavar="REQUEST")
@with_options("options", AnswerOptions)
@json_option("Print the RespondResponse as JSON.")
@adapter_option()
@router_option(finds_runs=True)
def respond_command(
    run_id: str, request_id: str, options: AnswerOptions, as_json: bool, adapter: str, router: str | None
) -> int:
    """Answer the input request REQUEST of RUN. The first valid answer wins."""
    answer = options.answer()

    async def work(client: Client) -> None:
        response = await client.respond(run_id, request_id, answer, responder=_SENDER, adapter=adapter)
        _show(response, "answered", as_json=as_json)

    return run_connected(router, work)


class SendOptions(Struct, frozen=True):
    """What an input is like."""

    steer: Annotated[bool, option("--steer", "For the agent's present turn; otherwise it becomes the next turn.")]
    attach: Annotated[
        tuple[str, ...],
        option("--attach", "Give the agent this file; its model, too, if it is an image.", "FILE"),
    ]
    input_id: Annotated[
        str, option("--input-id", "The input's ID, for sending it again without doubling it.", "ID", default="")
    ]


@click.command("send")
@click.argument("run_id", metavar="RUN")
@click.argument("text", metavar="TEXT")
@with_options("options", SendOptions)
@json_option("Print the SendResponse as JSON.")
@adapter_option()
@router_option(finds_runs=True)
def send_command(
    run_id: str, text: str, options: SendOptions, as_json: bool, adapter: str, router: str | None
) -> int:
    """Give RUN the input TEXT while its agent works; '-' reads it from standard input.

    `dragoman attach` shows what becomes of it.
    """
    if text == "-":
        text = standard_input("TEXT")
    mode = pb.INPUT_MODE_STEER if options.steer else pb.INPUT_MODE_QUEUE
    input_id = options.input_id or new_input_id()

    async def send(client: Client, *, images: bool) -> SendResponse:
        return await client.send(
            run_id,
            text,
            mode=mode,
            attachments=attachments(options.attach, images=images),
            input_id=input_id,
            sender=_SENDER,
            adapter=adapter,
        )

    async def work(client: Client) -> None:
        try:
            response = await send(client, images=True)
        except DragomanError as error:
            if not any(violation.path.endswith(".media_type") for violation in error.violations):
                raise
            response = await send(client, images=False)
        _show(response, "accepted", as_json=as_json)

    return run_connected(router, work)


@click.command("update")
@click.argument("run_id", metavar="RUN")
@click.option("--model", default="", metavar="MODEL", help="The model from the agent's next call on.")
@click.option("--permission-mode", default="", metavar="MODE", help="The agent's own permission mode, e.g. plan.")
@json_option("Print each UpdateRunResponse as JSON: that of the permission mode first.")
@adapter_option()
@router_option(finds_runs=True)
def update_command(
    run_id: str, model: str, permission_mode: str, as_json: bool, adapter: str, router: str | None
) -> int:
    """Change the model or the permission mode of RUN while its agent works, and wait until the agent has taken it."""
    if not model and not permission_mode:
        raise click.UsageError("nothing to change; give --model or --permission-mode")

    async def work(client: Client) -> None:
        if permission_mode:  # first: it may be there to keep the other model from doing harm
            response = await client.update_run(
                run_id, permission_mode=permission_mode, sender=_SENDER, adapter=adapter
            )
            _show(response, f"permission mode {one_line(permission_mode)}", as_json=as_json)
        if model:
            response = await client.update_run(run_id, model=model, sender=_SENDER, adapter=adapter)
            _show(response, f"model {one_line(model)}", as_json=as_json)

    return run_connected(router, work)


@click.command("changes")
@click.argument("run_id", metavar="RUN")
@click.option("--diff", "with_diffs", is_flag=True, help="Show the diffs, too.")
@json_option("Print the GetChangesResponse as JSON.")
@adapter_option()
@router_option(finds_runs=True)
def changes_command(run_id: str, with_diffs: bool, as_json: bool, adapter: str, router: str | None) -> int:
    """Show which files RUN has changed. It must have been started with --changes; its adapter must still run."""

    async def work(client: Client) -> None:
        changes = await client.get_changes(run_id, with_diffs=with_diffs or as_json, adapter=adapter)
        print_response(changes, change_lines(changes, with_diffs=with_diffs), as_json=as_json)

    return run_connected(router, work)


def _show(response: RespondResponse | SendResponse | UpdateRunResponse, what: str, *, as_json: bool) -> None:
    print_response(response, [[Segment(f"{what}; recorded as event {response.sequence}")]], as_json=as_json)


def _json(text: str | None, name: str) -> str:
    if text is None:
        return ""
    try:
        json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not valid JSON: {error}", param_hint=name) from error
    return text
