"""A signal interrupts what waits, calls once, and keeps nothing of those that have left."""

import asyncio

import pytest
from dragoman.protocol.signals import Signal, interruptible


async def test_it_calls_those_that_are_there_once() -> None:
    signal, calls = Signal(), list[str]()
    with signal.calling(lambda: calls.append("left")):
        pass
    with signal.calling(lambda: calls.append("there")):
        assert not signal.is_set()
        signal.set()
        signal.set()
    assert calls == ["there"]
    with signal.calling(lambda: calls.append("late")):
        assert calls == ["there", "late"]


async def test_it_wakes_those_that_wait() -> None:
    signal = Signal()
    waiting = [asyncio.ensure_future(signal.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    signal.set()
    await waiting[1]
    await signal.wait()


async def waits_until(signal: Signal) -> None:
    async with interruptible() as interrupt:
        with signal.calling(interrupt):
            await asyncio.Event().wait()


async def test_an_interrupted_block_ends_wherever_it_waits() -> None:
    signal = Signal()
    asyncio.get_running_loop().call_soon(signal.set)
    with pytest.raises(TimeoutError):
        await waits_until(signal)


async def test_a_block_that_ends_by_itself_is_not_interrupted() -> None:
    signal = Signal()
    async with interruptible() as interrupt:
        with signal.calling(interrupt):
            signal.set()  # takes effect at the next wait, of which there is none
    await asyncio.sleep(0)
