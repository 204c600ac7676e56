"""A slow start says every few seconds what it waits for, to whom is there, until the agent's first sign."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from dragoman.protocol.clocks import ClockLimits, Clocks
from dragoman.sdk import Job
from dragoman.sdk._run import startup as module
from dragoman.sdk._run.startup import REPORT_EVERY_S, StartupReports
from dragoman.v1 import event_pb2 as pb

from tests.adapters.process.arena import Arena, arena_in
from tests.sdk.agents.test_command_line import WordsAdapter, request
from tests.sdk.running import make_run, travel, written


def test_reports_come_every_few_seconds_and_are_not_kept() -> None:
    async def story() -> None:
        run = make_run(secrets=["hunter2-hunter2"])
        clocks = Clocks(ClockLimits(), run.accepted_at)
        reader = run.event_buffer.reader(1)
        with StartupReports(run, clocks) as reports:
            await asyncio.sleep(60)
            reports.waiting_for(lambda: "its gateway hunter2-hunter2")
            await asyncio.sleep(2.5 * REPORT_EVERY_S)
            reports.waiting_for(lambda: "its first output")
            await asyncio.sleep(1.5 * REPORT_EVERY_S)
            clocks.activity(asyncio.get_running_loop().time())
            await asyncio.sleep(60)
        events = [pb.AgentEvent.FromString(data) for data in await reader.read()]
        assert [event.state.reason for event in events] == [
            "waiting for its gateway [redacted] (5 s)",
            "waiting for its gateway [redacted] (10 s)",
            "waiting for its first output (5 s)",
        ]
        for event in events:
            assert (event.sequence, event.attempt, event.origin) == (0, 1, pb.EVENT_ORIGIN_ADAPTER)
            assert event.state.phase == pb.RUN_PHASE_STARTING
        assert len(await written(run)) == 1

    travel(story)


def test_none_comes_when_the_start_is_over() -> None:
    async def story() -> None:
        run = make_run()
        reader = run.event_buffer.reader(1)
        with StartupReports(run, Clocks(ClockLimits(), run.accepted_at)) as reports:
            reports.waiting_for(lambda: "its gateway")
        await asyncio.sleep(60)
        run.notice(pb.SEVERITY_INFO, "last", "")
        assert len(await reader.read()) == 1

    travel(story)


class SlowAdapter(WordsAdapter):
    """Prepares its runs until a test lets them go."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    def startup_reason(self, job: Job) -> str:
        del job
        return "its gateway to answer"

    async def prepare(self, job: Job, env: Mapping[str, str]) -> Mapping[str, str]:
        del job, env
        await self.ready.wait()
        return {}


@pytest.fixture
def slow() -> SlowAdapter:
    return SlowAdapter()


@pytest_asyncio.fixture
async def arena(tmp_path: Path, slow: SlowAdapter) -> AsyncIterator[Arena]:
    async with arena_in(tmp_path, slow) as running:
        yield running


async def test_a_reader_hears_what_a_start_waits_for(
    arena: Arena, slow: SlowAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT_EVERY_S", 0.1)
    stream = arena.begin(request(arena, "pause 0.5"))
    assert not (await stream.until("state")).state.reason
    for _ in range(2):
        state = (await stream.until("state")).state
        assert (state.phase, state.reason) == (pb.RUN_PHASE_STARTING, "waiting for its gateway to answer (0 s)")
    slow.ready.set()
    states = [event for event in await stream.rest() if event.HasField("state")]
    (running,) = (event for event in states if event.sequence)
    assert running.state.phase == pb.RUN_PHASE_RUNNING
    assert "waiting for the agent's first output (0 s)" in [event.state.reason for event in states]
