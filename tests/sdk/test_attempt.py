"""What an attempt makes of the moment in which things come: callbacks in an order that real programs seldom keep."""

from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.sdk import Line, Plan, Report
from dragoman.sdk._attempt import Attempt
from dragoman.sdk._child import ChildEnd
from dragoman.sdk._clocks import ClockLimits, Clocks
from dragoman.sdk._run import Run
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
    return Attempt(run, job, Plan(("agent",)), Deaf(), {}, clocks, linger_s=5, native_protocol="")


async def test_an_agent_that_had_ended_was_not_cancelled() -> None:
    run = make_run()
    attempt = attempt_of(run)
    attempt.spawned(1, 1)
    attempt.exited(0, None)
    run.cancel(0)
    assert not attempt._evidence(ENDED).cancelled


async def test_an_agent_that_ended_after_the_wish_was_cancelled() -> None:
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
    attempt._act(attempt._now() + 100)
    assert attempt._evidence(ENDED).stopped_by is None
    assert attempt._next_deadline() is None


@pytest.mark.parametrize("kept", ["", "text "])
async def test_stderr_is_kept_redacted_whatever_its_parser_makes_of_it(kept: str) -> None:
    run = make_run(secrets=["hunter2-hunter2"])
    attempt = attempt_of(run)
    attempt._line("stderr", Line(f"{kept}hunter2-hunter2".encode(), 0, complete=True))
    assert attempt._evidence(ENDED).stderr_tail == f"{kept}[redacted]\n"
