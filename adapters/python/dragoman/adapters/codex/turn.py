"""The turn to start Codex outside of a run while its login may be renewed: as runs do, one after the other."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from dragoman.adapters.codex.login import renewing_login
from dragoman.sdk import FailureInfo
from dragoman.sdk.detection import LoginLocks
from dragoman.v1 import event_pb2 as pb

_LIMIT_S: Final = 10.0
BUSY: Final = FailureInfo(
    pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
    "Codex's login is about to be renewed by runs that use it; try again later.",
    "codex_login_busy",
)


class LoginBusyError(Exception):
    """The turn did not come in time, or there is no lock that could be trusted."""


@asynccontextmanager
async def turn(env: Mapping[str, str], locks: LoginLocks) -> AsyncIterator[Callable[[], None]]:
    """Hold the login of this environment if it is about to be renewed; yield what passes the turn on early.

    Raises:
        LoginBusyError: others hold it.
    """
    login = renewing_login(env)
    if login is None or not login.is_due(time.time()):
        yield lambda: None
        return
    try:
        async with asyncio.timeout(_LIMIT_S):
            held = await locks.take(login, lambda: None)
    except OSError as error:  # TimeoutError is one
        raise LoginBusyError from error
    try:
        yield held.release
    finally:
        held.release()
