"""The adapter of ``dragoman run``, started before the command line is read.

Reading it takes click, and a run asyncio and gRPC; the adapter starts meanwhile. That this command will run this
adapter without a router is a guess, and only what starts sooner depends on it: an adapter that was started is used
by a command that starts the same adapter in the same way, else it is ended with the command.
"""

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from typing import Final

from dragoman.protocol.addresses import AddressError, is_served
from dragoman.protocol.identity import is_adapter_type
from dragoman.protocol.logs import configure_logs
from dragoman.protocol.private import ROUTER_VARIABLE, default_address
from dragoman.router.adapters.launch_spec import OURS, installed_launch
from dragoman.router.starting import Starting, open_starting

_OTHERWISE: Final = frozenset({"-h", "--help", "-", "--detach"})
"""With one of these a command starts no adapter, or not at once."""


@contextlib.contextmanager
def started_early(arguments: Sequence[str]) -> Iterator[Starting | None]:
    """Start the adapter that a run without a router probably needs; yields what started it, or ``None``.

    Args:
        arguments: those of ``dragoman run``.
    """
    with contextlib.ExitStack() as stack:
        starting = None
        if _needs_adapter(arguments):
            configure_logs("console", level="critical")
            with contextlib.suppress(AddressError, OSError):  # the command reports it
                starting = stack.enter_context(open_starting(None, orphan_after_s=0.0))
        if starting is not None:
            name = arguments[0]
            starting.starter.prepare(name, installed_launch(f"{OURS}{name}:adapter"), for_run=True)
        yield starting


def _needs_adapter(arguments: Sequence[str]) -> bool:
    """Return whether a run probably starts the adapter that its first argument names, and does so at once."""
    if not arguments or not is_adapter_type(arguments[0]):
        return False
    # With "-" it first reads all of standard input: a started adapter does not wait for as long as a person.
    if any(argument in _OTHERWISE or argument.startswith("--router") for argument in arguments):
        return False
    if os.environ.get(ROUTER_VARIABLE) or importlib.util.find_spec(f"{OURS}{arguments[0]}") is None:
        return False
    return not is_served(default_address())
