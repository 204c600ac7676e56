"""How much one caller may have at a time: runs, streams, and bytes. Pure; each router counts its own."""

from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.quotas import Quota
from msgspec import Struct

_SHORTEST_S: Final = 1.0
"""The least delay after which a refused call is worth another try."""
_MANY: Final = 1024
"""So many callers are remembered before those that have nothing are forgotten."""


class _Account(Struct):
    """What a caller has now."""

    streams: int = 0
    used: float = 0.0
    """Bytes, less what the time since has given back."""
    at: float = 0.0

    def settle(self, quota: Quota, now: float) -> None:
        """Give back what the time has."""
        if quota.bytes is not None:
            self.used = max(0.0, self.used - (now - self.at) * quota.bytes / quota.window_s)
        self.at = now


class Accounts:
    """What the callers of one router have."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def begin(self, name: str, quota: Quota, now: float, size: int, *, is_stream: bool) -> None:
        """Take note of a call that begins.

        Args:
            name: the caller's.
            quota: its quota.
            now: seconds of a monotonic clock.
            size: bytes of its request.
            is_stream: whether it has a stream, until ``end``.

        Raises:
            DragomanError: QUOTA_EXCEEDED; then it has not begun.
        """
        account = self._of(name, quota, now)
        if quota.bytes is not None and account.used >= quota.bytes:
            wait_s = (account.used - quota.bytes) * quota.window_s / quota.bytes
            raise exceeded(name, "bytes", f"{quota.bytes} bytes in {quota.window_s:g} s", wait_s)
        if is_stream and quota.streams is not None and account.streams >= quota.streams:
            raise exceeded(name, "streams", f"{quota.streams} open streams")
        account.streams += is_stream
        account.used += size

    def end(self, name: str) -> None:
        """Take note that a stream of a caller has ended."""
        if (account := self._accounts.get(name)) is not None:
            account.streams -= 1

    def add(self, name: str, size: int) -> None:
        """Take note of bytes that were sent to a caller."""
        if (account := self._accounts.get(name)) is not None:
            account.used += size

    def _of(self, name: str, quota: Quota, now: float) -> _Account:
        if name not in self._accounts and len(self._accounts) >= _MANY:
            self._accounts = {
                known: account
                for known, account in self._accounts.items()
                if account.streams or now - account.at < 3600
            }
        account = self._accounts.setdefault(name, _Account(at=now))
        account.settle(quota, now)
        return account


def exceeded(name: str, kind: str, limit: str, wait_s: float = 0.0) -> DragomanError:
    """Return the error for what is beyond a quota.

    Args:
        name: the caller's.
        kind: ``runs``, ``streams`` or ``bytes``.
        limit: the quota, for people.
        wait_s: seconds after which there is room, if that is known.
    """
    return DragomanError(
        Reason.QUOTA_EXCEEDED,
        f"{name[:200]} is at its quota of {limit} at this router; try again later.",
        {"caller": name[:200], "quota": kind},
        retry_after_s=max(wait_s, _SHORTEST_S),
    )
