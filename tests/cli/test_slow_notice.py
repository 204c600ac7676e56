"""A notice to a user who waits at a terminal."""

import asyncio
import io

import pytest
from dragoman.cli.display.slow_notice import slow_notice


class Terminal(io.StringIO):
    """A terminal with an event for what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


async def test_a_long_wait_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    async with slow_notice("looking…", after_s=0.01):
        await terminal.written.wait()
    assert terminal.getvalue() == "looking…\n"


async def test_who_waits_shortly_or_sits_at_no_terminal_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    due = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("sys.stderr", terminal)
    async with slow_notice("looking…", after_s=0.01):
        loop.call_later(0.05, due.set)
    await due.wait()
    assert terminal.getvalue() == ""
    monkeypatch.setattr("sys.stderr", file)
    due.clear()
    async with slow_notice("looking…", after_s=0.01):
        loop.call_later(0.05, due.set)
        await due.wait()
    assert file.getvalue() == ""
