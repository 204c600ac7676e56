"""Lines that are typed while an agent works, and no question of it is open: inputs for the run."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dragoman.cli.interaction.terminal import EndOfInputError, LineReader
from dragoman.v1 import event_pb2 as pb


def typed_mode(capabilities: pb.Capabilities) -> pb.InputMode.ValueType:
    """Return how an agent takes what is typed while it works; UNSPECIFIED if it takes nothing."""
    features = {item.feature for item in capabilities.items}
    if pb.FEATURE_STEER in features:
        return pb.INPUT_MODE_STEER
    return pb.INPUT_MODE_QUEUE if pb.FEATURE_QUEUE in features else pb.INPUT_MODE_UNSPECIFIED


class TypedInputs:
    """Sends each line that is typed, one after another, while the agent takes any and no question is open.

    Args:
        reader: reads the lines; questions read them while one is open.
        send: sends a line, and reports it if that fails.
    """

    def __init__(self, reader: LineReader, send: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self._reader = reader
        self._send = send
        self._reading: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._takes = self._has_begun = self._is_over = False
        self._questions = 0

    def enable(self, *, takes: bool) -> None:
        """Set whether the agent takes what is typed."""
        self._takes = takes
        self._update()

    def hold(self) -> None:
        """Leave the lines to a question that is open from now on; what is being sent is sent."""
        self._questions += 1
        self._update()

    def release(self) -> None:
        """Note that a question is no longer open."""
        self._questions -= 1
        self._update()

    async def close(self, *, wait_s: float = 0.0) -> None:
        """Read nothing any more; cancel what is not sent in so many seconds."""
        self._is_over = True
        self._update()
        if self._sending and wait_s:
            await asyncio.wait(self._sending, timeout=wait_s)
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _update(self) -> None:
        is_due = self._takes and not self._questions and not self._is_over
        if is_due and self._reading is None:
            if not self._has_begun:  # what was typed before was not meant for the agent
                self._has_begun = True
                self._reader.discard(in_background=False)
            self._reading = asyncio.create_task(self._read())
        elif not is_due and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read(self) -> None:
        try:
            while True:
                line = (await self._reader.line(in_background=False)).strip()
                if line:
                    sending = asyncio.create_task(self._send(line))
                    self._sending.add(sending)
                    sending.add_done_callback(self._sending.discard)
                    await asyncio.shield(sending)
        except EndOfInputError:
            self._is_over = True
