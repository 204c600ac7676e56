"""Output is written without making a run wait for its reader."""

import asyncio
import io
import os
from collections.abc import Iterator
from io import BufferedReader
from typing import TextIO

import pytest
from dragoman.cli.display.output import Output


@pytest.fixture
def pipe() -> Iterator[tuple[BufferedReader, TextIO]]:
    """A pipe: what is read, and what is written."""
    ours, theirs = os.pipe()
    with open(ours, "rb") as reading, open(theirs, "w", encoding="utf-8") as writing:
        yield reading, writing


async def test_what_is_written_arrives_in_order_at_a_descriptor(pipe: tuple[BufferedReader, TextIO]) -> None:
    reading, writing = pipe
    output = Output(writing)
    for number in range(100):
        await output.write(f"{number}✓ ")
    await output.write("")
    await output.flush()
    output.close()
    writing.close()
    assert reading.read().decode() == "".join(f"{number}✓ " for number in range(100))


async def test_a_write_that_takes_only_a_part_goes_on(
    pipe: tuple[BufferedReader, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = pipe
    write = os.write
    monkeypatch.setattr("dragoman.cli.display.output.os.write", lambda descriptor, data: write(descriptor, data[:3]))
    output = Output(writing)
    await output.write("a longer text")
    await output.flush()
    output.close()
    assert reading.read1() == b"a longer text"


async def test_a_stream_without_a_descriptor_will_do() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    output = Output(stream)
    await output.write("a✓")
    await output.flush()
    output.close()
    stream.seek(0)
    assert stream.read() == "a\\u2713"


async def test_a_full_pipe_stops_the_writer_and_not_the_loop(pipe: tuple[BufferedReader, TextIO]) -> None:
    reading, writing = pipe
    output = Output(writing)
    await output.write("x" * 200_000)  # more than a pipe holds, less than may be pending
    blocked = asyncio.ensure_future(output.write("y" * 200_000))
    await asyncio.wait([blocked], timeout=0.1)
    assert not blocked.done()
    assert len(await asyncio.to_thread(reading.read, 400_000)) == 400_000
    await blocked
    output.close()


async def test_a_reader_that_is_gone_is_an_error(pipe: tuple[BufferedReader, TextIO]) -> None:
    reading, writing = pipe
    reading.close()
    output = Output(writing)
    await output.write("x")
    with pytest.raises(BrokenPipeError):
        await output.flush()
    with pytest.raises(BrokenPipeError):
        await output.write("y")
