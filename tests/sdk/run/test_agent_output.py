"""Lines of an agent that its parser fails on: what is known of them when the output ends."""

from collections.abc import Iterable

import pytest
from dragoman.sdk import Line, Output, Report
from dragoman.sdk._run.agent_output import AgentOutput

from tests.sdk.running import make_run


class Choosy:
    """Fails on each line that says so."""

    def __init__(self, *, fails_at_end: bool = False) -> None:
        self.report = Report()
        self._fails_at_end = fails_at_end

    def line(self, _stream: str, line: Line) -> Iterable[Output]:
        if b"bad" in line.data:
            raise KeyError("bad")
        return []

    def finish(self) -> Iterable[Output]:
        if self._fails_at_end:
            raise KeyError("end")
        return []


@pytest.mark.parametrize(
    ("pieces", "fails_at_end", "unread", "read"),
    [
        ([("stdout", b"good\nbad\n")], False, True, [False, True]),
        ([("stdout", b"good\nbad")], False, True, [False, True]),
        ([("stdout", b"bad\ngood\n")], False, False, [True, False]),
        ([("stdout", b"good\n"), ("stderr", b"bad\n")], False, False, [False]),
        ([("stdout", b"bad\n"), ("stderr", b"good\n")], False, True, [True]),
        ([("stdout", b"good\n")], True, True, [False]),
        ([], False, False, []),
    ],
)
async def test_whether_the_last_line_was_understood(
    pieces: list[tuple[str, bytes]], fails_at_end: bool, unread: bool, read: list[bool]
) -> None:
    heard: list[bool] = []
    parser = Choosy(fails_at_end=fails_at_end)
    output = AgentOutput(make_run(), parser, "lines", None, lambda *_: None, heard.append)
    for stream, data in pieces:
        output.feed("stdout" if stream == "stdout" else "stderr", data)
    output.end_stream("stdout")
    output.end_stream("stderr")
    output.finish()
    assert (output.unread_end, heard) == (unread, read)
    fails = fails_at_end or any(b"bad" in data for _, data in pieces)
    assert bool(output.parser_fault) is fails
