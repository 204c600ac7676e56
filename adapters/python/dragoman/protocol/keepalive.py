"""Which streams keep a run alive, and for how long after the last one is gone.

Losing a stream is not intent: the run is given up only when no holding stream has been open for
``orphan_after``. A stream that the *server* ended counts as open for 30 seconds more, as its reader did
nothing wrong and will be back.
"""

import asyncio
from collections.abc import Callable

from dragoman.protocol.limits import SERVER_ENDED_GRACE_S


class KeepaliveStreams:
    """Counts holding streams and calls back when the run is orphaned.

    Args:
        orphan_after_s: seconds without a holder; 0 means at once.
        on_orphaned: called once, in the event loop, at most once per orphaning.
    """

    def __init__(self, orphan_after_s: float, on_orphaned: Callable[[], None]) -> None:
        self._orphan_after_s = orphan_after_s
        self._on_orphaned = on_orphaned
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def count(self) -> int:
        """Streams that hold now, those that the server just ended included."""
        return self._count

    def acquire(self) -> None:
        """Count a stream that was opened."""
        self._count += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self, *, by_server: bool = False) -> None:
        """Count a stream that ended.

        Args:
            by_server: the server ended it (slow reader, drain); it then counts for 30 s more.
        """
        if by_server and not self._closed:
            asyncio.get_running_loop().call_later(SERVER_ENDED_GRACE_S, self.release)
            return
        self._count -= 1
        if self._count == 0 and not self._closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._orphan_after_s, self._orphaned)

    def close(self) -> None:
        """Forget everything; the run is over."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _orphaned(self) -> None:
        self._timer = None
        self._on_orphaned()
