"""The output of one run: text for people, or JSON lines for programs."""

import asyncio
import contextlib
import shutil
import sys
from typing import Self

from dragoman.cli.display.output import Output
from dragoman.cli.display.renderer import Renderer
from dragoman.cli.display.so_far import SoFar
from dragoman.cli.display.style import Segment, Style, coloured, plain, wants_colour
from dragoman.cli.display.summary import last_line, outcome_style
from dragoman.cli.display.text import fit
from dragoman.v1 import event_pb2 as pb

_ERASE = "\r\x1b[2K"
"""Erases the terminal's present line."""
_PATIENCE_S = 0.3
"""How long a notice waits for pending output, so that the two do not mix."""


def json_line(event: pb.AgentEvent) -> str:
    """Return an event as a line of protobuf JSON, escaped to ASCII so that it cannot control a terminal."""
    from google.protobuf import json_format  # noqa: PLC0415 - for --json alone

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
        self._so_far = SoFar()
        self._has_status = not as_json and sys.stdout.isatty() and wants_colour(sys.stdout)
        self._status = ""
        """What stands in the present line until something else is printed."""

    async def __aenter__(self) -> Self:
        self._output = Output(sys.stdout)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._output is not None:
            with contextlib.suppress(OSError):
                await self._print("")
            self._output.close()

    async def _print(self, text: str, status: str = "") -> None:
        """Print a text, and behind it a status that the next one takes the place of."""
        if self._output is None:
            raise RuntimeError("the screen is not open; use it as 'async with Screen() as screen'")
        if text or status != self._status:
            erased, self._status = _ERASE if self._status else "", status
            shown = self._out_style([Segment(status, Style.FAINT)]) if status else ""
            await self._output.write(erased + text + shown)

    async def show(self, event: pb.AgentEvent) -> None:
        """Show one event.

        Raises:
            OSError: standard output cannot be written.
        """
        if self._json:
            await self._print(json_line(event))
        else:
            self._so_far.take(event)
            text, status = self._out_style(self._renderer.render(event)), ""
            if self._has_status and self._renderer.is_at_line_start and not event.HasField("result"):
                status = fit(self._so_far.text, shutil.get_terminal_size().columns - 1)
            await self._print(text, status)

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
