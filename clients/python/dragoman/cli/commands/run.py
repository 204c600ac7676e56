"""``dragoman run`` and ``dragoman attach``."""

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Final

import click
from dragoman.cli.commands._options import (
    adapter_option,
    json_option,
    option,
    router_option,
    standard_input,
    with_options,
)
from dragoman.cli.commands._request import RunOptions
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display.slow_notice import slow_notice
from dragoman.cli.display.text import one_line
from dragoman.cli.exit_codes import EXIT_OK
from dragoman.protocol.addresses import is_served
from dragoman.protocol.limits import MAX_ORPHAN_AFTER_S
from dragoman.protocol.private import default_address
from msgspec import Struct

if TYPE_CHECKING:
    from dragoman.cli.display.screen import Screen
    from dragoman.client import Client, RunStream
    from dragoman.v1 import adapter_pb2 as pb
    from dragoman.v1 import router_pb2

_FIRST_EVENT_S: Final = 2.0
"""Upper bound for reading the first event of a run that is shown from a later one on."""
_START_S: Final = 3.0
"""How long an adapter may take to start before a notice says so."""
_EXAMPLES: Final = """\b
Examples:
  dragoman run claude_code "Fix the failing test." --cwd ~/project
  dragoman run claude_code - < task.md
  dragoman run claude_code "And now the docs." --task release-1.2
  dragoman run @reviewer "Review the last commit."
  dragoman run @ "Review it again." --task release-1.2
  dragoman run process "" --config command=make --config 'args=["test"]'
"""


class ViewOptions(Struct, frozen=True):
    """How a run is shown."""

    detach: Annotated[
        bool,
        option("--detach", "Print the run ID once the run has started, and exit. Needs a router that keeps running."),
    ]
    debug: Annotated[bool, option("--debug", "Show everything; unrecognized lines in grey.")]


@click.command("run", epilog=_EXAMPLES)
@click.argument("adapter")
@click.argument("prompt", required=False)
@with_options("options", RunOptions)
@with_options("view", ViewOptions)
@json_option("Print one line of JSON per event.")
@router_option()
def run_command(
    adapter: str, prompt: str | None, options: RunOptions, view: ViewOptions, as_json: bool, router: str | None
) -> int:
    """Run ADAPTER's agent on PROMPT and show what it does; '-' reads PROMPT from standard input.

    @NAME in place of ADAPTER runs an agent that the router stores, @ alone the active one of --task: see 'dragoman
    agents'.

    Ctrl-C cancels the run, a second one kills it. On a terminal you are asked the agent's questions, and a line that
    you type while it works is sent to it, if it takes any. Exit code: 0 the run succeeded, 1 it failed, 2 wrong
    usage, 130 the run was cancelled.
    """
    if view.detach and router is None and not is_served(default_address()):
        raise click.UsageError("--detach needs a router that keeps running: start 'dragoman serve', or give --router")
    options.check(prompt)
    if adapter == "@" and not options.session.task:
        raise click.UsageError("@ alone runs the active agent of a task: give --task, or @NAME")
    if prompt == "-":
        prompt = standard_input("PROMPT")

    async def work(client: "Client") -> int:
        # They import gRPC and protobuf; the adapter starts meanwhile.
        from dragoman.cli.display.screen import Screen  # noqa: PLC0415
        from dragoman.cli.interaction.run_view import RunView, is_interactive  # noqa: PLC0415
        from dragoman.v1 import adapter_pb2 as pb  # noqa: PLC0415

        agent = await _stored_agent(client, adapter[1:], options.session.task) if adapter.startswith("@") else None
        used = adapter if agent is None else agent.adapter
        described = pb.DescribeResponse()
        if used:
            async with slow_notice(f"waiting for the adapter '{one_line(used)}' to start…", after_s=_START_S):
                described = await client.describe(used)
        # Questions of a detached run are answered by 'dragoman respond'.
        interactive = is_interactive() or view.detach
        request = options.request(used, prompt, described, interactive=interactive)
        if agent is not None:
            _name_agent(request, adapter[1:], agent, has_cwd=options.setup.cwd is not None)
        if view.detach:
            request.orphan_after.FromSeconds(int(MAX_ORPHAN_AFTER_S))
            return await _detached(client, request)
        async with Screen(as_json=as_json, debug=view.debug) as screen:
            stream = client.execute(request)
            asks = request.permissions.interactive
            # Else the keys are for what shows the output, e.g. a pager.
            types = is_interactive() and sys.stdout.isatty()
            code = await RunView(stream, screen, interactive=asks, types=types).run()
        if request.track_changes and stream.result is not None:
            await _show_changes(client, stream.run_id, as_json=as_json, with_diffs=options.diff)
        return code

    return run_connected(router, work, adapter="" if adapter.startswith("@") else adapter, debug=view.debug)


