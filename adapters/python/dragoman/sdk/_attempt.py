"""One attempt of a command-line agent: a child, its output understood, its questions answered, its end brought about.

Output is always read, whatever else happens; nothing here waits for a reader. Deadlines (three clocks, the grace
of a cancel, the time after the agent's last word) are looked at in one place, ``_supervise``.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from dragoman.protocol.limits import MAX_LINE_BYTES, MAX_NATIVE_BYTES
from dragoman.sdk._child import Child, ChildEnd, ChildSpec
from dragoman.sdk._clocks import Clock, Clocks
from dragoman.sdk._job import Job, Plan
from dragoman.sdk._lines import HeadTail, Line, LineSplitter, cut_text, well_formed
from dragoman.sdk._outcome import Evidence
from dragoman.sdk._parser import Answer, Ask, Output, Parser, Stream, Withdraw, Write, log_event
from dragoman.sdk._permissions import decide
from dragoman.sdk._run import Run
from dragoman.v1 import event_pb2 as pb

_HEAD_BYTES = _TAIL_BYTES = 16 * 1024
_STDERR_TAIL_BYTES = 8 * 1024
_ALLOWING = (pb.INPUT_OPTION_KIND_ALLOW_ONCE, pb.INPUT_OPTION_KIND_ALLOW_ALWAYS)

_log = structlog.get_logger("dragoman.sdk")


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """What an attempt left behind."""

    evidence: Evidence
    tree_confirmed_dead: bool
    raw: HeadTail
    """What could not be parsed of standard output."""


class Attempt:
    """Runs one plan. Use once: ``await Attempt(...).go()``."""

    def __init__(
        self,
        run: Run,
        job: Job,
        plan: Plan,
        parser: Parser,
        environment: Mapping[str, str],
        clocks: Clocks,
        *,
        linger_s: float,
        native_protocol: str,
    ) -> None:
        self._run = run
        self._job = job
        self._plan = plan
        self._parser = parser
        self._environment = environment
        self._clocks = clocks
        self._linger_s = linger_s
        self._native_protocol = native_protocol
        self._splitters = {"stdout": LineSplitter(MAX_LINE_BYTES), "stderr": LineSplitter(MAX_LINE_BYTES)}
        self._raw = HeadTail(_HEAD_BYTES, _TAIL_BYTES)
        self._stderr = HeadTail(0, _STDERR_TAIL_BYTES)
        self._budget = job.settings.output_bytes
        self._child: Child | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._spawn_error = ""
        self._stopped_by: Clock | None = None
        self._stop_began: float | None = None
        self._stop_deadline = 0.0
        self._steps_done = 0
        self._linger_deadline: float | None = None
        self._was_killed = False
        self._before_child: list[bytes] = []

    async def go(self) -> AttemptEnd:
        """Start the child and see it through to its proven end. Cancelled, it kills and still cleans up."""
        spec = ChildSpec(
            argv=self._plan.argv, cwd=self._job.settings.cwd or str(self._job.run_dir), env=self._environment
        )
        child = await Child.start(spec, self)
        self._child = child
        for data in (self._plan.stdin, *self._before_child):
            if data:
                child.write_stdin(data)
        if not self._plan.keep_stdin_open:
            child.close_stdin()
        ended = asyncio.ensure_future(child.wait())
        try:
            await self._supervise(ended)
            end = await ended
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
            self._run.inputs.drop_all()
            await asyncio.gather(*self._answering, return_exceptions=True)
        self._take(self._parser_finish(), None)
        return AttemptEnd(self._evidence(end), end.tree_confirmed_dead, self._raw)

    def _evidence(self, end: ChildEnd) -> Evidence:
        return Evidence(
            report=self._parser.report,
            exit_code=end.code,
            exit_signal=end.signal,
            spawn_error=end.spawn_error or "",
            stopped_by=self._stopped_by,
            cancelled=self._run.cancel_wish.is_asked,
            resumed=self._job.session.resumes,
            stdout_tail=self._raw.text(),
            stderr_tail=self._stderr.text(),
            command=self._job.executable,
        )

    # What the child tells (ChildHandler).

    def spawned(self, pid: int, pgid: int) -> None:
        """Note that the agent runs."""
        self._clocks.spawned(time.monotonic())
        if not self._run.cancel_wish.is_asked:
            self._run.state(pb.RUN_PHASE_RUNNING, pid=pid, process_group_id=pgid)

    def spawn_failed(self, errno_name: str, message: str) -> None:
        """Note that the agent could not be started; the evidence has it."""
        del message
        self._spawn_error = errno_name

    def data(self, stream: Stream, data: bytes) -> None:
        """Take output: activity for the clocks, lines for the parser."""
        self._clocks.activity(time.monotonic())
        counters = self._run.counters
        if stream == "stdout":
            counters.stdout_bytes += len(data)
        else:
            counters.stderr_bytes += len(data)
            self._stderr.feed(data)
        data = self._within_budget(data)
        for line in self._splitters[stream].feed(data):
            self._line(stream, line)

    def eof(self, stream: Stream) -> None:
        """Take what was left without a newline."""
        for line in self._splitters[stream].finish():
            self._line(stream, line)

    def exited(self, code: int | None, signal: int | None) -> None:
        """Nothing to do: the end of the tree is what counts."""

    def _within_budget(self, data: bytes) -> bytes:
        if self._budget is None:
            return data
        kept = data[: self._budget]
        dropped = len(data) - len(kept)
        if dropped and self._budget >= 0:
            if not self._run.counters.dropped_bytes:
                message = (
                    f"The agent's output exceeded limits.output_bytes ({self._job.settings.output_bytes} bytes)."
                )
                self._run.notice(
                    pb.SEVERITY_WARNING, "output_cut", message, "What follows is thrown away and counted."
                )
            self._run.counters.dropped_bytes += dropped
        self._budget -= len(kept)
        return kept

    def _line(self, stream: Stream, line: Line) -> None:
        if line.cut_bytes:
            self._run.counters.dropped_bytes += line.cut_bytes
            message = f"A line on {stream} was longer than {MAX_LINE_BYTES} bytes; {line.cut_bytes} bytes were cut."
            self._run.notice(pb.SEVERITY_WARNING, "line_too_long", message)
        try:
            outputs = list(self._parser.line(stream, line))
        except Exception as error:  # noqa: BLE001 - whatever an agent prints, its run goes on
            _log.error("parser failed", run_id=self._run.run_id, failure=error)
            outputs = [log_event(stream, line)]
        if stream == "stdout" and any(_is_log(output) for output in outputs):
            self._raw.feed(line.data + b"\n")
        self._take(outputs, line)

    def _parser_finish(self) -> list[Output]:
        try:
            return list(self._parser.finish())
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("parser failed", run_id=self._run.run_id, failure=error)
            return []

    def _take(self, outputs: list[Output], line: Line | None) -> None:
        native = line if self._run.request.include_native else None
        for output in outputs:
            if isinstance(output, pb.AgentEvent):
                if native is not None and not _is_log(output):
                    self._attach_native(output, native)
                    native = None
                self._run.emit(output)
            elif isinstance(output, Ask):
                self._ask(output)
            elif isinstance(output, Withdraw):
                self._run.inputs.withdraw(output.request_id)
            elif isinstance(output, Write):
                self._write(output.data)
            elif self._child is not None:
                self._child.close_stdin()
        if self._parser.report.terminal is not None and self._linger_deadline is None and line is not None:
            self._agent_is_done()

    def _attach_native(self, event: pb.AgentEvent, line: Line) -> None:
        text, cut = cut_text(well_formed(line.data.decode("utf-8", "replace")), MAX_NATIVE_BYTES)
        event.native.CopyFrom(pb.NativeFrame(protocol=self._native_protocol, text=text, truncated_bytes=cut))

    def _agent_is_done(self) -> None:
        # It has said its last word; what lingers then is not waited for, and is no failure.
        self._linger_deadline = time.monotonic() + self._linger_s
        self._run.inputs.drop_all()
        if self._child is not None:
            self._child.close_stdin()
        self._wake.set()

    def _write(self, data: bytes) -> None:
        if self._child is None:
            self._before_child.append(data)
        else:
            self._child.write_stdin(data)

    # Questions.

    def _ask(self, ask: Ask) -> None:
        request = ask.request
        if request.kind != pb.INPUT_KIND_PERMISSION:
            decision = pb.PERMISSION_DECISION_ASK if self._job.interactive else pb.PERMISSION_DECISION_DENY
        else:
            decision = decide(self._job.permissions, request.subject)
        if decision == pb.PERMISSION_DECISION_ASK:
            task = asyncio.ensure_future(self._ask_caller(ask))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        allowed = decision == pb.PERMISSION_DECISION_ALLOW
        if not allowed:
            self._tell_denied(request)
        option = next((item for item in request.options if (item.kind in _ALLOWING) == allowed), None)
        message = "" if allowed else "Not allowed by this run's permission policy."
        self._write(ask.encode(Answer(allowed=allowed, option=option, message=message)))

    def _tell_denied(self, request: pb.InputRequest) -> None:
        if request.kind == pb.INPUT_KIND_PERMISSION:
            what = request.subject.tool_name or request.title
            hint = "Allow it with a rule in permissions, or run with permissions.interactive and answer."
            self._run.notice(pb.SEVERITY_WARNING, "permission_denied", f"{what} was denied by policy.", hint)
        else:
            hint = "Run with permissions.interactive and answer."
            self._run.notice(pb.SEVERITY_WARNING, "question_declined", "The agent asked; nobody is there.", hint)

    async def _ask_caller(self, ask: Ask) -> None:
        self._clocks.waiting(time.monotonic(), is_waiting=True)
        resolution = await self._run.ask(ask.request)
        self._clocks.waiting(time.monotonic(), is_waiting=self._run.inputs.is_waiting)
        self._wake.set()
        if resolution.how == pb.INPUT_RESOLUTION_DROPPED:
            return
        answer, option = resolution.answer, resolution.option(ask.request)
        allowed = option is not None and option.kind in _ALLOWING
        self._write(
            ask.encode(
                Answer(
                    allowed=allowed,
                    option=option,
                    updated_input_json=answer.updated_input_json,
                    text=answer.text,
                    value_json=answer.value_json,
                    message=answer.message,
                )
            )
        )

    # Deadlines.

    async def _supervise(self, ended: "asyncio.Future[ChildEnd]") -> None:
        wish = self._run.cancel_wish
        while not ended.done():
            now = time.monotonic()
            self._act(now)
            waits: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(self._wake.wait()),
                asyncio.ensure_future(wish.changed.wait()),
            ]
            deadline = self._next_deadline()
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                await asyncio.wait({ended, *waits}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            self._wake.clear()
            wish.changed.clear()

    def _next_deadline(self) -> float | None:
        if self._was_killed:
            return None
        deadlines = [self._linger_deadline]
        if self._stop_began is not None:
            deadlines.append(self._next_stop_time())
        elif (clock := self._clocks.next()) is not None:
            deadlines.append(clock[0])
        return min((item for item in deadlines if item is not None), default=None)

    def _act(self, now: float) -> None:
        """Do what is due."""
        if self._was_killed:
            return
        if self._run.cancel_wish.deadline is not None:
            # The wish's deadline is in loop time; both clocks are monotonic, only their origins may differ.
            left = self._run.cancel_wish.deadline - asyncio.get_running_loop().time()
            self._begin_stop(now, now + left)
        elif self._stop_began is None and self._linger_deadline is None:
            expired = self._clocks.expired(now)
            if expired is not None:
                self._stopped_by = expired
                self._begin_stop(now, now + self._job.settings.grace_s)
        if self._stop_began is not None:
            self._take_stop_steps(now)
        if self._linger_deadline is not None and now >= self._linger_deadline:
            self._kill()

    def _begin_stop(self, now: float, deadline: float) -> None:
        if self._stop_began is None:
            self._stop_began = now
            self._stop_deadline = deadline
            self._run.inputs.drop_all()
        self._stop_deadline = min(self._stop_deadline, deadline)

    def _next_stop_time(self) -> float:
        assert self._stop_began is not None
        steps = self._plan.cancel
        if self._steps_done >= len(steps):
            return self._stop_deadline
        share = sum(step.share for step in steps[: self._steps_done])
        return min(self._stop_deadline, self._stop_began + share * (self._stop_deadline - self._stop_began))

    def _take_stop_steps(self, now: float) -> None:
        while self._steps_done < len(self._plan.cancel) and now >= self._next_stop_time():
            if now >= self._stop_deadline:
                break
            step = self._plan.cancel[self._steps_done]
            self._steps_done += 1
            if step.write:
                self._write(step.write)
            if step.signal is not None and self._child is not None:
                self._child.signal(step.signal)
        if now >= self._stop_deadline:
            self._kill()

    def _kill(self) -> None:
        self._was_killed = True
        if self._child is not None:
            self._child.kill()


def _is_log(output: Output) -> bool:
    return isinstance(output, pb.AgentEvent) and output.WhichOneof("body") == "log"
