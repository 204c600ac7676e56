"""Where a run is shown: as text for people, or as JSON lines for programs."""

import asyncio
import contextlib
import sys
from typing import Self

from dragoman.cli._output import Output
from dragoman.cli._render import Renderer
from dragoman.cli._style import Segment, Style, coloured, plain, wants_colour
from dragoman.cli._summary import last_line, outcome_style
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format

_PATIENCE_S = 0.3
"""How long what is said waits for what was shown before, so that the two do not mix."""


def json_line(event: pb.AgentEvent) -> str:
    """Return an event as protobuf JSON, on one line. What is not ASCII is escaped, so it steers no terminal."""
    return json_format.MessageToJson(event, indent=None) + "\n"


class Screen:
    """Standard output and standard error of one run; an asynchronous context manager.

    Args:
        as_json: one line of JSON per event on standard output; people's text goes to standard error.
        debug: show everything.
    """

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self._json = as_json
        self._renderer = Renderer(debug=debug)
        self._out_style = coloured if wants_colour(sys.stdout) else plain
        self._error_style = coloured if wants_colour(sys.stderr) else plain
        self._output: Output | None = None

    async def __aenter__(self) -> Self:
        self._output = Output(sys.stdout)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._output is not None:
            self._output.close()

    async def _print(self, text: str) -> None:
        if self._output is None:
            raise RuntimeError("the screen is not open; use it as 'async with Screen() as screen'")
        await self._output.write(text)

    async def show(self, event: pb.AgentEvent) -> None:
        """Show one event.

        Raises:
            OSError: standard output is gone.
        """
        if self._json:
            await self._print(json_line(event))
        else:
            await self._print(self._out_style(self._renderer.render(event)))

    def recall(self, event: pb.AgentEvent) -> None:
        """Take note of an event that was shown elsewhere before."""
        self._renderer.render(event)

    async def say(self, text: str, style: Style = Style.STRONG) -> None:
        """Say something about the run, on standard error, on a line of its own.

        A standard output that is stopped or gone does not keep it from being said.
        """
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self.end_line(), _PATIENCE_S)
        with contextlib.suppress(OSError):
            sys.stderr.write(self._error_style([Segment(text, style), Segment("\n")]))
            sys.stderr.flush()

    async def finish(self, result: pb.Result, run_id: str) -> None:
        """Print the last line of a run.

        Raises:
            OSError: standard output is gone.
        """
        line = last_line(result, run_id)
        style = outcome_style(result)
        if self._renderer.hidden_lines:
            number = self._renderer.hidden_lines
            lines = f"{number} lines were" if number > 1 else "1 line was"
            await self.say(f"{lines} not recognised; --debug shows them", Style.FAINT)
        if self._json:
            await self.say(line, style)
            return
        await self.end_line()
        await self._print(self._out_style([Segment(line, style), Segment("\n")]))
        await self.flush()

    async def end_line(self) -> None:
        """End a line that is still open, and wait until it is written.

        Raises:
            OSError: standard output is gone.
        """
        if not self._json:
            await self._print(self._out_style(self._renderer.break_line()))
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: standard output is gone.
        """
        if self._output is not None:
            await self._output.flush()
