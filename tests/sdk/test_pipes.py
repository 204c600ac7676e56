from __future__ import annotations

import asyncio
import os

import pytest
from dragoman.sdk._pipes import OutputPipe, output_pipe


class Reader:
    """What an output pipe has passed on."""

    def __init__(self, fd: int) -> None:
        self.data = b""
        self.ends = 0
        self.pipe = OutputPipe(asyncio.get_running_loop(), fd, self._take, self._end)

    def _take(self, data: bytes) -> None:
        self.data += data

    def _end(self) -> None:
        self.ends += 1


@pytest.fixture
async def ends() -> tuple[Reader, int]:
    reader, writer = output_pipe()
    return Reader(reader), writer


async def test_what_is_given_up_is_read_as_far_as_it_goes(ends: tuple[Reader, int]) -> None:
    """The loop may have been busy for so long that nothing was read yet."""
    reader, writer = ends
    reader.pipe.start()
    words = b"x" * 300_000
    os.set_blocking(writer, False)
    written = os.write(writer, words)
    reader.pipe.abandon()
    assert reader.data == words[:written]
    assert not reader.pipe.is_open
    reader.pipe.abandon()
    assert reader.ends == 1
    os.close(writer)


async def test_a_writer_that_never_pauses_is_given_up_all_the_same() -> None:
    reader, writer = output_pipe()
    os.set_blocking(writer, False)

    class Echo(Reader):
        def _take(self, data: bytes) -> None:
            super()._take(data)
            os.write(writer, data)

    echo = Echo(reader)
    os.write(writer, b"x" * 1000)
    echo.pipe.abandon()
    assert echo.ends == 1
    assert 1 << 20 <= len(echo.data) < 2 << 20
    os.close(writer)
