"""``dragoman policy``: the policy of a router's operator."""

import sys
from pathlib import Path
from typing import TextIO

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.errors import error_report
from dragoman.cli.exit_codes import EXIT_OK, EXIT_USAGE
from dragoman.v1 import adapter_pb2
from google.protobuf import json_format

_EXAMPLES = """\b
Examples:
  dragoman policy check policy.toml
  echo '{"adapter": "codex", "workspace": {"cwd": "/srv/work"}}' | dragoman policy check policy.toml --request -
"""


@click.group("policy")
def policy_command() -> None:
    """Check the policy of a router's operator."""


@policy_command.command("check", epilog=_EXAMPLES)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--request",
    metavar="JSON",
    type=click.File("r", encoding="utf-8"),
    help="File with an ExecuteRequest as JSON, - for standard input: check whether the policy allows it, too. Its "
    "adapter must be a type, not an alias.",
)
def _check_command(file: Path, request: TextIO | None) -> int:
    """Check FILE, a policy for 'dragoman serve --policy'.

    Exit code: 0 if it is valid and allows the request, 1 if it denies the request, 2 if one of them is invalid.
    """
    from dragoman.cli.connection.embedded_router import policy_objections  # noqa: PLC0415 - the router is slow to import

    asked = None if request is None else _execute_request(request.read())
    denial = policy_objections(file, asked)
    if denial is not None:
        raise CommandError(error_report(denial))
    what = "valid" if asked is None else f"valid, and allows this request to {asked.adapter}"
    sys.stdout.write(f"{file}: {what}\n")
    return EXIT_OK


def _execute_request(text: str) -> adapter_pb2.ExecuteRequest:
    try:
        request = json_format.Parse(text, adapter_pb2.ExecuteRequest())
    except json_format.ParseError as error:
        report = ErrorReport(f"the request is not an ExecuteRequest as JSON: {error}", exit_code=EXIT_USAGE)
        raise CommandError(report) from error
    if not request.adapter:
        raise CommandError(ErrorReport("the request names no adapter", exit_code=EXIT_USAGE))
    return request
