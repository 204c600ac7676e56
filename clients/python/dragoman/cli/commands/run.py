"""``dragoman run`` and ``dragoman attach``."""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from dragoman.cli import _handles, _values
from dragoman.cli._connect import run_connected
from dragoman.cli._drive import Drive, is_interactive
from dragoman.cli._patience import patience
from dragoman.cli._screen import Screen
from dragoman.cli._summary import EXIT_OK, exit_code
from dragoman.cli._text import one_line
from dragoman.cli.commands._chain import chain_options, put_chain, put_settings
from dragoman.cli.commands._options import (
    Seconds,
    adapter_option,
    config_option,
    cwd_option,
    env_option,
    json_option,
    router_option,
    text_option,
)
from dragoman.client import Client, RunStream, execute_request
from dragoman.protocol.limits import MAX_ORPHAN_AFTER_S
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_ASKING = frozenset({event_pb2.FEATURE_PERMISSION_REQUESTS, event_pb2.FEATURE_INPUT_REQUESTS})
_RECALLING_S = 2.0
"""How long the first event of a run is waited for, of which somebody has seen later ones."""
_STARTING_S = 3.0
"""How long an adapter may take to start without a word."""
_EXAMPLES = """\b
Examples:
  dragoman run claude_code "Fix the failing test." --cwd ~/project
  dragoman run claude_code - --session .session.json < task.md
  dragoman run claude_code "And now the docs." --task release-1.2
  dragoman run process --config command=make --config 'args=["test"]'
"""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line says about a run."""

    adapter: str
    prompt: str | None = None
    template: bool = False
    cwd: str | None = None
    model: str = ""
    config: dict[str, Any] | None = None
    env: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    timeout_s: float | None = None
    run_id: str = ""
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    permission_mode: str = ""
    allow_all: bool = False
    session: event_pb2.SessionHandle | None = None
    task: str = ""
    agent: str = ""
    resume: str = ""
    fresh: bool = False
    fork: bool = False


def request_for(
    wishes: Wishes, described: pb.DescribeResponse, *, interactive: bool, may_move: bool = False
) -> pb.ExecuteRequest:
    """Return the request for one run.

    What was not said is left out, but for a directory to work in and somebody to ask, where the adapter has a
    use for them: a field it has none for would be refused.

    Args:
        wishes: what was said.
        described: the adapter.
        interactive: whether somebody is there to ask.
        may_move: whether another adapter may get the run, and have a use for the directory.

    Raises:
        DragomanError: a setting has no JSON form.
        click.UsageError: the current directory is gone.
    """
    features = {item.feature for item in described.capabilities.items}
    cwd = wishes.cwd
    has_use = event_pb2.FEATURE_WORKSPACE in features or may_move
    if cwd is None and has_use and "cwd" not in (wishes.config or {}):
        cwd = _values.directory(None)
    request = execute_request(
        wishes.adapter,
        None if wishes.template else wishes.prompt,
        cwd=cwd,
        model=wishes.model,
        config=wishes.config,
        env=wishes.env,
        timeout_s=wishes.timeout_s,
        labels=wishes.labels,
        run_id=wishes.run_id,
    )
    if wishes.template and wishes.prompt is not None:
        request.prompt_template = wishes.prompt
    _select_session(request, wishes)
    permissions = _permissions(wishes)
    permissions.interactive = interactive and bool(features & _ASKING)
    if permissions.ListFields():
        request.permissions.CopyFrom(permissions)
    return request


def _select_session(request: pb.ExecuteRequest, wishes: Wishes) -> None:
    request.task_key = wishes.task
    if wishes.agent:
        request.agent.id = wishes.agent
    if wishes.session is not None:
        request.session.handle.CopyFrom(wishes.session)
    elif wishes.resume:
        request.session.resume_run_id = wishes.resume
    elif wishes.fresh:
        request.session.fresh = True
    if wishes.fork:
        request.session.fork = True


def _permissions(wishes: Wishes) -> event_pb2.Permissions:
    # The first rule that matches decides, and what is denied stays denied.
    rules = [
        event_pb2.PermissionRule(decision=decision, tool_name=tool)
        for decision, tools in (
            (event_pb2.PERMISSION_DECISION_DENY, wishes.deny),
            (event_pb2.PERMISSION_DECISION_ALLOW, wishes.allow),
        )
        for tool in tools
    ]
    return event_pb2.Permissions(rules=rules, native_mode=wishes.permission_mode, auto_approve=wishes.allow_all)


@click.command("run", epilog=_EXAMPLES)
@click.argument("adapter")
@click.argument("prompt", required=False)
@cwd_option()
@text_option("--model", "NAME", "The model. Default: the agent's.")
@config_option()
@env_option()
@click.option("--template", is_flag=True, help="PROMPT is a template with {{path.to.value}}.")
@click.option("--timeout", type=Seconds(), metavar="SECONDS", help="The longest the run may take.")
@click.option(
    "--session",
    "session_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Go on with the conversation kept in FILE, and keep it there.",
)
@text_option("--task", "KEY", "The task; go on with the conversation that is stored for it.")
@text_option("--agent", "ID", "Your id of the agent; each has conversations of its own.")
@text_option("--resume", "RUN", "Go on with the conversation of an earlier run.")
@click.option("--fresh", is_flag=True, help="Begin a new conversation for the task.")
@click.option("--fork", is_flag=True, help="Begin with a copy of the conversation, and leave it as it is.")
@click.option("--allow", multiple=True, metavar="TOOL", help="Allow this tool. May be repeated.")
@click.option("--deny", multiple=True, metavar="TOOL", help="Refuse this tool; goes before --allow. May be repeated.")
@text_option("--permission-mode", "MODE", "The agent's own mode, e.g. acceptEdits.")
@click.option("--dangerously-allow-all", is_flag=True, help="Allow everything without asking. Dangerous.")
@click.option("--label", "label_pairs", multiple=True, metavar="KEY=VALUE", help="A mark of yours. May be repeated.")
@chain_options()
@text_option("--run-id", "ID", "Your id for the run. Default: a new one.")
@click.option("--detach", is_flag=True, help="Print the run's id once it is under way, and leave it. Needs --router.")
@click.option("--debug", is_flag=True, help="Show everything, unrecognised lines in grey.")
@json_option("Print one line of JSON per event.")
@router_option()
def run_command(
    adapter: str,
    prompt: str | None,
    cwd: str | None,
    model: str,
    config_pairs: tuple[str, ...],
    env_pairs: tuple[str, ...],
    template: bool,
    timeout: float | None,
    session_file: Path | None,
    task: str,
    agent: str,
    resume: str,
    fresh: bool,
    fork: bool,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    permission_mode: str,
    dangerously_allow_all: bool,
    label_pairs: tuple[str, ...],
    fallback: str | None,
    fallback_on: str | None,
    fallback_config: tuple[str, ...],
    queue: float | None,
    ignore_breaker: bool,
    run_id: str,
    detach: bool,
    debug: bool,
    as_json: bool,
    router: str | None,
) -> int:
    """Run ADAPTER's agent on PROMPT and show what it does; '-' reads PROMPT from standard input.

    Ctrl-C cancels the run, a second one kills it. At a terminal the agent's questions are asked. Exit code: 0 the
    run succeeded, 1 it failed, 2 the call was wrong, 130 it was cancelled.
    """
    if detach and router is None:
        raise click.UsageError("--detach needs a router that stays: start 'dragoman serve' and give --router")
    if detach and session_file is not None:
        raise click.UsageError(
            "--detach does not wait for what --session would keep; use --task, which a router keeps"
        )
    if sum(map(bool, (session_file, resume, fresh))) > 1:
        raise click.UsageError("--session, --resume and --fresh exclude one another")
    if fork and (fresh or not (session_file or resume or task)):
        raise click.UsageError("--fork copies the conversation of --task, --resume or --session")
    if session_file is not None:
        _handles.check_writable(session_file)
    wishes = Wishes(
        adapter=adapter,
        prompt=_standard_input() if prompt == "-" else prompt,
        template=template,
        cwd=None if cwd is None else _values.directory(cwd),
        model=model,
        config=_values.config(config_pairs),
        env=_values.variables(env_pairs),
        labels=_values.labels(label_pairs),
        timeout_s=timeout,
        run_id=run_id,
        allow=allow,
        deny=deny,
        permission_mode=permission_mode,
        allow_all=dangerously_allow_all,
        session=_handles.load(session_file) if session_file else None,
        task=task,
        agent=agent,
        resume=resume,
        fresh=fresh,
        fork=fork,
    )

    async def work(client: Client) -> int:
        async with patience(f"waiting for the adapter '{one_line(adapter)}' to start…", after_s=_STARTING_S):
            described = await client.describe(adapter)
        if session_file is not None and wishes.session is not None:
            _refuse_foreign(wishes.session, described, session_file)
        settings = _values.config(config_pairs, described.config_schema_json)
        interactive = is_interactive() or detach  # what it asks waits for 'dragoman respond'
        wished = replace(wishes, config=settings)
        request = request_for(wished, described, interactive=interactive, may_move=bool(fallback))
        put_chain(request, fallback, fallback_on, queue, ignore_breaker=ignore_breaker)
        await put_settings(client, request, fallback_config)
        if detach:
            request.orphan_after.FromSeconds(int(MAX_ORPHAN_AFTER_S))
            return await _detached(client, request)
        async with Screen(as_json=as_json, debug=debug) as screen:
            drive = Drive(
                client.execute(request),
                screen,
                interactive=request.permissions.interactive,
                session_file=session_file,
            )
            return await drive.run()

    return run_connected(router, work, debug=debug)


def _refuse_foreign(handle: event_pb2.SessionHandle, described: pb.DescribeResponse, file: Path) -> None:
    """Refuse a conversation of another adapter: a new one would take its place in the file."""
    if handle.adapter and handle.adapter not in {described.adapter, *described.aliases}:
        told = f"{file} keeps a conversation of {handle.adapter}; name another file, or remove it"
        raise click.BadParameter(told, param_hint="--session")


async def _detached(client: Client, request: pb.ExecuteRequest) -> int:
    """Start a run, print its id, and leave it; nobody needs to hold it for a day."""
    stream = client.execute(request)
    try:
        await _until_under_way(stream)
    except asyncio.CancelledError:
        _say(f"left {stream.run_id}, which may begin all the same; 'dragoman cancel {stream.run_id}' ends it")
        raise
    sys.stdout.write(f"{stream.run_id}\n")
    if stream.result is None:
        return EXIT_OK
    if stream.result.HasField("failure"):
        _say(one_line(stream.result.failure.message, 600))
    return exit_code(stream.result)


async def _until_under_way(stream: RunStream) -> None:
    async with stream:
        async for event in stream:
            if event.HasField("started"):
                return
            if event.state.phase == event_pb2.RUN_PHASE_QUEUED:
                _say(f"{stream.run_id} {one_line(event.state.reason) or 'waits for a place'}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"standard input is not UTF-8: {error}", param_hint="PROMPT") from error


@click.command("attach")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--after", type=click.IntRange(0, 2**64 - 1), default=0, metavar="N", help="Only events after sequence N."
)
@click.option("--hold", is_flag=True, help="Keep the run alive while this follows it.")
@click.option("--debug", is_flag=True, help="Show everything, unrecognised lines in grey.")
@json_option("Print one line of JSON per event.")
@adapter_option()
@router_option(finds_runs=True)
def attach_command(
    run_id: str, after: int, hold: bool, debug: bool, as_json: bool, adapter: str, router: str | None
) -> int:
    """Follow RUN: what is stored, then live. Ctrl-C leaves it; 'dragoman cancel' ends it."""

    async def work(client: Client) -> int:
        async with Screen(as_json=as_json, debug=debug) as screen:
            if after and not as_json:
                await _recall(client, run_id, adapter, screen)
            stream = client.attach(run_id, after_sequence=after, hold=hold, adapter=adapter)
            return await Drive(stream, screen, interactive=is_interactive(), owned=False).run()

    return run_connected(router, work, debug=debug)


async def _recall(client: Client, run_id: str, adapter: str, screen: Screen) -> None:
    """Let the screen know how the run began, without showing it: that decides what is shown of the rest."""
    async with client.attach(run_id, adapter=adapter) as stream:
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            screen.recall(await asyncio.wait_for(anext(stream), _RECALLING_S))
