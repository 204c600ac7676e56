"""One run at a terminal: its events, its questions, and Ctrl-C."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator

from dragoman.cli.display.screen import Screen
from dragoman.cli.display.style import Style
from dragoman.cli.display.summary import (
    exit_code,
    has_unconfirmed_processes,
    processes,
)
from dragoman.cli.display.text import one_line
from dragoman.cli.errors import as_text, error_report, is_unreachable
from dragoman.cli.exit_codes import EXIT_CANCELLED, EXIT_FAILED
from dragoman.cli.interaction.questions import Prompter
from dragoman.cli.interaction.terminal import LineReader
from dragoman.cli.interaction.typed import TypedInputs, typed_mode
from dragoman.client import DragomanError, Reason, RunStream
from dragoman.v1 import event_pb2 as pb

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_CANCEL_S = 60.0
"""Upper bound of cancelling a run after standard output was closed."""
_LAST_SEND_S = 2.0
"""Upper bound for sending what was typed before the run's end."""
_RESPONDER = "dragoman command line"


def is_interactive() -> bool:
    """Return whether the agent's questions can be answered at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class RunView:
    """One run at a terminal.

    Args:
        stream: the run; opened and closed by this class.
        screen: the output; already open.
        interactive: whether answers are read from standard input.
        types: whether other lines that are typed there are sent to the agent, if it takes any.
        owned: whether this program started the run, so that Ctrl-C cancels it; otherwise Ctrl-C detaches.
    """

    def __init__(
        self,
        stream: RunStream,
        screen: Screen,
        *,
        interactive: bool = False,
        types: bool = False,
        owned: bool = True,
    ) -> None:
        self._stream = stream
        stream.notify_broken(self._report_broken)
        self._screen = screen
        self._owned = owned
        self._mode = pb.INPUT_MODE_UNSPECIFIED
        """How the agent takes what is typed while it works."""
        self._types = types
        reader = LineReader(sys.stdin.fileno()) if interactive or types else None
        self._typed = TypedInputs(reader, self._send) if reader is not None else None
        self._prompter: Prompter | None = None
        if interactive and reader is not None and self._typed is not None:
            self._prompter = Prompter(reader, self._answer, self._typed)
        self._replayed: dict[str, pb.InputRequest] | None = None if owned else {}
        self._ended = False
        self._interrupts = 0
        self._main: asyncio.Task[int] | None = None
        self._cancels: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Follow the run and return the exit code.

        Raises:
            DragomanError: the call was rejected, or the stream broke and reconnecting failed.
        """
        self._main = asyncio.create_task(self._follow())
        with self._signals():
            try:
                return await self._main
            except asyncio.CancelledError:
                if not self._interrupts:
                    raise
                await self._screen.notify(f"detached from {self._stream.run_id} before its end")
                return EXIT_CANCELLED
            except OSError as error:
                return await self._output_closed(error)
            finally:
                await self._clean_up()

    async def _follow(self) -> int:
        async with self._stream as run:
            async for event in run:
                await self._handle(event)
        result = run.result
        if result is not None and not self._ended:
            await self._end(result)
        if result is None:
            return EXIT_FAILED
        return exit_code(result)

    async def _report_broken(self, _error: DragomanError) -> None:
        await self._screen.notify(f"the stream broke; reconnecting to {self._stream.run_id}…", Style.FAINT)

    async def _handle(self, event: pb.AgentEvent) -> None:
        kind = event.WhichOneof("body")
        await self._screen.show(event)
        if kind == "result":
            await self._end(event.result)
        elif kind == "started" and self._types and self._typed is not None:
            await self._read_typed(event.started, self._typed)
        elif self._prompter is not None:
            await self._handle_input(kind, event, self._prompter)

    async def _handle_input(self, kind: str | None, event: pb.AgentEvent, prompter: Prompter) -> None:
        """Ask open questions. Those of a replay are known to be open only when the replay is done."""
        due: list[pb.InputRequest] = []
        if kind == "input_request" and self._replayed is not None:
            self._replayed[event.input_request.id] = event.input_request
        elif kind == "input_request":
            due = [event.input_request]
        elif kind == "input_resolved":
            prompter.drop(event.input_resolved.id)
            if self._replayed is not None:
                self._replayed.pop(event.input_resolved.id, None)
        elif kind == "replay_done" and self._replayed is not None:
            due, self._replayed = list(self._replayed.values()), None
        for request in due:
            await self._screen.end_line()
            prompter.ask(request)

    async def _read_typed(self, started: pb.Started, typed: TypedInputs) -> None:
        """Read what is typed from now on, if the agent of this attempt takes it."""
        was_read, self._mode = bool(self._mode), typed_mode(started.capabilities)
        typed.enable(takes=bool(self._mode))
        if self._mode and not was_read:
            await self._screen.notify("type a line and press Enter to send it to the agent", Style.FAINT)

    async def _send(self, text: str) -> None:
        try:
            await self._stream.send(text, mode=self._mode, sender=_RESPONDER)
        except DragomanError as error:
            await self._screen.notify(as_text(error_report(error)).rstrip("\n"), Style.ERROR)
        except asyncio.CancelledError:
            await self._screen.notify(f"perhaps not sent to the agent: {one_line(text)}", Style.ERROR)
            raise

    async def _end(self, result: pb.Result) -> None:
        self._ended = True
        if self._typed is not None:
            await self._typed.close(wait_s=_LAST_SEND_S)
        if self._prompter is not None:
            await self._prompter.close()
        if self._interrupts or has_unconfirmed_processes(result):
            await self._screen.notify(f"{self._stream.run_id}: {processes(result)}")
        await self._screen.finish(result, self._stream.run_id)

    async def _answer(self, request_id: str, answer: pb.InputAnswer) -> str:
        try:
            await self._stream.respond(request_id, answer, responder=_RESPONDER)
        except DragomanError as error:
            if error.reason is Reason.INVALID_ANSWER:
                return str(error)
            await self._screen.notify(as_text(error_report(error)).rstrip("\n"), Style.ERROR)
        return ""

    # Ctrl-C.

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._interrupt)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _interrupt(self) -> None:
        """First cancel the run, then kill it, then detach."""
        if self._prompter is not None and self._prompter.is_editing:
            return
        self._interrupts += 1
        if self._owned and self._interrupts <= 2:
            task = asyncio.create_task(self._cancel(kill=self._interrupts == 2))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)
        elif self._main is not None:
            self._main.cancel()

    async def _cancel(self, *, kill: bool) -> None:
        run_id = self._stream.run_id
        doing = f"killing {run_id}; Ctrl-C again detaches" if kill else f"cancelling {run_id}; Ctrl-C again kills it"
        await self._screen.notify(doing)
        try:
            await self._stream.cancel(grace_s=0.0 if kill else None, reason="Ctrl-C")
        except DragomanError as error:
            if error.reason is Reason.RUN_NOT_FOUND and not self._stream.is_accepted and self._main is not None:
                self._main.cancel()
                return
            if is_unreachable(error) and self._main is not None:
                # The adapter or the next router waits for the client first, and then for `orphan_after`.
                ends = "if the run is live it is cancelled in about a minute, unless a client attaches"
                await self._screen.notify(f"the server is unreachable; {ends}", Style.ERROR)
                self._main.cancel()
                return
            await self._screen.notify(as_text(error_report(error)).rstrip("\n"), Style.ERROR)

    async def _output_closed(self, error: OSError) -> int:
        if self._owned:  # the user cannot see the run any more
            with contextlib.suppress(DragomanError, TimeoutError):
                cancelling = self._stream.cancel(reason="standard output was closed")
                await asyncio.wait_for(cancelling, _LAST_CANCEL_S)
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"error: cannot write the output: {error.strerror}\n")
        return EXIT_FAILED

    async def _clean_up(self) -> None:
        if self._typed is not None:
            await self._typed.close()
        if self._prompter is not None:
            await self._prompter.close()
        for task in self._cancels:
            task.cancel()
        await asyncio.gather(*self._cancels, return_exceptions=True)
