"""The output of one run: text for people, or JSON lines for programs."""

import asyncio
import contextlib
import sys
from typing import Self

from dragoman.cli.display.output import Output
from dragoman.cli.display.renderer import Renderer
from dragoman.cli.display.style import Segment, Style, coloured, plain, wants_colour
from dragoman.cli.display.summary import last_line, outcome_style
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format

_PATIENCE_S = 0.3
"""How long a notice waits for pending output, so that the two do not mix."""


def json_line(event: pb.AgentEvent) -> str:
    """Return an event as a line of protobuf JSON, escaped to ASCII so that it cannot control a terminal."""
    return json_format.MessageToJson(event, indent=None) + "\n"


class Screen:
    """Standard output and standard error of one run; an asynchronous context manager.

    Args:
        as_json: one line of JSON per event on standard output; text for people goes to standard error.
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
            OSError: standard output cannot be written.
        """
        if self._json:
            await self._print(json_line(event))
        else:
            await self._print(self._out_style(self._renderer.render(event)))

    def observe(self, event: pb.AgentEvent) -> None:
        """Pass an event to the renderer without showing it."""
        self._renderer.render(event)

    async def notify(self, text: str, style: Style = Style.STRONG) -> None:
        """Write a line about the run to standard error, even if standard output is blocked or closed."""
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self.end_line(), _PATIENCE_S)
        with contextlib.suppress(OSError):
            sys.stderr.write(self._error_style([Segment(text, style), Segment("\n")]))
            sys.stderr.flush()

    async def finish(self, result: pb.Result, run_id: str) -> None:
        """Print the summary line of a run.

        Raises:
            OSError: standard output cannot be written.
        """
        line = last_line(result, run_id)
        style = outcome_style(result)
        if self._renderer.hidden_lines:
            number = self._renderer.hidden_lines
            lines = f"{number} lines were" if number > 1 else "1 line was"
            await self.notify(f"{lines} not recognized; --debug shows them", Style.FAINT)
        if self._json:
            await self.notify(line, style)
            await self.flush()
            return
        await self.end_line()
        await self._print(self._out_style([Segment(line, style), Segment("\n")]))
        await self.flush()

    async def end_line(self) -> None:
        """Finish an incomplete line, and wait until it is written.

        Raises:
            OSError: standard output cannot be written.
        """
        if not self._json:
            await self._print(self._out_style(self._renderer.break_line()))
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: standard output cannot be written.
        """
        if self._output is not None:
            await self._output.flush()
