"""Following one run to its end: showing its events, asking its questions, obeying Ctrl-C."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from dragoman.cli._ask import Asker
from dragoman.cli._failures import as_text, complaint, is_nobody_there
from dragoman.cli._handles import store
from dragoman.cli._screen import Screen
from dragoman.cli._style import Style
from dragoman.cli._summary import EXIT_CANCELLED, EXIT_FAILED, EXIT_OK, exit_code, has_doubtful_processes, processes
from dragoman.cli._terminal import LineReader
from dragoman.client import DragomanError, Reason, RunStream
from dragoman.v1 import event_pb2 as pb

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_CANCEL_S = 60.0
"""How long the end of a run is waited for whose output nobody reads."""
_RESPONDER = "dragoman command line"


def is_interactive() -> bool:
    """Tell whether somebody sits at a terminal to answer questions."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Drive:
    """One run at a terminal.

    Args:
        stream: the run; this opens and closes it.
        screen: where it is shown; open.
        interactive: whether questions are asked on standard input.
        session_file: where to keep the session handle; ``None`` for nowhere.
        owned: whether the run is ours, so that Ctrl-C ends it; somebody else's is only left.
    """

    def __init__(
        self,
        stream: RunStream,
        screen: Screen,
        *,
        interactive: bool = False,
        session_file: Path | None = None,
        owned: bool = True,
    ) -> None:
        self._stream = stream
        stream.on_broken = self._say_broken
        self._screen = screen
        self._session_file = session_file
        self._owned = owned
        self._asker = Asker(LineReader(sys.stdin.fileno()), self._answer) if interactive else None
        self._unasked: dict[str, pb.InputRequest] | None = None if owned else {}
        self._is_over = False
        self._is_kept = True
        self._interrupts = 0
        self._main: asyncio.Task[int] | None = None
        self._cancels: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Follow the run and return the exit code.

        Raises:
            DragomanError: the call was refused, or its stream was lost for good.
        """
        self._main = asyncio.ensure_future(self._follow())
        with self._signals():
            try:
                return await self._main
            except asyncio.CancelledError:
                if not self._interrupts:
                    raise
                await self._screen.say(f"left {self._stream.run_id}; it was not seen to end")
                return EXIT_CANCELLED
            except OSError as error:
                return await self._nobody_reads(error)
            finally:
                await self._tidy()

    async def _follow(self) -> int:
        async with self._stream as run:
            async for event in run:
                await self._take(event)
        result = run.result
        if result is not None and not self._is_over:
            await self._end(result)
        if result is None:
            return EXIT_FAILED
        return exit_code(result) or (EXIT_OK if self._is_kept else EXIT_FAILED)

    async def _say_broken(self, _error: DragomanError) -> None:
        await self._screen.say(f"the stream broke; looking for {self._stream.run_id} again…", Style.FAINT)

    async def _take(self, event: pb.AgentEvent) -> None:
        kind = event.WhichOneof("body")
        await self._screen.show(event)
        if kind == "result":
            await self._end(event.result)
        elif self._asker is not None:
            await self._take_question(kind, event, self._asker)

    async def _take_question(self, kind: str | None, event: pb.AgentEvent, asker: Asker) -> None:
        """Ask what waits for an answer; of what is only repeated that is known when the repetition is over."""
        asked: list[pb.InputRequest] = []
        if kind == "input_request" and self._unasked is not None:
            self._unasked[event.input_request.id] = event.input_request
        elif kind == "input_request":
            asked = [event.input_request]
        elif kind == "input_resolved":
            asker.drop(event.input_resolved.id)
            if self._unasked is not None:
                self._unasked.pop(event.input_resolved.id, None)
        elif kind == "replay_done" and self._unasked is not None:
            asked, self._unasked = list(self._unasked.values()), None
        for request in asked:
            await self._screen.end_line()
            asker.ask(request)

    async def _end(self, result: pb.Result) -> None:
        self._is_over = True
        if self._asker is not None:
            await self._asker.close()
        if self._interrupts or has_doubtful_processes(result):
            await self._screen.say(f"{self._stream.run_id}: {processes(result)}")
        if self._session_file is not None:
            self._is_kept = await self._keep_session(self._session_file, result.session)
        await self._screen.finish(result, self._stream.run_id)

    async def _keep_session(self, path: Path, update: pb.SessionUpdate) -> bool:
        try:
            store(path, update)
        except OSError as error:
            await self._screen.say(f"the session could not be kept in {path}: {error.strerror}", Style.ERROR)
            return False
        return True

    async def _answer(self, request_id: str, answer: pb.InputAnswer) -> str:
        try:
            await self._stream.respond(request_id, answer, responder=_RESPONDER)
        except DragomanError as error:
            if error.reason is Reason.INVALID_ANSWER:
                return str(error)
            await self._screen.say(as_text(complaint(error)).rstrip("\n"), Style.ERROR)
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
        """First ask the run to end, then kill it, then leave without it."""
        if self._asker is not None and self._asker.is_editing:
            return
        self._interrupts += 1
        if self._owned and self._interrupts <= 2:
            task = asyncio.ensure_future(self._cancel(kill=self._interrupts == 2))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)
        elif self._main is not None:
            self._main.cancel()

    async def _cancel(self, *, kill: bool) -> None:
        run_id = self._stream.run_id
        doing = f"killing {run_id}; Ctrl-C again leaves it" if kill else f"cancelling {run_id}; Ctrl-C again kills it"
        await self._screen.say(doing)
        try:
            await self._stream.cancel(grace_s=0.0 if kill else None, reason="Ctrl-C")
        except DragomanError as error:
            if error.reason is Reason.RUN_NOT_FOUND and not self._stream.is_accepted and self._main is not None:
                self._main.cancel()
                return
            if is_nobody_there(error) and self._main is not None:
                # Its adapter or the next router waits for its reader first, and then for `orphan_after`.
                ends = "if it runs, it is cancelled in about a minute, unless somebody follows it"
                await self._screen.say(f"nobody answers; {ends}", Style.ERROR)
                self._main.cancel()
                return
            await self._screen.say(as_text(complaint(error)).rstrip("\n"), Style.ERROR)

    async def _nobody_reads(self, error: OSError) -> int:
        if self._owned:  # whoever read our output is gone, and so is the one who asked for the run
            with contextlib.suppress(DragomanError, TimeoutError):
                cancelling = self._stream.cancel(reason="nobody reads the output any more")
                await asyncio.wait_for(cancelling, _LAST_CANCEL_S)
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"error: cannot write the output: {error.strerror}\n")
        return EXIT_FAILED

    async def _tidy(self) -> None:
        if self._asker is not None:
            await self._asker.close()
        for task in self._cancels:
            task.cancel()
        await asyncio.gather(*self._cancels, return_exceptions=True)
