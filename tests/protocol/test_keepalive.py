"""Who holds a run, and when it is given up; on a loop whose clock the test turns."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from dragoman.protocol.keepalive import KeepaliveStreams
from dragoman.protocol.limits import SERVER_ENDED_GRACE_S
from hypothesis import given
from hypothesis import strategies as st


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when a test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__()

    def time(self) -> float:
        return self.now

    def do(self, action: Callable[[], None]) -> None:
        """Run ``action`` in the loop, and what is due."""

        async def run() -> None:
            action()

        self.run_until_complete(run())

    def advance(self, seconds: float) -> None:
        """Let time pass, in steps of a quarter of a second."""
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            self.do(lambda: None)


class Run:
    """KeepaliveStreams with what became of them."""

    def __init__(self, loop: ClockLoop, orphan_after_s: float) -> None:
        self.loop = loop
        self.orphaned_at: list[float] = []
        self.holders = KeepaliveStreams(orphan_after_s, lambda: self.orphaned_at.append(loop.now))

    def acquire(self) -> None:
        self.loop.do(self.holders.acquire)

    def release(self, *, by_server: bool = False) -> None:
        self.loop.do(lambda: self.holders.release(by_server=by_server))


@pytest.fixture
def loop() -> Iterator[ClockLoop]:
    loop = ClockLoop()
    yield loop
    loop.close()


def test_a_run_is_orphaned_once_no_client_held_it_for_that_long(loop: ClockLoop) -> None:
    run = Run(loop, 10)
    run.acquire()
    loop.advance(100)
    run.release()
    loop.advance(9.75)
    assert run.orphaned_at == []
    loop.advance(0.25)
    assert run.orphaned_at == [1110.0]
    loop.advance(100)
    assert run.orphaned_at == [1110.0]


def test_zero_means_at_once(loop: ClockLoop) -> None:
    run = Run(loop, 0)
    run.acquire()

    def release() -> None:
        run.holders.release()
        assert run.orphaned_at == []  # never from within release itself

    loop.do(release)
    loop.do(lambda: None)
    assert run.orphaned_at == [1000.0]


def test_a_run_that_no_client_ever_held_is_not_orphaned(loop: ClockLoop) -> None:
    run = Run(loop, 0)
    loop.advance(60)
    assert run.orphaned_at == []


def test_coming_back_in_time_keeps_the_run_and_starts_the_clock_anew(loop: ClockLoop) -> None:
    run = Run(loop, 10)
    run.acquire()
    run.release()
    loop.advance(9)
    run.acquire()
    loop.advance(60)
    run.release()
    loop.advance(9.75)
    assert run.orphaned_at == []
    loop.advance(0.25)
    assert len(run.orphaned_at) == 1


def test_all_holders_must_be_gone(loop: ClockLoop) -> None:
    run = Run(loop, 5)
    run.acquire()
    run.acquire()
    assert run.holders.count == 2
    run.release()
    loop.advance(60)
    assert run.orphaned_at == []
    run.release()
    loop.advance(5)
    assert len(run.orphaned_at) == 1


@pytest.mark.parametrize("orphan_after_s", [0, 7])
def test_a_stream_the_server_ended_counts_for_thirty_seconds_more(loop: ClockLoop, orphan_after_s: float) -> None:
    assert SERVER_ENDED_GRACE_S == 30
    run = Run(loop, orphan_after_s)
    run.acquire()
    run.release(by_server=True)
    assert run.holders.count == 1
    loop.advance(29.75 + orphan_after_s)
    assert run.orphaned_at == []
    loop.advance(0.5)
    assert len(run.orphaned_at) == 1


def test_a_reader_that_comes_back_after_the_server_ended_its_stream_holds(loop: ClockLoop) -> None:
    run = Run(loop, 0)
    run.acquire()
    run.release(by_server=True)
    loop.advance(10)
    run.acquire()
    assert run.holders.count == 2
    loop.advance(60)
    assert run.holders.count == 1
    assert run.orphaned_at == []
    run.release()
    loop.advance(0.25)
    assert len(run.orphaned_at) == 1


@pytest.mark.parametrize("by_server", [False, True])
def test_a_run_that_is_over_is_never_orphaned(loop: ClockLoop, *, by_server: bool) -> None:
    run = Run(loop, 5)
    run.acquire()
    run.release(by_server=by_server)
    loop.do(run.holders.close)
    loop.advance(60)
    assert run.orphaned_at == []
    assert run.holders.count == 0


def test_streams_that_end_after_the_run_change_nothing(loop: ClockLoop) -> None:
    run = Run(loop, 0)
    run.acquire()
    run.acquire()
    loop.do(run.holders.close)
    run.release()
    run.release(by_server=True)
    loop.advance(60)
    assert run.orphaned_at == []
    assert run.holders.count == 0


@given(
    steps=st.lists(st.tuples(st.sampled_from(["open", "close", "end", "wait"]), st.integers(1, 30)), max_size=12),
    orphan_after_s=st.sampled_from([0, 3, 20]),
)
def test_the_run_is_orphaned_exactly_when_its_last_holder_has_been_gone_so_long(
    steps: list[tuple[str, int]], orphan_after_s: int
) -> None:
    loop = ClockLoop()
    run = Run(loop, orphan_after_s)
    open_streams = 0
    ended_until: list[float] = []
    last_held: float | None = None
    expected: list[float] = []
    for step, seconds in steps:
        if step == "open":
            run.acquire()
            open_streams += 1
            last_held = None
        elif step == "wait":
            loop.advance(seconds)
        elif open_streams:
            open_streams -= 1
            run.release(by_server=step == "end")
            ended_until += [loop.now + SERVER_ENDED_GRACE_S] if step == "end" else []
            last_held = max([loop.now, *ended_until])
        loop.do(lambda: None)
        # The model: held while a stream is open or was ended by the server less than 30 s ago.
        if not open_streams and last_held is not None and loop.now >= last_held + orphan_after_s:
            expected.append(last_held + orphan_after_s)
            last_held = None
    assert run.orphaned_at == expected
    loop.do(run.holders.close)
    loop.close()
