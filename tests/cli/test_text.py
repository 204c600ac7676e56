"""Text for people: neutral, short, readable numbers."""

import pytest
from dragoman.cli.display import text as texts
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "neutral"),
    [
        ("plain ✓ text\twith\nlines", "plain ✓ text\twith\nlines"),
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]52;c;ZXZpbA==\x07", "␛]52;c;ZXZpbA==␇"),
        ("\x9b31m", "<U+009B>31m"),
        ("a\r\nb", "a\nb"),
        ("progress\rover", "progress␍over"),
        ("back\x08space \x7f \x00", "back␈space ␡ ␀"),
        ("\u202eevil\u2066 \u200b \ufeff", "<U+202E>evil<U+2066> <U+200B> <U+FEFF>"),
        ("👩\u200d💻", "👩\u200d💻"),
    ],
)
def test_terminal_controls_become_visible(text: str, neutral: str) -> None:
    assert texts.sanitize(text) == neutral


@given(st.text())
def test_nothing_but_newlines_and_tabs_steers(text: str) -> None:
    codes = {ord(character) for character in texts.sanitize(text)} - {9, 10}
    assert not [code for code in codes if code < 0x20 or 0x7F <= code < 0xA0]


@given(st.lists(st.text()))
def test_pieces_are_as_neutral_as_the_whole(pieces: list[str]) -> None:
    """A sequence that is cut in two must not come together again on the screen."""
    assert "\x1b" not in "".join(map(texts.sanitize, pieces))


def test_one_line() -> None:
    assert texts.one_line("  a\n\n b\tc \x1b ") == "a b c ␛"
    assert texts.one_line("x" * 50, 10) == "xxxxxxxxx…"
    assert len(texts.one_line("long " * 10_000_000, 20)) == 20


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"),
        (0.3401, "340 ms"),
        (0.9999, "1.0 s"),
        (3.24, "3.2 s"),
        (99.96, "1 min 40 s"),
        (245, "4 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert texts.seconds(value) == text
    assert texts.span(duration_pb2.Duration(nanos=340_000_000)) == "340 ms"


@pytest.mark.parametrize(
    ("text", "columns"), [("", 0), ("ada", 3), ("エージェント", 12), ("e\u0301", 1), ("👩‍🔬", 4), ("é…", 2)]
)
def test_columns_of_a_terminal(text: str, columns: int) -> None:
    assert texts.columns(text) == columns
    assert texts.fit(text, columns) == text


@given(st.text(alphabet="aエe\u0301", max_size=12), st.integers(2, 12))
def test_what_is_cut_fits(text: str, room: int) -> None:
    shown = texts.fit(text, room)
    assert texts.columns(shown) <= room
    assert shown == text or (text.startswith(shown[:-1]) and texts.columns(shown) >= room - 1)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "$0.00"),
        ("0.0026", "$0.0026"),
        ("0.12345", "$0.1234"),
        ("0.0000031", "$0.0000031"),
        ("1.5", "$1.50"),
        ("1234.5", "$1,234.50"),
        ("", "unknown"),
        ("a lot", "unknown"),
        ("NaN", "unknown"),
        ("1e-30", "$0.000000000000"),
    ],
)
def test_money(amount: str, text: str) -> None:
    assert texts.money(pb.Cost(amount=amount, currency="USD")) == text


def test_money_in_other_currencies_and_computed() -> None:
    assert texts.money(pb.Cost(amount="1", currency="EUR")) == "1.00 EUR"
    assert texts.money(pb.Cost(amount="1", currency="USD", basis=pb.COST_BASIS_COMPUTED)) == "~$1.00"


def test_words_for_enums_of_this_and_later_revisions() -> None:
    assert texts.enum_label(pb.Outcome.DESCRIPTOR, pb.OUTCOME_TIMED_OUT, "OUTCOME_") == "timed out"
    assert texts.enum_label(pb.Outcome.DESCRIPTOR, 99, "OUTCOME_") == "kind 99"
