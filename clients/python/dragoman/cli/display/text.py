"""Text for people: without control characters, short, with readable numbers."""

import itertools
import re
import unicodedata
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.v1 import event_pb2 as pb
    from google.protobuf import duration_pb2, timestamp_pb2
    from google.protobuf.descriptor import EnumDescriptor

UNKNOWN = "unknown"

# C0 and C1 controls except tab and newline; characters that reverse the direction of text or are invisible. An
# agent's output may contain any of them, and terminals interpret some.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\U000e0000-\U000e007f]"
)


def sanitize(text: str) -> str:
    """Return ``text`` with visible replacements for everything that could control a terminal.

    Newlines and tabs are kept; a carriage return before a newline is removed.
    """
    return _CONTROLS.sub(_visible, text.replace("\r\n", "\n"))


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)  # the control's own picture, e.g. ␛
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"


def one_line(text: str, limit: int = 160) -> str:
    """Return ``text`` without control characters, on one line, of at most ``limit`` characters."""
    # Cut first, because the text may be huge.
    line = " ".join(sanitize(text[: limit * 8]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def moment(time: "timestamp_pb2.Timestamp", form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Return a time in UTC; empty if there is none."""
    return time.ToDatetime().strftime(form) if time.ListFields() else ""


def columns(text: str) -> int:
    """Return the width of a line in terminal columns: some scripts are two columns wide, accents none."""
    return sum(map(_columns_of, text))


def _columns_of(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in {"W", "F"} else 1


def fit(text: str, room: int) -> str:
    """Return a line, cut to ``room`` columns."""
    if columns(text) <= room:
        return text
    ends = itertools.accumulate(map(_columns_of, text))
    fitting = itertools.takewhile(lambda item: item[1] < room, enumerate(ends, start=1))
    return text[: max((length for length, _end in fitting), default=0)] + "…"


def enum_label(names: "EnumDescriptor", value: int, prefix: str) -> str:
    """Return the label of an enum's value, e.g. ``timed out``; values of later revisions by their number."""
    name = names.values_by_number.get(value)
    if name is None:
        return f"kind {value}"
    return name.name.removeprefix(prefix).lower().replace("_", " ")


def count(number: int) -> str:
    """Return a number with thousands separators."""
    return f"{number:,}"


def seconds(value: float) -> str:
    """Return a duration, e.g. ``340 ms``, ``3.2 s``, ``4 min 05 s`` or ``2 h 10 min``."""
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 99.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def ago(value: float) -> str:
    """Return how long ago something was, in its largest unit, e.g. ``1 min ago`` or ``3 h ago``."""
    minutes = int(value // 60)
    amount, unit = (minutes, "min") if minutes < 60 else (minutes // 60, "h")
    return f"{amount} {unit} ago"


def span(message: "duration_pb2.Duration") -> str:
    """Return a protobuf duration, as `seconds` does."""
    return seconds(message.ToNanoseconds() / 1e9)


def money(cost: "pb.Cost") -> str:
    """Return an amount of money, e.g. ``$0.0026``; computed amounts are marked with ``~``."""
    try:
        amount = Decimal(cost.amount)
        if not amount.is_finite():
            return UNKNOWN
    except InvalidOperation:
        return UNKNOWN
    from dragoman.v1 import event_pb2 as pb  # noqa: PLC0415 - few texts are about money, and an adapter may wait

    digits = 2 if amount == 0 or abs(amount) >= 1 else max(4, 1 - amount.adjusted())
    text = f"{amount:,.{min(digits, 12)}f}"
    about = "~" if cost.basis == pb.COST_BASIS_COMPUTED else ""
    if cost.currency in {"USD", ""}:
        return f"{about}${text}"
    return f"{about}{text} {one_line(cost.currency, 8)}"
