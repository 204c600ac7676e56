"""One attempt of a command-line agent: a child, its output understood, its questions answered, its end brought about.

Output is read only as fast as the run's clients read its events: the agent blocks in its writes until then,
and that is not taken for silence. Once the agent is to stop, everything is read. Deadlines (three clocks, the grace
of a cancel, the time after the agent's final message) are checked in one place, ``_supervise``.
"""

import asyncio
import os.path
from collections.abc import Mapping
from typing import Final

from dragoman.protocol.clocks import Clocks
from dragoman.protocol.texts import well_formed
from dragoman.sdk._encoding.lines import HeadTail, Line
from dragoman.sdk._output.outcome import Evidence
from dragoman.sdk._output.parser import (
    Ask,
    CloseInput,
    Interrupts,
    NotUpdated,
    Output,
    Parser,
    Steers,
    Stream,
    Untaken,
    Updated,
    Updates,
    Withdraw,
    Write,
)
from dragoman.sdk._process.child import Child, ChildEnd, ChildSpec
from dragoman.sdk._process.place import place_of_processes
from dragoman.sdk._request.job import Job, Plan
from dragoman.sdk._request.plan_error import OutputError
from dragoman.sdk._run.agent_input import AgentInput, OutputPace
from dragoman.sdk._run.agent_output import AgentOutput
from dragoman.sdk._run.deadlines import Deadlines
from dragoman.sdk._run.questions import Questions
from dragoman.sdk._run.run import Run
from dragoman.sdk._run.steering import steer, update
from dragoman.sdk._run.stop_sequence import StopSequence
from dragoman.sdk._run.waiting import wait_first
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_NO_LINE: Final = Line(b"", 0, complete=True)
"""Stands for the agent's report of its end that did not come."""


class AttemptEnd(Struct, frozen=True):
    """What an attempt left behind."""

    evidence: Evidence
    tree_confirmed_dead: bool
    raw: HeadTail
    """What could not be parsed of standard output."""


def nothing_spawned(evidence: Evidence) -> AttemptEnd:
    """Return the end of an attempt that had no child process."""
    return AttemptEnd(evidence, tree_confirmed_dead=True, raw=HeadTail(0, 0))


class Launch(Struct, frozen=True):
    """What an attempt runs."""

    job: Job
    plan: Plan
    parser: Parser
    environment: Mapping[str, str]
    linger_s: float
    """Seconds that the agent may live on after it has reported its end."""
    native_protocol: str
    """For ``NativeFrame.protocol``."""


