"""A client of the router that the user names, of the user's router, or of one in this process."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import click
from dragoman.cli.command_error import CommandError
from dragoman.protocol.addresses import AddressError, is_served, parse_address
from dragoman.protocol.private import default_address

if TYPE_CHECKING:
    from dragoman.client import Client


@contextlib.asynccontextmanager
async def connected(router: str | None, *, adapter: str = "", debug: bool = False) -> "AsyncIterator[Client]":
    """Yield a client.

    Args:
        router: an address; ``None`` for this user's router, or if none is running, for one in this process, which
            stops when the block ends.
        adapter: the adapter that the block uses first; a router in this process starts it at once.
        debug: show the log of the router in this process.

    Raises:
        CommandError: a call failed inside the block.
        click.BadParameter: the address is invalid.
    """
    # The kernel may deliver SIGINT to one of gRPC's threads, which would not wake the loop. Any handler that the loop
    # installs sets the wake-up descriptor: https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd
    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, lambda: None)
    is_embedded = router is None and not is_served(default_address())
    async with contextlib.AsyncExitStack() as stack:
        if is_embedded:
            # Imported late: the router loads the server half of everything, which a client does not need.
            from dragoman.cli.connection.embedded_router import embedded_router  # noqa: PLC0415

            starting = click.get_current_context().obj
            embedded = embedded_router(adapter=adapter, starting=starting, debug=debug)
            address = await stack.enter_async_context(embedded)
        else:
            address = default_address() if router is None else _checked(router)
        # gRPC, after an adapter was started: it starts meanwhile.
        from dragoman.cli.errors import error_report  # noqa: PLC0415
        from dragoman.client import Client, DragomanError  # noqa: PLC0415

        try:
            yield await stack.enter_async_context(Client(address))
        except DragomanError as error:
            shown = default_address() if is_embedded else address
            raise CommandError(error_report(error, address=shown, is_embedded=is_embedded)) from error


def _checked(address: str) -> str:
    try:
        return str(parse_address(address))
    except AddressError as error:
        raise click.BadParameter(str(error), param_hint="--router") from error


def run_connected(
    router: str | None,
    work: "Callable[[Client], Awaitable[int | None]]",
    *,
    adapter: str = "",
    debug: bool = False,
) -> int:
    """Run ``work`` with a client, in a new event loop; return its exit code, or 0 if it returns none.

    The arguments are those of ``connected``.

    Raises:
        CommandError: a call failed.
    """

    async def main() -> int:
        async with connected(router, adapter=adapter, debug=debug) as client:
            return await work(client) or 0

    return asyncio.run(main())
