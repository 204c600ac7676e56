"""``dragoman artifacts``: the files that an agent left."""

import os
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._options import adapter_option, json_option, router_option
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display.printing import print_list
from dragoman.cli.display.table import table
from dragoman.cli.display.text import count, one_line
from dragoman.cli.error_report import ErrorReport
from dragoman.client import Client
from dragoman.v1 import event_pb2

_ADVICE = "give -o FILE, or send the output elsewhere"


@click.command("artifacts")
@click.argument("run_id", metavar="RUN")
@click.argument("name", required=False)
@click.option("-o", "--output", metavar="FILE", help="Write it there, once all of it came and its digest is right.")
@json_option("Print one line of JSON per artifact.")
@adapter_option()
@router_option(finds_runs=True)
def artifacts_command(
    run_id: str, name: str | None, output: str | None, as_json: bool, adapter: str, router: str | None
) -> int:
    """List the files that the agent of RUN left for you; with NAME, print that file or write it with -o.

    The agent leaves them in the directory that its variable DRAGOMAN_ARTIFACTS names. They are kept as long as the
    adapter retains the run.
    """
    if output is not None and name is None:
        raise click.UsageError("-o needs the NAME of an artifact")
    if name is not None and output is None and sys.stdout.isatty():
        raise click.UsageError(f"the file may hold anything, and is not shown at a terminal; {_ADVICE}")

    async def work(client: Client) -> None:
        if name is None:
            await _list(client, run_id, adapter, as_json=as_json)
        elif output is None:
            async for piece in client.read_artifact(run_id, name, adapter=adapter):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        else:
            await _write(client.read_artifact(run_id, name, adapter=adapter), Path(output))

    return run_connected(router, work)


async def _list(client: Client, run_id: str, adapter: str, *, as_json: bool) -> None:
    """Print what has been left by now."""
    found: list[event_pb2.Artifact] = []
    async with client.attach(run_id, adapter=adapter) as stream:
        async for event in stream:
            if event.HasField("artifact"):
                found.append(event.artifact)
            elif event.HasField("replay_done"):
                break
    rows = [(one_line(one.name), count(one.size), one_line(one.media_type), one.sha256[:12]) for one in found]
    lines = table(("NAME", "BYTES", "TYPE", "SHA-256"), rows, empty="the run has left no files")
    print_list(found, lines, as_json=as_json)


async def _write(pieces: AsyncIterator[bytes], path: Path) -> None:
    """Write a file as a whole, or not at all: what is there before stays until all of it came.

    A link is followed; to a pipe or a device the pieces go as they come.

    Raises:
        CommandError: it cannot be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            with open(target, "wb") as file:  # noqa: ASYNC230 - nothing else is done meanwhile
                async for piece in pieces:
                    file.write(piece)
            return
        temporary = target.with_name(f".{target.name[:60]}.{secrets.token_hex(4)}")
        try:
            with open(temporary, "xb") as file:  # noqa: ASYNC230 - nothing else is done meanwhile
                async for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CommandError(ErrorReport(f"{path} cannot be written: {error.strerror}")) from error
