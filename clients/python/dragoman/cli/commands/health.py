"""``dragoman health``: what a probe asks."""

import asyncio
from typing import Any

import click
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands._options import Seconds
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_OK
from dragoman.cli.usage import wrong_usage
from dragoman.protocol.addresses import AddressError, parse_address
from dragoman.protocol.private import ROUTER_VARIABLE, default_address

_EXAMPLES = """\b
Example of a probe in a container:
  dragoman health unix:/run/dragoman/adapter.sock
"""


@click.command("health", epilog=_EXAMPLES)
@click.argument("address", required=False, envvar=ROUTER_VARIABLE)
@click.option("--timeout", "timeout_s", type=Seconds(), default=2.0, metavar="SECONDS", help="Default: 2.")
@click.option("--live", is_flag=True, help="Accept any answer, as of one that starts or drains.")
def health_command(*, address: str | None, timeout_s: float, live: bool) -> int:
    """Ask the router or adapter at ADDRESS whether it serves. Exit code 0 if so, else 1. It needs no token.

    ADDRESS is unix:/path or host:port. Default: what DRAGOMAN_ROUTER names, or this user's router.
    """
    where = address or default_address()
    with wrong_usage(AddressError):
        parse_address(where)
    answer = asyncio.run(_ask(where, timeout_s))
    if answer != "SERVING" and not (live and answer == "NOT_SERVING"):
        raise CommandError(ErrorReport(f"{where} does not serve: {answer}"))
    click.echo(answer.lower())
    return EXIT_OK


async def _ask(address: str, timeout_s: float) -> str:
    """Return the name of its state, or why it is not known."""
    import grpc  # noqa: PLC0415 - a mistyped address needs none
    from dragoman.protocol.dialing import open_channel  # noqa: PLC0415 - as above
    from dragoman.protocol.errors import DragomanError  # noqa: PLC0415 - as above
    from dragoman.protocol.limits import channel_options  # noqa: PLC0415 - as above
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415 - as above

    try:
        # Without a token: a probe must not need one.
        async with open_channel(address, channel_options(address), token="") as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            response: health_pb2.HealthCheckResponse = await stub.Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s
            )
    except DragomanError as error:
        return error.message
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
