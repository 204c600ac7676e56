"""A run log that takes everything at once, for runs by themselves."""

import sys
from typing import Any, Final

from dragoman.router.runs.ledger import RunLedger


class _Taking:
    """A writer, its backlog and a run there."""

    def __init__(self) -> None:
        self.backlog = self
        self.logged = sys.maxsize
        self.is_begun, self.is_taken, self.failing = True, False, ""

    def changed(self, _logged: object) -> None: ...

    def append(self, *_event: object, **_how: object) -> None: ...

    def skip(self, _logged: object, _sequence: int) -> None: ...

    def over(self, _logged: object) -> None: ...

    def may_publish(self, _sequence: int) -> bool:
        return True

    def is_crowded(self, _logged: object) -> bool:
        return False

    async def flushed(self, _logged: object, _timeout_s: float) -> bool:
        return True


_TAKING: Final[Any] = _Taking()


class Unlogged(RunLedger):
    """A run's entry in it."""

    def __init__(self) -> None:
        super().__init__(_TAKING, _TAKING)