class Attempt:
    """Runs one plan. Use once: ``await Attempt(...).go()``."""

    def __init__(self, run: Run, launch: Launch, clocks: Clocks) -> None:
        self._run = run
        self._launch = launch
        self._job = launch.job
        self._parser = launch.parser
        self._clocks = clocks
        self._output = AgentOutput(
            run, launch.parser, launch.plan.framing, launch.job.settings.output_bytes, self._take, self._note_unread
        )
        self._input = AgentInput(launch.plan.stdin, closes=not launch.plan.keep_stdin_open)
        self._pace = OutputPace(run, self._note_waiting)
        self._child: Child | None = None
        self._was_cancelled = False
        self._wake = asyncio.Event()
        self._spawn_error = ""
        self._lost_workspace = False
        self._stop_sequence = StopSequence(launch.plan.cancel)
        self._deadlines = Deadlines(clocks, self._stop_sequence)
        self._questions = Questions(
            run,
            launch.job,
            self._input.write,
            self._note_waiting,
            self._output.answer_failed,
        )

    async def go(self) -> AttemptEnd:
        """Start the child and see it through to its proven end. Cancelled, it kills and still cleans up."""
        if (
            self._run.cancellation.is_requested
        ):  # while the agent was looked for; nothing needs to be started any more
            self._was_cancelled = True
            return AttemptEnd(self._evidence(None), tree_confirmed_dead=True, raw=self._output.raw)
        spec = ChildSpec(
            argv=self._launch.plan.argv,
            cwd=self._job.settings.cwd or str(self._job.run_dir),
            env=self._launch.environment,
            private_dir=str(self._job.run_dir),
        )
        child = await Child.start(spec, self, self._run.guards)
        self._child = child
        self._input.attach(child)
        self._pace.attach(child)
        ended = asyncio.create_task(child.wait())
        run, parser = self._run, self._parser
        if isinstance(parser, Steers):
            run.sent.on_steer = lambda sent: (
                not (self._deadlines.is_ending or self._input.is_closed) and steer(run, parser, self._take_one, sent)
            )
        if isinstance(parser, Updates):
            reads = self._launch.plan.keep_stdin_open  # else the parser rejects every change
            run.updates.on_update = lambda change: (
                not (self._deadlines.is_ending or (reads and self._input.is_closed))
                and update(run, parser, self._take_one, change)
            )
        try:
            with self._run.observed(self._observe):
                self._note_waiting()  # a question may be open since the turn before, or have ended meanwhile
                await self._supervise(ended)
                end = await ended
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
            self._run.inputs.end_turn()
            self._run.sent.end_turn()
            self._run.updates.end_turn()
        self._output.finish()
        return AttemptEnd(self._evidence(end), end.tree_confirmed_dead, self._output.raw)

    def _evidence(self, end: ChildEnd | None) -> Evidence:
        return Evidence(
            report=self._parser.report,
            exit_code=end.code if end else None,
            exit_signal=end.signal if end else None,
            spawn_error=self._spawn_error,
            lost_workspace=self._lost_workspace,
            stopped_by=self._deadlines.stopped_by,
            parser_fault=self._output.parser_fault,
            unread_end=self._output.unread_end,
            cancelled=self._was_cancelled,
            resumed=self._job.session.resumes,
            stdout_tail=self._output.raw.text(),
            stderr_tail=self._output.stderr.text(),
            command=self._job.executable,
        )

    # What the child reports (ChildHandler).

    def spawned(self, pid: int, pgid: int) -> None:
        """Note that the agent runs."""
        self._clocks.spawned(_now())
        if not self._run.cancellation.is_requested:
            self._run.state(pb.RUN_PHASE_RUNNING, pid=pid, process_group_id=pgid, **place_of_processes())

    def spawn_failed(self, errno_name: str, message: str) -> None:
        """Note that the agent could not be started; the evidence has it."""
        del message
        self._spawn_error = errno_name
        # The same errors mean a directory that was there when the request was checked.
        self._lost_workspace = bool(self._job.settings.cwd) and not os.path.isdir(self._job.settings.cwd)  # noqa: PTH112 - a string is at hand

    def data(self, stream: Stream, data: bytes) -> None:
        """Read output: activity for the clocks, lines for the parser."""
        self._clocks.activity(_now())
        self._output.feed(stream, data)
        is_stopping = self._run.cancellation.is_requested or self._stop_sequence.has_begun
        if not is_stopping and not self._deadlines.was_killed:
            self._pace.check()

    def eof(self, stream: Stream) -> None:
        """Read what was left without a newline."""
        self._output.end_stream(stream)

    def exited(self, code: int | None, signal: int | None) -> None:
        """Note what had been asked by then: what comes later did not make it end."""
        del code, signal
        self._deadlines.has_exited = True
        self._was_cancelled = self._run.cancellation.is_requested

    # What comes of its output.

    def _note_unread(self, is_unread: bool) -> None:
        """Note whether the agent may wait for an answer to what could not be read."""
        self._clocks.unread(is_unread=is_unread and not self._input.is_closed)
        if is_unread:
            self._wake.set()

    def _note_waiting(self) -> None:
        """Note whether the agent waits for us: the clocks do not run then."""
        run = self._run
        waiting = self._pace.is_paused or run.inputs.is_waiting or run.phase == pb.RUN_PHASE_WAITING_FOR_AUTH
        self._clocks.waiting(_now(), is_waiting=waiting)
        self._wake.set()

    def _observe(self, event: pb.AgentEvent) -> None:
        if self._clocks.observe(event, _now()):
            self._wake.set()
        if event.HasField("input_request") or event.HasField("input_resolved"):
            self._note_waiting()  # the question may be none of the agent's

    def _take(self, outputs: list[Output], line: Line | None) -> None:
        if self._run.request.include_native and line is not None:
            _attach_native(outputs, line, self._launch.native_protocol)
        for output in outputs:
            try:
                self._take_one(output)
            except Exception as error:  # noqa: BLE001 - one bad event must not take the others with it
                self._run.faults.report(error, self._parser, "event_refused", "parser", "that event is missing")
        if line is not None:
            report, deadlines = self._parser.report, self._deadlines
            if report.terminal is not None and deadlines.lingers_until is None:
                # The agent has reported its end; a process that lingers is not waited for, and is no failure.
                deadlines.lingers_until = _now() + self._launch.linger_s
                self._run.inputs.end_turn()
                self._run.sent.end_turn()
                self._run.updates.end_turn()
                self._input.close()
                self._wake.set()
            is_deferred = report.deferred is not None
            if is_deferred != (deadlines.confirmed_by is not None):
                deadlines.defer(_now(), is_deferred=is_deferred)
                self._wake.set()
        self._run.sent.offer()
        self._run.updates.offer()

    def _take_one(self, output: Output) -> None:
        candidate: object = output  # an adapter need not have been checked for types
        if isinstance(output, pb.AgentEvent):
            if output.message.input_id:
                self._parser.report.deferred = None  # its turn goes on
            self._run.emit(output)
            if output.HasField("state"):
                self._note_waiting()
        elif isinstance(output, Ask):
            self._questions.ask(output, is_ending=self._deadlines.is_ending)
        elif isinstance(output, Withdraw):
            self._run.inputs.withdraw(self._run.turns.own_id(output.request_id))
        elif isinstance(output, Untaken):
            self._run.sent.refuse(output.input_id)
        elif isinstance(output, Updated):
            self._run.updates.take(output.update_id, output.model)
        elif isinstance(output, NotUpdated):
            self._run.updates.refuse(output.update_id, output.why)
        elif isinstance(output, Write):
            self._input.write(output.data)
        elif isinstance(candidate, CloseInput):
            self._input.close()
        else:
            raise OutputError(f"{type(candidate).__name__} is no output; yield events, as the helpers return them")

    # Deadlines.

    async def _supervise(self, ended: "asyncio.Future[ChildEnd]") -> None:
        cancellation = self._run.cancellation
        while not ended.done():
            self._act(_now())
            deadline = self._deadlines.next()
            timeout_s = None if deadline is None else max(0.0, deadline - _now())
            await wait_first(ended, self._wake, cancellation.changed, timeout_s=timeout_s)

    def _act(self, now: float) -> None:
        """Do what is due."""
        if self._deadlines.was_killed:
            return
        stop_by = self._run.cancellation.deadline
        if stop_by is None and self._deadlines.has_expired(now):
            stop_by = now + self._job.settings.grace_s
        if stop_by is not None:
            self._pace.resume()
            self._stop_sequence.begin(now, stop_by)
            self._run.inputs.drop_all()
        for step in self._stop_sequence.due(now):
            self._input.write(step.write)
            if step.interrupts and isinstance(self._parser, Interrupts):
                self._take(self._output.outputs_of(self._parser.interrupt, "parser.interrupt"), None)
            if step.signal is not None and self._child is not None:
                self._child.signal(step.signal)
        if self._deadlines.is_unconfirmed(now):
            self._parser.report.terminal = self._parser.report.deferred
            self._parser.report.deferred = None
            self._run.sent.give_up()
            self._take([], _NO_LINE)
        if self._deadlines.is_over(now):
            self._deadlines.was_killed = True
            self._pace.resume()
            if self._child is not None:
                self._child.kill()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _attach_native(outputs: list[Output], line: Line, protocol: str) -> None:
    """Put the agent's frame on the first event of it that is no log: one frame goes with one event."""
    events = (output for output in outputs if isinstance(output, pb.AgentEvent) and not output.HasField("log"))
    event = next(events, None)
    if event is not None:
        event.native.protocol = protocol
        event.native.text = well_formed(line.data.decode("utf-8", "replace"))
