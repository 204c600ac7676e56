"""A run log that takes everything at once, for runs by themselves."""

import sys

from dragoman.router.runs.intake import EventIntake, parsed


class Unlogged:
    """A run's entry in it."""

    is_begun, is_taken = True, False
    logged = sys.maxsize

    def changed(self) -> None: ...

    def append(self, *_event: object, **_how: object) -> None: ...

    def skip(self, _sequence: int) -> None: ...

    def over(self) -> None: ...

    def remove(self) -> None: ...

    def is_ready(self, _sequence: int) -> bool:
        return True

    async def flushed(self, _timeout_s: float) -> bool:
        return True

    async def assigned(self) -> None: ...


async def take(intake: EventIntake, message: bytes) -> None:
    """Have a run take what its adapter sent, once it may be published."""
    event = parsed(message)
    if not intake.take_at_once(event, message):
        await intake.take_waiting(event, message)
