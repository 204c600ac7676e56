"""Lines, decoding and captures: how the bytes were cut never shows in what comes out."""

import itertools
import time

import pytest
from dragoman.protocol.texts import cut_text, well_formed
from dragoman.sdk._encoding.lines import HeadTail, Line, LineSplitter, without_terminal_orders
from hypothesis import given
from hypothesis import strategies as st


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut ``data`` at the given places (taken modulo its length)."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    edges = [0, *places, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def split(chunks: list[bytes], max_line: int = 1 << 20) -> list[Line]:
    splitter = LineSplitter(max_line)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.finish()


def reference(data: bytes, max_line: int) -> list[Line]:
    """The definition, for whole input: strip the line end, then cut."""
    *ended, last = data.split(b"\n")
    lines = []
    for raw in ended:
        content = raw.removesuffix(b"\r")
        kept = content[:max_line]
        lines.append(Line(kept, len(content) - len(kept), complete=True))
    if last:
        lines.append(Line(last[:max_line], max(0, len(last) - max_line), complete=False))
    return lines


# Few distinct bytes, so that line ends, carriage returns and cuts meet often.
outputs = st.lists(st.sampled_from([b"\n", b"\r", b"a", b"bc", b"\xe2\x80\xa8", b"\x85"])).map(b"".join)
cut_places = st.lists(st.integers(min_value=0, max_value=200), max_size=12)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a\nb\n", [Line(b"a", 0, True), Line(b"b", 0, True)]),
        (b"a\r\n\n", [Line(b"a", 0, True), Line(b"", 0, True)]),
        (b"a\r\r\n", [Line(b"a\r", 0, True)]),
        (b"a\rb", [Line(b"a\rb", 0, False)]),
        (b"no end\r", [Line(b"no end\r", 0, False)]),
        ("a\u2028b\u0085c\x0b\x0cd\n".encode(), [Line("a\u2028b\u0085c\x0b\x0cd".encode(), 0, True)]),
        (b"\x00\xff\n", [Line(b"\x00\xff", 0, True)]),
    ],
)
def test_lines_end_at_the_newline_byte_and_nowhere_else(data: bytes, expected: list[Line]) -> None:
    assert split([data]) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"12345\n", [Line(b"1234", 1, True)]),
        (b"1234\r\n", [Line(b"1234", 0, True)]),
        (b"1234\r\r\n", [Line(b"1234", 1, True)]),
        (b"123456", [Line(b"1234", 2, False)]),
        (b"123456\nab\n", [Line(b"1234", 2, True), Line(b"ab", 0, True)]),
    ],
)
def test_what_is_beyond_the_limit_is_cut_and_counted(data: bytes, expected: list[Line]) -> None:
    assert split([data], max_line=4) == expected
    assert split([data[i : i + 1] for i in range(len(data))], max_line=4) == expected


@given(data=outputs, cuts=cut_places, max_line=st.integers(min_value=1, max_value=6))
def test_any_chunking_gives_the_same_lines(data: bytes, cuts: list[int], max_line: int) -> None:
    assert split(chunked(data, cuts), max_line) == reference(data, max_line)


def test_memory_is_bounded_by_the_line_limit() -> None:
    splitter = LineSplitter(max_line=1000)
    for _ in range(10_000):
        assert splitter.feed(b"x" * 1000) == []
    assert len(splitter._pending) == 1000
    assert splitter.finish() == [Line(b"x" * 1000, 9_999_000, complete=False)]


def test_a_splitter_starts_afresh_after_finish() -> None:
    splitter = LineSplitter(max_line=2)
    splitter.feed(b"abcd")
    assert splitter.finish() == [Line(b"ab", 2, complete=False)]
    assert splitter.finish() == []
    assert splitter.feed(b"e\n") == [Line(b"e", 0, complete=True)]


def test_a_limit_below_one_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="max_line"):
        LineSplitter(0)


def cpu_seconds(pieces: list[bytes]) -> float:
    splitter = LineSplitter()
    start = time.process_time()
    for piece in pieces:
        splitter.feed(piece)
    return time.process_time() - start


