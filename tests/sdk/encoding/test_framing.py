"""Messages with their length before them: cut right however they arrive, and nothing an agent prints is lost."""

from dragoman.sdk._encoding.framing import MessageSplitter, make_splitter, with_length
from dragoman.sdk._encoding.lines import Line, LineSplitter
from hypothesis import given, settings
from hypothesis import strategies as st


def fed(chunks: list[bytes], max_bytes: int = 1000) -> list[Line]:
    splitter = MessageSplitter(max_bytes)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.finish()


def test_two_messages_in_one_read() -> None:
    stream = with_length(b'{"a":\n1}') + with_length("ü\u2028".encode())
    assert fed([stream]) == [Line(b'{"a":\n1}', 0, True), Line("ü\u2028".encode(), 0, True)]


def test_a_message_comes_out_with_its_last_byte() -> None:
    splitter = MessageSplitter()
    message = with_length(b"{}")
    assert splitter.feed(message[:-1]) == []
    assert splitter.feed(message[-1:]) == [Line(b"{}", 0, True)]


def test_other_headers_are_passed_over_and_cases_and_line_ends_do_not_matter() -> None:
    stream = b"content-length:2\nContent-Type: application/json\n\n{}"
    assert fed([stream]) == [Line(b"{}", 0, True)]


def test_what_is_no_message_is_a_line() -> None:
    stream = b"Warning: something\n\n" + with_length(b"{}") + b"\r\nbye"
    assert [line.data for line in fed([stream])] == [b"Warning: something", b"{}", b"bye"]
    assert [line.complete for line in fed([stream])] == [True, True, False]


def test_a_line_in_place_of_the_end_of_the_header_is_reported_and_what_follows_is_understood() -> None:
    stream = b"Content-Length: 5\r\noh, an error\r\n" + with_length(b"{}")
    assert [line.data for line in fed([stream])] == [b"oh, an error", b"{}"]


def test_a_long_message_is_cut_and_counted() -> None:
    stream = with_length(b"x" * 99) + with_length(b"{}")
    assert fed([stream], max_bytes=40) == [Line(b"x" * 40, 59, True), Line(b"{}", 0, True)]


def test_a_message_cut_short_is_reported_as_incomplete() -> None:
    assert fed([b"Content-Length: 9\r\n\r\n{"]) == [Line(b"{", 0, False)]


def test_an_empty_message_is_none() -> None:
    assert fed([with_length(b"") + with_length(b"{}")]) == [Line(b"{}", 0, True)]


def test_lines_are_still_lines() -> None:
    assert isinstance(make_splitter("lines"), LineSplitter)
    assert isinstance(make_splitter("content-length"), MessageSplitter)


@given(st.lists(st.binary(max_size=40), max_size=5), st.lists(st.integers(1, 60), max_size=10))
@settings(max_examples=100)
def test_how_the_bytes_were_cut_never_shows(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(with_length(message) for message in messages)
    chunks, rest = [], stream
    for cut in cuts:
        chunks.append(rest[:cut])
        rest = rest[cut:]
    assert fed([*chunks, rest]) == [Line(message, 0, True) for message in messages if message]


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_no_bytes_raise_and_few_are_held(data: bytes) -> None:
    for line in fed([data], max_bytes=16):
        assert len(line.data) <= 16
