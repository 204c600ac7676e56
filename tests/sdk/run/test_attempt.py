"""What an attempt makes of the moment in which things come: callbacks in an order that real programs seldom keep."""

from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.protocol.clocks import ClockLimits, Clocks
from dragoman.sdk import Line, Plan, Report
from dragoman.sdk._process.child import ChildEnd
from dragoman.sdk._run.attempt import Attempt, Launch
from dragoman.sdk._run.run import Run
from dragoman.v1 import event_pb2 as pb

from tests.sdk.running import make_run

ENDED = ChildEnd(code=0, signal=None, spawn_error=None, tree_confirmed_dead=True, killed=(), survivors=())


class Deaf:
    """Understands nothing."""

    def __init__(self) -> None:
        self.report = Report()

    def line(self, *_: object) -> list[pb.AgentEvent]:
        return []

    def finish(self) -> list[pb.AgentEvent]:
        return []


def attempt_of(run: Run, limits: ClockLimits | None = None) -> Attempt:
    session: Any = SimpleNamespace(resumes=False)
    settings: Any = SimpleNamespace(cwd="/", output_bytes=None, grace_s=1.0)
    job: Any = SimpleNamespace(session=session, settings=settings, executable="agent")
    clocks = Clocks(limits or ClockLimits(), run.accepted_at)
    launch = Launch(job, Plan(("agent",)), Deaf(), {}, linger_s=5, native_protocol="")
    return Attempt(run, launch, clocks)


async def test_an_agent_that_had_ended_was_not_cancelled() -> None:
    run = make_run()
    attempt = attempt_of(run)
    attempt.spawned(1, 1)
    attempt.exited(0, None)
    run.cancel(0)
    assert not attempt._evidence(ENDED).cancelled


async def test_an_agent_that_ended_after_the_cancel_request_was_cancelled() -> None:
    run = make_run()
    attempt = attempt_of(run)
    attempt.spawned(1, 1)
    run.cancel(5)
    attempt.exited(0, None)
    assert attempt._evidence(ENDED).cancelled


async def test_clocks_are_not_about_what_an_agent_left_behind() -> None:
    attempt = attempt_of(make_run(), ClockLimits(idle_s=0.0, wall_s=0.0))
    attempt.spawned(1, 1)
    attempt.exited(0, None)
    attempt._act(attempt._run.accepted_at + 100)
    assert attempt._evidence(ENDED).stopped_by is None
    assert attempt._deadlines.next() is None


@pytest.mark.parametrize("kept", ["", "text "])
async def test_stderr_is_kept_redacted_whatever_its_parser_makes_of_it(kept: str) -> None:
    run = make_run(secrets=["hunter2-hunter2"])
    attempt = attempt_of(run)
    attempt._output.line("stderr", Line(f"{kept}hunter2-hunter2".encode(), 0, complete=True))
    assert attempt._evidence(ENDED).stderr_tail == f"{kept}[redacted]\n"


class Broken(Deaf):
    """Raises for each line."""

    def line(self, *_: object) -> list[pb.AgentEvent]:
        raise KeyError


@pytest.mark.parametrize("keeps_stdin", [True, False])
async def test_only_who_can_be_answered_may_wait_for_an_answer(keeps_stdin: bool) -> None:
    attempt = attempt_of(make_run(), ClockLimits(unread_s=60.0))
    attempt._output._parser = Broken()
    attempt._input.is_closed = not keeps_stdin
    attempt.spawned(1, 1)
    attempt._output.line("stdout", Line(b"?", 0, complete=True))
    assert (attempt._deadlines.next() is not None) == keeps_stdin
    attempt._output.line("stderr", Line(b"?", 0, complete=True))
    assert (attempt._deadlines.next() is not None) == keeps_stdin, "nothing is asked on standard error"
