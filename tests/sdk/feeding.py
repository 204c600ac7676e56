"""Output of an agent, put through a parser as the SDK does it."""

from collections.abc import Iterable

from dragoman.sdk import Output, Parser
from dragoman.sdk.parsing import LineSplitter
from hypothesis import strategies as st


def feed(parser: Parser, chunks: Iterable[bytes]) -> list[Output]:
    """Return what comes out of a stream that arrives in these pieces, and of its end."""
    splitter = LineSplitter()
    outputs: list[Output] = []
    for chunk in chunks:
        for line in splitter.feed(chunk):
            outputs += parser.line("stdout", line)
    for line in splitter.finish():
        outputs += parser.line("stdout", line)
    return [*outputs, *parser.finish()]


def pieces_of(whole: bytes, data: st.DataObject) -> list[bytes]:
    """Return ``whole`` in pieces, cut wherever hypothesis wants."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=20)))
    return [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