async def _stored_agent(client: "Client", name: str, task: str) -> "router_pb2.StoredAgent":
    """Return a stored agent, without a name the active one of a task; an empty one if the caller may not see it."""
    from dragoman.client import DragomanError, Reason  # noqa: PLC0415 - as above
    from dragoman.v1 import router_pb2  # noqa: PLC0415 - as above

    try:
        return await client.get_agent(name, task_key="" if name else task)
    except DragomanError as error:
        if error.reason is not Reason.NOT_PERMITTED:
            raise
    return router_pb2.StoredAgent()


def _name_agent(request: "pb.ExecuteRequest", name: str, agent: "router_pb2.StoredAgent", *, has_cwd: bool) -> None:
    """Have a request name a stored agent, or only its task; the agent decides where it works unless the user does."""
    request.agent_name = name
    request.ClearField("adapter")
    if not has_cwd and "cwd" in agent.config.fields:
        request.ClearField("workspace")


async def _show_changes(client: "Client", run_id: str, *, as_json: bool, with_diffs: bool) -> None:
    """Print what a run changed after its last event; as JSON on one line."""
    from dragoman.cli.display.changes import change_lines  # noqa: PLC0415 - as above
    from dragoman.cli.display.printing import print_list  # noqa: PLC0415

    changes = await client.get_changes(run_id, with_diffs=as_json or with_diffs)
    print_list([changes], change_lines(changes, with_diffs=with_diffs), as_json=as_json)


async def _detached(client: "Client", request: "pb.ExecuteRequest") -> int:
    """Start a run, print its ID, and leave it; no client needs to attach for a day."""
    from dragoman.cli.display.summary import exit_code  # noqa: PLC0415 - as above

    stream = client.execute(request)
    try:
        await _until_started(stream)
    except asyncio.CancelledError:
        _print_error(
            f"detached from {stream.run_id}, which may still start; 'dragoman cancel {stream.run_id}' stops it"
        )
        raise
    sys.stdout.write(f"{stream.run_id}\n")
    if stream.result is None:
        return EXIT_OK
    if stream.result.HasField("failure"):
        _print_error(one_line(stream.result.failure.message, 600))
    return exit_code(stream.result)


async def _until_started(stream: "RunStream") -> None:
    from dragoman.v1 import event_pb2  # noqa: PLC0415 - as above

    async with stream:
        async for event in stream:
            if event.HasField("started"):
                return
            if event.state.phase == event_pb2.RUN_PHASE_QUEUED:
                _print_error(f"{stream.run_id} {one_line(event.state.reason) or 'is queued'}")


def _print_error(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class AttachOptions(Struct, frozen=True):
    """What is shown of an existing run."""

    after: Annotated[
        int,
        option("--after", "Show only events after sequence N.", "N", type=click.IntRange(0, 2**64 - 1), default=0),
    ]
    hold: Annotated[bool, option("--hold", "Keep the run from being orphaned while attached.")]
    debug: Annotated[bool, option("--debug", "Show everything; unrecognized lines in grey.")]


@click.command("attach")
@click.argument("run_id", metavar="RUN")
@with_options("options", AttachOptions)
@json_option("Print one line of JSON per event.")
@adapter_option()
@router_option(finds_runs=True)
def attach_command(run_id: str, options: AttachOptions, as_json: bool, adapter: str, router: str | None) -> int:
    """Follow RUN: first a replay, then live events. Ctrl-C detaches; 'dragoman cancel' stops the run."""

    async def work(client: "Client") -> int:
        # As above.
        from dragoman.cli.display.screen import Screen  # noqa: PLC0415
        from dragoman.cli.interaction.run_view import RunView, is_interactive  # noqa: PLC0415

        async with Screen(as_json=as_json, debug=options.debug) as screen:
            if options.after and not as_json:
                await _read_beginning(client, run_id, adapter, screen)
            stream = client.attach(run_id, after_sequence=options.after, hold=options.hold, adapter=adapter)
            return await RunView(stream, screen, interactive=is_interactive(), owned=False).run()

    return run_connected(router, work, debug=options.debug)


async def _read_beginning(client: "Client", run_id: str, adapter: str, screen: "Screen") -> None:
    """Pass the first event to the screen without showing it: it decides how the later ones are shown."""
    async with client.attach(run_id, adapter=adapter) as stream:
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            screen.observe(await asyncio.wait_for(anext(stream), _FIRST_EVENT_S))
