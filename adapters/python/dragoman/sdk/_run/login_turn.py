"""A run's turn to start with a login that its agent may renew: waited for, announced, and passed on early."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from dragoman.protocol.clocks import Clocks
from dragoman.sdk._run.login_lock import WAIT_LIMIT_S, HeldLogin, LoginLocks, RenewingLogin
from dragoman.sdk._run.run import Run
from dragoman.sdk._run.startup import StartupReports
from dragoman.sdk._run.supervision import Stopped, supervise
from dragoman.v1 import event_pb2 as pb

FindLogin = Callable[[], RenewingLogin | None]

_SIGNS: Final = frozenset({"text", "thinking", "tool_call", "tool_output", "usage"})
"""Events that an agent emits only once its model has answered: its login works."""
_WAITS: Final = "another run to start with the same login, which is about to be renewed"


class LoginTurn:
    """The turn of one attempt.

    Args:
        run: the run.
        locks: those of the adapter.
        find: looks for the login that the agent would use and renew by itself.
    """

    def __init__(self, run: Run, locks: LoginLocks, find: FindLogin) -> None:
        self._run = run
        self._locks = locks
        self._find = find
        self._held: HeldLogin | None = None

    async def wait(self, clocks: Clocks, reports: StartupReports, grace_s: float) -> Stopped | None:
        """Wait until the agent may start; return why the wait was broken off, if it was.

        The wait is no part of the agent's start-up: of the clocks only the wall clock runs.
        """
        login = self._due_login()
        if login is None:
            return None
        now = asyncio.get_running_loop().time

        def on_wait() -> None:
            self._run.state(pb.RUN_PHASE_STARTING, reason=f"waiting for {_WAITS}")
            reports.waiting_for(lambda: _WAITS)
            clocks.waiting(now(), is_waiting=True)

        taking = self._take(login, on_wait)
        self._held, stopped = await supervise(self._run, clocks, taking, asyncio.Event(), grace_s)
        if clocks.is_waiting:
            clocks.waiting(now(), is_waiting=False)
            clocks.spawned(now())
            reports.waiting_for(None)
        if stopped is not None or self._due_login() is None:  # another run has renewed it
            self.release()
        return stopped

    def observe(self, event: pb.AgentEvent) -> None:
        """Pass the turn on as soon as the login works."""
        if event.WhichOneof("body") in _SIGNS and event.origin == pb.EVENT_ORIGIN_AGENT:
            self.release()

    def release(self) -> None:
        """Pass the turn on. Harmless without one."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def _due_login(self) -> RenewingLogin | None:
        login = self._find()
        return login if login is not None and login.is_due(time.time()) else None

    async def _take(self, login: RenewingLogin, on_wait: Callable[[], None]) -> HeldLogin | None:
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                return await self._locks.take(login, on_wait)
        except TimeoutError:
            message = f"Other runs held the same login for {WAIT_LIMIT_S:.0f} s; this run starts beside them."
            hint = "If the login is refused as used twice, log in again, or start fewer runs at once."
            self._run.notice(pb.SEVERITY_WARNING, "login_wait_over", message, hint)
        except OSError as error:
            message = f"Runs that share a login cannot take turns: {error.strerror or error}."
            hint = "Make the directory `logins` in Dragoman's state directory this user's own, of mode 0700."
            self._run.notice(pb.SEVERITY_WARNING, "login_lock_unavailable", message, hint)
        return None
