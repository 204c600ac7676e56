"""Adapters for agents that are no programs: one is asked over a network, the turn is the adapter's own work."""

import abc
import asyncio
from collections.abc import Mapping

from dragoman.protocol.clocks import Clocks
from dragoman.sdk._agents.agent import AgentAdapter
from dragoman.sdk._output.outcome import Evidence
from dragoman.sdk._output.parser import Answer, Ask, FailureInfo, Report, Terminal
from dragoman.sdk._request.job import Job, Plan
from dragoman.sdk._run.attempt import AttemptEnd, nothing_spawned
from dragoman.sdk._run.questions import Questions
from dragoman.sdk._run.run import Run
from dragoman.sdk._run.supervision import FailureError, supervise
from dragoman.v1 import event_pb2 as pb


class Turn:
    """One attempt as the work of an ``InProcessAdapter`` sees it.

    Attributes:
        run: where events are written: ``run.emit``, ``run.notice``.
        job: what is asked.
        env: the environment that a program would have got: what is inherited by the adapter's allow list, the
            run's variables, and the caller's. The place of keys.
        report: what is known of the turn; the work fills it, at least ``terminal``.
    """

    def __init__(self, run: Run, job: Job, env: Mapping[str, str], clocks: Clocks) -> None:
        self.run = run
        self.job = job
        self.env = env
        self.report = Report()
        self.wake = asyncio.Event()
        self._clocks = clocks
        self._questions = Questions(run, job, lambda _: None, self._on_question)

    def activity(self) -> None:
        """Reset the idle clock: any received byte counts as activity."""
        self._clocks.activity(asyncio.get_running_loop().time())

    async def ask(self, request: pb.InputRequest, lineage: pb.Lineage | None = None) -> Answer:
        """Return the answer of the run's policy, or of its caller.

        A refusal by policy emits a notice. Waits for as long as the question is open; when the run is
        stopped before that, this is cancelled.
        """
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def encode(answer: Answer) -> bytes:
            if not answered.done():
                answered.set_result(answer)
            return b""

        self._questions.ask(Ask(request, encode, lineage), is_ending=False)
        return await answered

    def observe(self, event: pb.AgentEvent) -> None:
        """Report to the clocks that tool calls and questions begin and end."""
        if self._clocks.observe(event, asyncio.get_running_loop().time()):
            self.wake.set()
        if event.HasField("input_request") or event.HasField("input_resolved"):
            self._on_question()  # it may be none of the agent's

    def _on_question(self) -> None:
        now = asyncio.get_running_loop().time()
        self._clocks.waiting(now, is_waiting=self.run.inputs.is_waiting)
        self.wake.set()


class InProcessAdapter(AgentAdapter):
    """An adapter that does its runs itself. Subclasses give ``spec``, ``look`` and ``work``."""

    def plan(self, job: Job) -> Plan:
        """Return the run's notes, notices and its own variables. ``argv`` stays empty."""
        del job
        return Plan(argv=())

    @abc.abstractmethod
    async def work(self, turn: Turn) -> None:
        """Do one attempt: emit events, fill ``turn.report``.

        It is cancelled when the run is, or when a clock runs out; what was reported by then counts.

        Raises:
            FailureError: it failed, as it says.
        """

    async def attempt(self, run: Run, job: Job, plan: Plan, env: Mapping[str, str], clocks: Clocks) -> AttemptEnd:
        """Have the work done."""
        del plan
        if run.cancellation.is_requested:
            return nothing_spawned(Evidence(Report(), cancelled=True, resumed=job.session.resumes))
        turn = Turn(run, job, env, clocks)
        now = asyncio.get_running_loop().time()
        clocks.spawned(now)
        clocks.waiting(now, is_waiting=run.inputs.is_waiting)  # since the turn before
        run.state(pb.RUN_PHASE_RUNNING)
        try:
            with run.observed(turn.observe):
                _, stopped = await supervise(run, clocks, self.work(turn), turn.wake, job.settings.grace_s)
        except FailureError as error:
            stopped = None
            turn.report.terminal = Terminal(succeeded=False, failure=error.info)
        finally:
            run.inputs.end_turn()
        if turn.report.terminal is None and stopped is None:
            unsaid = FailureInfo(pb.FAILURE_KIND_NO_RESULT, "The turn ended without saying how.", code="no_result")
            turn.report.terminal = Terminal(succeeded=False, failure=unsaid)
        return nothing_spawned(
            Evidence(
                report=turn.report,
                stopped_by=stopped.clock if stopped else None,
                cancelled=run.cancellation.is_requested,
                resumed=job.session.resumes,
            )
        )
