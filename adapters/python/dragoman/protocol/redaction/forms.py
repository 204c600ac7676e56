"""The forms in which a known secret may appear in a text, and the text without what may interrupt it. Pure."""

import base64
import bisect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dragoman.protocol.secrets import SHORTEST_SECRET
from msgspec import Struct

GRAM: Final = SHORTEST_SECRET
"""No form is shorter than so many characters."""

_SHORTEST_LINE: Final = 16  # characters of a line of a secret that count as a secret of their own
_LONGEST_ENCODED: Final = 4096  # characters; a longer secret is not looked for in hexadecimal and the like
_SHELL_SPECIAL: Final = re.compile(r"[\s'\"\\|&;()<>!{}*\[\]?^$`#~,]")  # what bash's %q escapes
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:=+%@-]*")  # text that needs no quoting
_LONGEST_INTERRUPTION: Final = 64  # characters in a row

# What a terminal does not show. In JSON text it may be escaped. Each pattern begins with a set of characters, so that
# the rest of a text is passed over fast. The long ones are compiled, and kept by ``re``, when a text needs them.
_SHY: Final = "\x00-\x1f\x7f-\x9f\u200b-\u200f\u2060\ufeff\ufffd\ud800-\udfff"
_PARAMETERS: Final = r"[0-?]{0,32}[ -/]{0,4}[@-~]?"
_AFTER_ESC: Final = rf"(?:\[{_PARAMETERS}|\][^\x07\x1b\n]{{0,60}}(?:\x07|\x1b\\)?|[ -/]{{0,4}}[0-~]?)"
_AFTER_BACKSLASH: Final = r"(?:u(?:00[019][0-9a-fA-F]|007[fF]|[fF]{3}[dD])|[nrtbf]|u?0{0,2}[019]?\Z)"
_MAY_INTERRUPT: Final = re.compile(rf"[{_SHY}\\]")
_CONTROLS: Final = rf"[{_SHY}\\](?:(?<!\\)|(?<=\\){_AFTER_BACKSLASH})"
_SEQUENCES: Final = (
    rf"[{_SHY}\\](?:(?<=\x1b){_AFTER_ESC}|(?<=\x9b){_PARAMETERS}"
    rf"|(?<=\\)(?:u001[bB]{_AFTER_ESC}|{_AFTER_BACKSLASH})|(?<![\x1b\x9b\\]))"
)


class View(Struct, frozen=True):
    """A text without what may interrupt a secret, and where each character of it is in the text."""

    text: str
    _starts: Sequence[int]
    _origins: Sequence[int]

    @classmethod
    def of(cls, text: str, without: str) -> "View":
        """Return a text without interruptions, but for those that are too long."""
        pieces: list[str] = []
        starts, origins = [0], [0]
        length = at = 0
        for start, end in _runs(found.span() for found in re.finditer(without, text)):
            if end - start > _LONGEST_INTERRUPTION:
                continue
            pieces.append(text[at:start])
            length += start - at
            starts.append(length)
            origins.append(end)
            at = end
        pieces.append(text[at:])
        return cls("".join(pieces), starts, origins)

    def origin(self, at: int) -> int:
        """Return where a character of the view is in the text."""
        piece = bisect.bisect_right(self._starts, at) - 1
        return self._origins[piece] + at - self._starts[piece]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return where a part of the view is in the text."""
        return self.origin(start), self.origin(end - 1) + 1


def has_escapes(text: str) -> bool:
    """Return whether more than single characters may have to be left out of a text."""
    return "\\" in text or "\x1b" in text or "\x9b" in text


def _runs(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield spans, those that touch each other as one."""
    first, last = 0, 0
    for start, end in spans:
        if start > last:
            if last > first:
                yield first, last
            first = start
        last = end
    if last > first:
        yield first, last


def interruptions(text: str) -> Sequence[str]:
    """Return what to leave out of a text to see a secret in it that something interrupts, in one way or another.

    Escape sequences as a whole, and their control characters alone: a secret may be cut by a sequence, or stand
    within one, such as a terminal's title.
    """
    if not _MAY_INTERRUPT.search(text):
        return ()
    has_sequences = "\x1b" in text or "\x9b" in text or "\\u001" in text
    return (_SEQUENCES, _CONTROLS) if has_sequences else (_CONTROLS,)


def forms_of(secret: str) -> set[str]:
    """Return the forms in which ``secret`` is looked for; none if it is too short."""
    values = {secret, secret.strip()}
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        # Output reaches us line by line. Lines with spaces and the armour of keys are no secrets.
        values.update(line for line in lines if _is_dense(line))
    forms = {form for value in values for form in _encodings(value)}
    forms |= {View.of(form, _SEQUENCES).text for form in forms if _MAY_INTERRUPT.search(form)}
    return {form for form in forms if len(form.strip()) >= SHORTEST_SECRET}


def _is_dense(line: str) -> bool:
    return len(line) >= _SHORTEST_LINE and " " not in line and not line.startswith("-----")


def _encodings(value: str) -> set[str]:
    if len(value.strip()) < SHORTEST_SECRET:
        return set()
    once = _json_escapes(value)
    twice = {form for escaped in once for form in _json_escapes(escaped)}
    forms = {value} | once | twice
    if len(value) > _LONGEST_ENCODED:
        return forms
    data = value.encode("utf-8", "replace")
    return forms | _quotations(value) | _percent(data) | {data.hex(), data.hex().upper()} | _base64(data)


def _json_escapes(value: str) -> set[str]:
    escaped = json.dumps(value)[1:-1]
    # Go also escapes what is special in HTML.
    for_html = re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", escaped)
    return {escaped, for_html, json.dumps(value, ensure_ascii=False)[1:-1]}


def _quotations(value: str) -> set[str]:
    """Return a value as shells, Python and HTML quote it; only itself, if nothing in it is special."""
    if _PLAIN.fullmatch(value):
        return {value}
    import html  # noqa: PLC0415 - slow to import, and few secrets need quoting

    in_html = {html.escape(value), html.escape(value, quote=False)}
    for double, single in (("&#34;", "&#39;"), ("&quot;", "&#39;"), ("&quot;", "&apos;")):
        in_html.add(html.escape(value, quote=False).replace('"', double).replace("'", single))
    return in_html | {
        value.replace("'", "'\\''"),
        value.replace("'", "'\"'\"'"),
        re.sub(r'["\\$`]', r"\\\g<0>", value),
        _SHELL_SPECIAL.sub(r"\\\g<0>", value),
        re.sub(r"['\\]", r"\\\g<0>", value),
        repr(value)[1:-1],
        json.dumps(value)[1:-1].replace("/", "\\/"),
    }


def _percent(data: bytes) -> set[str]:
    text = data.decode("latin-1")
    forms = set()
    for unsafe in ("[^A-Za-z0-9_.~-]", "[^A-Za-z0-9_.~/-]"):
        for shape in ("%{:02X}", "%{:02x}"):
            encoded = re.sub(unsafe, lambda match, shape=shape: shape.format(ord(match[0])), text)
            forms |= {encoded, encoded.replace("%20", "+")}
    return forms


def _base64(data: bytes) -> set[str]:
    """Return what is the same in base64 wherever the value stands: one form for each of three alignments."""
    forms = set()
    for before in range(3):
        first, last = -(-8 * before // 6), 8 * (before + len(data)) // 6
        core = base64.b64encode(b"\0" * before + data).decode()[first:last]
        forms |= {core, core.replace("+", "-").replace("/", "_")}
    return forms
