"""A word to whoever waits at a terminal."""

import asyncio
import io

import pytest
from dragoman.cli._patience import patience


class Terminal(io.StringIO):
    """A terminal that tells when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.told.set()
        return super().write(text)


async def test_who_waits_long_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    async with patience("looking…", after_s=0.01):
        await terminal.told.wait()
    assert terminal.getvalue() == "looking…\n"


async def test_who_waits_shortly_or_sits_at_no_terminal_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    due = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("sys.stderr", terminal)
    async with patience("looking…", after_s=0.01):
        loop.call_later(0.05, due.set)
    await due.wait()
    assert terminal.getvalue() == ""
    monkeypatch.setattr("sys.stderr", file)
    due.clear()
    async with patience("looking…", after_s=0.01):
        loop.call_later(0.05, due.set)
        await due.wait()
    assert file.getvalue() == ""
