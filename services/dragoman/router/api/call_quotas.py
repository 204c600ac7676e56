"""Keeps callers to their quotas, call by call."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from dragoman.protocol.caller import RULES, current_caller
from dragoman.protocol.server import Context
from dragoman.router.model.ports import RequestPolicy
from dragoman.router.model.quotas import Quota
from dragoman.router.policy.quotas import Accounts, exceeded


class CallQuotas:
    """The quotas of a router's callers.

    Args:
        policy: has them, as they are now.
        clock: returns seconds that only grow.
    """

    def __init__(self, policy: RequestPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._accounts = Accounts()

    def call(
        self, method: str, request: Any, context: Context, *, is_stream: bool
    ) -> contextlib.AbstractContextManager[Context]:
        """Count a call from now on; return the context to answer it with, as a block that it counts until.

        Args:
            method: its full name.
            request: its bytes.
            context: the RPC.
            is_stream: whether its response is a stream.

        Raises:
            DragomanError: QUOTA_EXCEEDED.
        """
        caller, quota = current_caller(), self._quota()
        if quota is None or method not in RULES:
            return contextlib.nullcontext(context)
        self._accounts.begin(caller.name, quota, self._clock(), len(request), is_stream=is_stream)
        if quota.bytes is not None:
            context = cast("Context", _Metered(context, lambda size: self._accounts.add(caller.name, size)))
        return self._stream(context, caller.name) if is_stream else contextlib.nullcontext(context)

    def check_runs(self, live: Callable[[str], int]) -> None:
        """Refuse another run to a caller that has as many as it may.

        Args:
            live: returns how many runs of a caller are live.

        Raises:
            DragomanError: QUOTA_EXCEEDED.
        """
        name, quota = current_caller().name, self._quota()
        if quota is not None and quota.runs is not None and live(name) >= quota.runs:
            raise exceeded(name, "runs", f"{quota.runs} live runs")

    @contextlib.contextmanager
    def _stream(self, context: Context, name: str) -> Iterator[Context]:
        try:
            yield context
        finally:
            self._accounts.end(name)

    def _quota(self) -> Quota | None:
        caller = current_caller()
        return self._policy.quotas().of(caller.name, is_admin=caller.is_admin)


class _Metered:
    """The context of a stream whose bytes count."""

    def __init__(self, context: Context, add: Callable[[int], None]) -> None:
        self._context = context
        self._add = add

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: bytes) -> None:
        """Write a message of the stream."""
        self._add(len(message))
        await self._context.write(message)