def test_a_long_line_in_small_pieces_costs_no_more_than_its_bytes() -> None:
    """Sixteen times the bytes may cost sixteen times the work, and some; quadratic would be 256 times."""
    small = cpu_seconds([b"x" * 1024] * 1024)
    large = cpu_seconds([b"x" * 1024] * 16 * 1024)
    assert large < max(small, 0.001) * 100


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ""),
        (b"0123456789", "0123456789"),
        (b"0123x456789", "0123\n[... 1 bytes dropped ...]\n456789"),
        (b"0123" + b"x" * 100 + b"456789", "0123\n[... 100 bytes dropped ...]\n456789"),
    ],
)
def test_a_capture_keeps_both_ends_and_says_what_is_missing(data: bytes, expected: str) -> None:
    capture = HeadTail(4, 6)
    capture.feed(data)
    assert capture.text() == expected


def test_a_capture_never_shows_half_a_character() -> None:
    capture = HeadTail(4, 4)
    capture.feed("aéé".encode() + b"x" * 10 + "ééa".encode())
    head, dropped, tail = capture.parts()
    assert (head, tail) == ("aé", "éa")
    assert dropped == capture.total - 3 - 3


@given(
    data=st.binary(max_size=200),
    cuts=cut_places,
    head=st.integers(min_value=0, max_value=20),
    tail=st.integers(min_value=0, max_value=20),
)
def test_a_capture_does_not_depend_on_chunking(data: bytes, cuts: list[int], head: int, tail: int) -> None:
    whole, pieces = HeadTail(head, tail), HeadTail(head, tail)
    whole.feed(data)
    for chunk in chunked(data, cuts):
        pieces.feed(chunk)
    assert pieces.parts() == whole.parts()
    assert (pieces.total, pieces.dropped) == (len(data), max(0, len(data) - head - tail))
    assert len(pieces._head) + len(pieces._tail) <= head + 2 * tail


def test_a_capture_with_negative_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        HeadTail(-1, 4)


@pytest.mark.parametrize(
    ("text", "max_bytes", "expected"),
    [
        ("abc", 3, ("abc", 0)),
        ("abcd", 3, ("abc", 1)),
        ("éé", 3, ("é", 2)),
        ("a😀", 4, ("a", 4)),
        ("a😀", 5, ("a😀", 0)),
        ("abc", 0, ("", 3)),
        ("abc", -1, ("", 3)),
        ("a\ud800", 4, ("a\ufffd", 0)),
    ],
)
def test_text_is_cut_between_characters(text: str, max_bytes: int, expected: tuple[str, int]) -> None:
    assert cut_text(text, max_bytes) == expected


@given(text=st.text(), max_bytes=st.integers(min_value=0, max_value=50))
def test_cut_text_fits_and_accounts_for_every_byte(text: str, max_bytes: int) -> None:
    kept, cut = cut_text(text, max_bytes)
    assert len(kept.encode()) <= max_bytes
    assert text.startswith(kept)
    assert len(kept.encode()) + cut == len(text.encode())
    if cut:
        assert len(text[: len(kept) + 1].encode()) > max_bytes  # no whole character was wasted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("é\u2028", "é\u2028"),
        ("\ud800x", "\ufffdx"),
        ("x\udc00", "x\ufffd"),
        ("\ud83d\ude00", "😀"),
    ],
)
def test_lone_surrogates_become_replacement_characters(text: str, expected: str) -> None:
    assert well_formed(text) == expected


@given(st.text(alphabet=st.characters(codec=None, categories=None)))
def test_well_formed_text_can_be_encoded_and_is_left_alone(text: str) -> None:
    once = well_formed(text)
    once.encode()
    assert well_formed(once) is once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain [0m text", "plain [0m text"),
        ("\x1b[91m\x1b[1mError: \x1b[0mno", "Error: no"),
        ("\x1b]8;;https://x\x07link\x1b]8;;\x1b\\!", "link!"),
        ("\x1b[2K\x1b[?25lx\x1b", "x\x1b"),
    ],
)
def test_orders_to_a_terminal_are_no_text(text: str, expected: str) -> None:
    assert without_terminal_orders(text) == expected
