"""One attempt of a command-line agent: a child, its output understood, its questions answered, its end brought about.

Output is always read, whatever else happens; nothing here waits for a reader. Deadlines (three clocks, the grace
of a cancel, the time after the agent's last word) are looked at in one place, ``_supervise``.
"""

import asyncio
import os.path
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from dragoman.protocol.limits import MAX_LINE_BYTES
from dragoman.protocol.logs import failure_fields
from dragoman.sdk._child import Child, ChildEnd, ChildSpec
from dragoman.sdk._clocks import Clock, Clocks
from dragoman.sdk._framing import Splitter, make_splitter
from dragoman.sdk._job import Job, Plan
from dragoman.sdk._lines import HeadTail, Line, LineSplitter, well_formed
from dragoman.sdk._outcome import Evidence
from dragoman.sdk._parser import Ask, Interrupts, Output, Parser, Perform, Stream, Withdraw, Write, log_event
from dragoman.sdk._performing import Performing
from dragoman.sdk._questions import Questions
from dragoman.sdk._run import Run
from dragoman.sdk._stopping import Stopping
from dragoman.v1 import event_pb2 as pb

_HEAD_BYTES = _TAIL_BYTES = 16 * 1024
_STDERR_TAIL_BYTES = 8 * 1024

_log = structlog.get_logger("dragoman.sdk")


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """What an attempt left behind."""

    evidence: Evidence
    tree_confirmed_dead: bool
    raw: HeadTail
    """What could not be parsed of standard output."""


