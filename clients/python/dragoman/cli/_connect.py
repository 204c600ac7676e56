"""A client to the router the user names, or to one of our own."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import click
from dragoman.cli._failures import complaint
from dragoman.cli._problem import ProblemError
from dragoman.client import Client, DragomanError
from dragoman.protocol.addresses import AddressError, parse_address


@contextlib.asynccontextmanager
async def connected(router: str | None, *, debug: bool = False) -> AsyncIterator[Client]:
    """Yield a client.

    Args:
        router: an address; ``None`` for a router in this process, which is gone when the block ends.
        debug: show that router's log.

    Raises:
        ProblemError: a call failed inside the block.
        click.BadParameter: the address is none.
    """
    # Where another thread gets Ctrl-C, and gRPC has some, the loop would sleep on and nobody hear of it. With a
    # handler of any signal, each wakes it: https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd
    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, lambda: None)
    async with contextlib.AsyncExitStack() as stack:
        if router is None:
            # The router brings the server's half of everything along; a client alone does without.
            from dragoman.cli._router import embedded_router  # noqa: PLC0415

            address = await stack.enter_async_context(embedded_router(debug=debug))
        else:
            address = _checked(router)
        client = await stack.enter_async_context(Client(address))
        try:
            yield client
        except DragomanError as error:
            raise ProblemError(complaint(error, address=address)) from error


def _checked(address: str) -> str:
    try:
        return str(parse_address(address))
    except AddressError as error:
        raise click.BadParameter(str(error), param_hint="--router") from error


def run_connected(router: str | None, work: Callable[[Client], Awaitable[int | None]], *, debug: bool = False) -> int:
    """Do ``work`` with a client, in an event loop of its own; returns the exit code, 0 if ``work`` has none.

    Raises:
        ProblemError: a call failed.
    """

    async def main() -> int:
        async with connected(router, debug=debug) as client:
            return await work(client) or 0

    return asyncio.run(main())
