from __future__ import annotations

import asyncio
import contextlib
import os

import pytest
from dragoman.sdk._process.pipes import PIECE_LINES, PIPE_BYTES, OutputPipe, end_of_lines, output_pipe

DEADLINE_S = 20.0


class Reader:
    """What an output pipe has passed on."""

    def __init__(self, fd: int) -> None:
        self.data = b""
        self.ends = 0
        self.pieces: list[bytes] = []
        self.pipe = OutputPipe(asyncio.get_running_loop(), fd, self._take, self._end)

    def _take(self, data: bytes) -> None:
        self.data += data
        self.pieces.append(data)

    def _end(self) -> None:
        self.ends += 1

    async def ended(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.ends:  # noqa: ASYNC110 - a matter of some turns of the loop
                await asyncio.sleep(0)


@pytest.fixture
async def ends() -> tuple[Reader, int]:
    reader, writer = output_pipe()
    return Reader(reader), writer


async def test_an_abandoned_pipe_is_read_as_far_as_it_goes(ends: tuple[Reader, int]) -> None:
    """The loop may have been busy for so long that nothing was read yet."""
    reader, writer = ends
    reader.pipe.start()
    words = b"x" * 300_000
    os.set_blocking(writer, False)
    written = os.write(writer, words)
    reader.pipe.abandon()
    await reader.ended()
    assert reader.data == words[:written]
    assert not reader.pipe.is_open
    reader.pipe.abandon()
    assert reader.ends == 1
    os.close(writer)


async def test_a_writer_that_never_pauses_is_abandoned_too() -> None:
    reader, writer = output_pipe()
    os.set_blocking(writer, False)

    class Echo(Reader):
        def _take(self, data: bytes) -> None:
            super()._take(data)
            os.write(writer, data)

    echo = Echo(reader)
    os.write(writer, b"x" * 1000)
    echo.pipe.abandon()
    await echo.ended()
    assert echo.ends == 1
    assert 1 << 20 <= len(echo.data) < 2 << 20
    os.close(writer)


async def test_other_work_has_its_turn_between_pieces_of_many_lines(ends: tuple[Reader, int]) -> None:
    reader, writer = ends
    os.write(writer, b"\n" * 10 * PIECE_LINES)
    os.close(writer)
    reader.pipe.start()
    turns: list[int] = []
    async with asyncio.timeout(DEADLINE_S):
        while not reader.ends:
            turns.append(len(reader.pieces))
            await asyncio.sleep(0)
    assert [len(piece) for piece in reader.pieces] == [PIECE_LINES] * 10
    assert set(turns) >= set(range(1, 11)), "each piece is passed on in a turn of its own"


async def test_nothing_is_read_while_it_is_paused(ends: tuple[Reader, int]) -> None:
    reader, writer = ends
    reader.pipe.start()
    reader.pipe.pause()
    os.set_blocking(writer, False)
    written = 0
    with contextlib.suppress(BlockingIOError):
        while written <= PIPE_BYTES:
            written += os.write(writer, b"x" * 65536)
            await asyncio.sleep(0)
    assert not reader.data
    assert written <= PIPE_BYTES
    os.close(writer)
    reader.pipe.resume()
    await reader.ended()
    assert reader.data == b"x" * written


async def test_pausing_keeps_what_was_read_already(ends: tuple[Reader, int]) -> None:
    reader, writer = ends

    class Pausing(Reader):
        def _take(self, data: bytes) -> None:
            super()._take(data)
            self.pipe.pause()

    pausing = Pausing(os.dup(reader.pipe._fd))
    lines = b"".join(b"%d\n" % number for number in range(3 * PIECE_LINES))
    os.write(writer, lines)
    os.close(writer)
    pausing.pipe.start()
    pausing.pipe.abandon()
    for pieces in (1, 2, 3):
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(pausing.pieces) == pieces
        assert not pausing.ends
        pausing.pipe.resume()
    await pausing.ended()
    assert pausing.data == lines
    reader.pipe.abandon()
    await reader.ended()


def test_lines_are_counted_by_their_ends() -> None:
    assert end_of_lines(b"a\nb\nc\nd", 2) == 4
    assert end_of_lines(b"a\nb\nc", 2) == 5
    assert end_of_lines(b"\n\n\n", 1) == 1
    assert end_of_lines(b"x" * 10, 1) == 10


async def test_a_pipe_that_has_ended_is_never_read_again(ends: tuple[Reader, int]) -> None:
    """Its descriptor may be another file's by then."""
    reader, writer = ends
    reader.pipe.start()
    os.close(writer)
    await reader.ended()
    reader.pipe.pause()
    reader.pipe.resume()
    reader.pipe.start()
    reader.pipe.abandon()
    assert (reader.ends, reader.data) == (1, b"")