def nothing_spawned(evidence: Evidence) -> AttemptEnd:
    """Return the end of an attempt that had no child process."""
    return AttemptEnd(evidence, tree_confirmed_dead=True, raw=HeadTail(0, 0))


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
        self._splitters: dict[str, Splitter] = {
            "stdout": make_splitter(plan.framing, MAX_LINE_BYTES),
            "stderr": LineSplitter(MAX_LINE_BYTES),
        }
        self._raw = HeadTail(_HEAD_BYTES, _TAIL_BYTES)
        self._stderr = HeadTail(0, _STDERR_TAIL_BYTES)
        self._budget = job.settings.output_bytes
        self._over_budget = False
        self._child: Child | None = None
        self._has_exited = False
        self._was_cancelled = False
        self._wake = asyncio.Event()
        self._spawn_error = ""
        self._lost_workspace = False
        self._stopped_by: Clock | None = None
        self._stopping = Stopping(plan.cancel)
        self._linger_deadline: float | None = None
        self._was_killed = False
        self._performing = Performing(job, environment, self._write)
        self._questions = Questions(run, job, self._write, self._clocks_wait, self._performing.begin)
        self._stdin = [plan.stdin]
        """Written once there is a child."""
        self._closes_stdin = not plan.keep_stdin_open

    async def go(self) -> AttemptEnd:
        """Start the child and see it through to its proven end. Cancelled, it kills and still cleans up."""
        if self._run.cancel_wish.is_asked:  # while the agent was looked for; nothing needs to be started any more
            self._was_cancelled = True
            return AttemptEnd(self._evidence(None), tree_confirmed_dead=True, raw=self._raw)
        spec = ChildSpec(
            argv=self._plan.argv,
            cwd=self._job.settings.cwd or str(self._job.run_dir),
            env=self._environment,
            private_dir=str(self._job.run_dir),
        )
        child = await Child.start(spec, self)
        self._child = child
        for data in self._stdin:
            child.write_stdin(data)
        if self._closes_stdin:
            child.close_stdin()
        ended = asyncio.ensure_future(child.wait())
        try:
            await self._supervise(ended)
            end = await ended
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
            self._run.inputs.drop_all()
            others_gone = await self._performing.close()
        self._take(self._parser_says(self._parser.finish), None)
        return AttemptEnd(self._evidence(end), end.tree_confirmed_dead and others_gone, self._raw)

    def _evidence(self, end: ChildEnd | None) -> Evidence:
        return Evidence(
            report=self._parser.report,
            exit_code=end.code if end else None,
            exit_signal=end.signal if end else None,
            spawn_error=self._spawn_error,
            lost_workspace=self._lost_workspace,
            stopped_by=self._stopped_by,
            cancelled=self._was_cancelled,
            resumed=self._job.session.resumes,
            stdout_tail=self._raw.text(),
            stderr_tail=self._stderr.text(),
            command=self._job.executable,
        )

    # What the child tells (ChildHandler).

    def spawned(self, pid: int, pgid: int) -> None:
        """Note that the agent runs."""
        self._clocks.spawned(self._now())
        if not self._run.cancel_wish.is_asked:
            self._run.state(pb.RUN_PHASE_RUNNING, pid=pid, process_group_id=pgid)

    def spawn_failed(self, errno_name: str, message: str) -> None:
        """Note that the agent could not be started; the evidence has it."""
        del message
        self._spawn_error = errno_name
        # The same errors mean a directory that was there when the request was checked.
        self._lost_workspace = bool(self._job.settings.cwd) and not os.path.isdir(self._job.settings.cwd)  # noqa: PTH112 - a string is at hand

    def data(self, stream: Stream, data: bytes) -> None:
        """Take output: activity for the clocks, lines for the parser."""
        self._clocks.activity(self._now())
        counters = self._run.counters
        if stream == "stdout":
            counters.stdout_bytes += len(data)
        else:
            counters.stderr_bytes += len(data)
        for line in self._splitters[stream].feed(self._within_budget(data)):
            self._line(stream, line)

    def eof(self, stream: Stream) -> None:
        """Take what was left without a newline."""
        for line in self._splitters[stream].finish():
            self._line(stream, self._decided(line) if self._over_budget else line)

    def exited(self, code: int | None, signal: int | None) -> None:
        """Note what had been asked by then: what comes later did not make it end."""
        del code, signal
        self._has_exited = True
        self._was_cancelled = self._run.cancel_wish.is_asked

    def _within_budget(self, data: bytes) -> bytes:
        if self._budget is None:
            return data
        kept = data[: self._budget]
        self._budget -= len(kept)
        dropped = len(data) - len(kept)
        if dropped and not self._over_budget:
            self._over_budget = True
            message = f"The agent's output exceeded limits.output_bytes ({self._job.settings.output_bytes} bytes)."
            hint = "What follows is thrown away and counted."
            self._run.notice(pb.SEVERITY_WARNING, "output_cut", message, hint)
        self._run.counters.dropped_bytes += dropped
        return kept

    def _decided(self, line: Line) -> Line:
        """Return the line that the budget has cut without what may be the first half of a secret."""
        text = line.data.decode("utf-8", "surrogateescape")
        kept = text[: self._run.redactor.undecided(text)].encode("utf-8", "surrogateescape")
        self._run.counters.dropped_bytes += len(line.data) - len(kept)
        return line._replace(data=kept)

    def _line(self, stream: Stream, line: Line) -> None:
        if line.cut_bytes:
            self._run.counters.dropped_bytes += line.cut_bytes
            message = f"A line on {stream} was longer than {MAX_LINE_BYTES} bytes; {line.cut_bytes} bytes were cut."
            self._run.notice(pb.SEVERITY_WARNING, "line_too_long", message)
        try:
            outputs = list(self._parser.line(stream, line))
        except Exception as error:  # noqa: BLE001 - whatever an agent prints, its run goes on
            _log.error("parser failed", run_id=self._run.run_id, **failure_fields(error))
            outputs = [log_event(stream, line)]
        self._take(outputs, line)
        self._keep(stream, outputs, line)

    def _keep(self, stream: Stream, outputs: list[Output], line: Line) -> None:
        """Keep head and tail of what nobody understood. Redacted first: a cut may go through a secret."""
        logs = [output.log for output in outputs if isinstance(output, pb.AgentEvent) and output.HasField("log")]
        if stream == "stdout":
            for log in logs:
                self._raw.feed((log.raw or log.text.encode()) + b"\n")
        elif logs:  # they were redacted as they were written
            self._stderr.feed("\n".join(log.text for log in logs).encode() + b"\n")
        else:
            self._stderr.feed(self._run.redactor.text(line.data.decode("utf-8", "replace")).encode() + b"\n")

    def _parser_says(self, call: Callable[[], Iterable[Output]]) -> list[Output]:
        try:
            return list(call())
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("parser failed", run_id=self._run.run_id, **failure_fields(error))
            return []

    def _take(self, outputs: list[Output], line: Line | None) -> None:
        if self._run.request.include_native and line is not None:
            self._attach_native(outputs, line)
        for output in outputs:
            try:
                self._take_one(output)
            except Exception as error:  # noqa: BLE001 - one bad event must not take the others with it
                _log.error("event refused", run_id=self._run.run_id, **failure_fields(error))
        if self._parser.report.terminal is not None and self._linger_deadline is None and line is not None:
            self._agent_is_done()

    def _attach_native(self, outputs: list[Output], line: Line) -> None:
        events = (output for output in outputs if isinstance(output, pb.AgentEvent) and not output.HasField("log"))
        for event in events:
            event.native.protocol = self._native_protocol
            event.native.text = well_formed(line.data.decode("utf-8", "replace"))
            return  # one frame goes with one event

    def _take_one(self, output: Output) -> None:
        if isinstance(output, pb.AgentEvent):
            self._run.emit(output)
            if output.HasField("state"):
                self._clocks_wait()
        elif isinstance(output, Ask):
            self._questions.ask(output, is_ending=self._stopping.has_begun or self._linger_deadline is not None)
        elif isinstance(output, Perform):
            self._performing.begin(output)
        elif isinstance(output, Withdraw):
            self._run.inputs.withdraw(output.request_id)
        elif isinstance(output, Write):
            self._write(output.data)
        else:
            self._close_stdin()

    def _agent_is_done(self) -> None:
        # It has said its last word; what lingers then is not waited for, and is no failure.
        self._linger_deadline = self._now() + self._linger_s
        self._run.inputs.drop_all()
        self._close_stdin()
        self._wake.set()

    def _write(self, data: bytes) -> None:
        if self._child is None:
            self._stdin.append(data)
        else:
            self._child.write_stdin(data)

    def _close_stdin(self) -> None:
        self._closes_stdin = True
        if self._child is not None:
            self._child.close_stdin()

    def _clocks_wait(self) -> None:
        waiting = self._run.inputs.is_waiting or self._run.phase == pb.RUN_PHASE_WAITING_FOR_AUTH
        self._clocks.waiting(self._now(), is_waiting=waiting)
        self._wake.set()

    # Deadlines.

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _supervise(self, ended: "asyncio.Future[ChildEnd]") -> None:
        wish = self._run.cancel_wish
        while not ended.done():
            self._act(self._now())
            waits: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(self._wake.wait()),
                asyncio.ensure_future(wish.changed.wait()),
            ]
            deadline = self._next_deadline()
            timeout = None if deadline is None else max(0.0, deadline - self._now())
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
        if self._stopping.has_begun:
            deadlines.append(self._stopping.next_time())
        elif self._clocks_run() and (clock := self._clocks.next()) is not None:
            deadlines.append(clock[0])
        return min((item for item in deadlines if item is not None), default=None)

    def _act(self, now: float) -> None:
        """Do what is due."""
        if self._was_killed:
            return
        if self._run.cancel_wish.deadline is not None:
            self._stop(now, self._run.cancel_wish.deadline)
        elif not self._stopping.has_begun and self._clocks_run():
            self._stopped_by = self._clocks.expired(now)
            if self._stopped_by is not None:
                self._stop(now, now + self._job.settings.grace_s)
        for step in self._stopping.due(now):
            self._write(step.write)
            if step.interrupts and isinstance(self._parser, Interrupts):
                self._take(self._parser_says(self._parser.interrupt), None)
            if step.signal is not None and self._child is not None:
                self._child.signal(step.signal)
        if self._stopping.is_over(now) or (self._linger_deadline is not None and now >= self._linger_deadline):
            self._kill()

    def _stop(self, now: float, deadline: float) -> None:
        self._stopping.begin(now, deadline)
        self._run.inputs.drop_all()

    def _clocks_run(self) -> bool:
        """Whether time is the agent's: not after its last word, nor once it is gone and the rest is swept."""
        return self._linger_deadline is None and not self._has_exited

    def _kill(self) -> None:
        self._was_killed = True
        if self._child is not None:
            self._child.kill()
