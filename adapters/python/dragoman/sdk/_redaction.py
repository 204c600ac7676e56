"""Taking secrets out of whatever leaves an adapter.

Three nets, in this order: the *values* we know (tokens and keys that we put into the child's
environment ourselves), the *keys* that say their value is a secret, and the *forms* that credentials
of known vendors have. The first is exact, across chunks of a stream too. The other two catch what we
were never told; the forms see one chunk of a stream at a time.

Known values are found as they are, as they stand inside JSON text (escaped once or twice), and
percent-encoded. Not in base64: what a value becomes there depends on its neighbours, so finding some
cases would only feign safety.
"""

import json
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dragoman.sdk._json import JsonValue
from dragoman.sdk._secret_patterns import (
    REDACTED,
    KeyKind,
    is_numeric,
    is_secret_flag,
    key_kind,
    mask_command,
    mask_forms,
    names_secret,
)

SHORTEST_SECRET: Final = 6
"""Characters. A shorter known secret is ignored: a one-letter key must never rewrite every text."""

_SHORTEST_LINE: Final = 16  # characters of a line of a secret that count as a secret of their own
_DEEPEST: Final = 200  # levels of a JSON value that are walked; frames of agents have a dozen

Span = tuple[int, int]


class Redactor:
    """Replaces secrets by ``[redacted]``. Immutable; one serves a whole run and any number of threads.

    Every method returns *the same object* when there was nothing to replace, so ``is`` tells whether
    something was redacted.

    Args:
        secrets: The secret values known to this run. Those shorter than ``SHORTEST_SECRET``
            characters are ignored. A secret of several lines is also found line by line.
    """

    __slots__ = ("_by_head", "_firsts", "_longest", "_variants")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        variants = sorted({form for secret in secrets for form in _variants(secret)})
        self._variants = tuple(variants)
        self._longest = max(map(len, variants), default=0)
        # By their first two characters, so that looking for a beginning looks for few, rare things.
        by_head: dict[str, tuple[str, ...]] = {}
        for form in variants:
            by_head[form[:2]] = (*by_head.get(form[:2], ()), form)
        self._by_head = tuple(by_head.items())
        self._firsts = frozenset(head[0] for head in by_head)

    def __repr__(self) -> str:
        """Say how many values are known, never which."""
        return f"<Redactor of {len(self._variants)} values>"

    def text(self, text: str) -> str:
        """Return ``text`` without known secrets and without what has the form of one."""
        # Substring searches: for the few dozen values of a run they beat one pattern of all of them.
        for form in self._variants:
            if form in text:
                text = _mask(text, self.spans(text))
                break
        return mask_forms(text)

    def value(self, value: JsonValue) -> JsonValue:
        """Return a JSON value without secrets, by value, by key and by form.

        Only string leaves change, and numbers under a key that names a secret; keys, booleans, null
        and the structure never do. What lies deeper than 200 levels is replaced whole.
        """
        return self._walk(value, KeyKind.PLAIN, _DEEPEST)

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables fit to be shown.

        Values under a name with a word for a secret in it are masked, whatever the word is part of
        (numbers of counters excepted); other values are treated as text. Always a new dict.
        """
        return {name: self._variable(name, value) for name, value in environment.items()}

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the words of a command line fit to be shown. Always a new list."""
        shown: list[str] = []
        after_flag = False
        for item in argv:
            secret = after_flag and item != "" and not item.startswith("-")
            shown.append(REDACTED if secret else self.command(item))
            after_flag = is_secret_flag(item)
        return shown

    def command(self, text: str) -> str:
        """Return the text of a command line fit to be shown: as ``text``, and by names within it."""
        masked = mask_command(self.text(text))
        return text if masked == text else masked

    def stream(self) -> "StreamRedactor":
        """Return a redactor for one text that arrives in pieces."""
        return StreamRedactor(self)

    def spans(self, text: str) -> list[Span]:
        """Return where known secrets are in ``text``, ascending; overlapping ones as one."""
        found: list[Span] = []
        for form in self._variants:
            start = text.find(form)
            while start >= 0:
                found.append((start, start + len(form)))
                start = text.find(form, start + 1)  # by one: a secret may overlap itself
        return _merged(found) if len(found) > 1 else found

    def undecided(self, text: str) -> int:
        """Return where the longest end of ``text`` starts that may be the beginning of a secret.

        ``len(text)`` if none does. A whole secret is not the beginning of itself.
        """
        earliest = end = len(text)
        first = max(0, end - self._longest + 1)
        for head, forms in self._by_head:
            start = text.find(head, first, earliest + 1)
            while start >= 0:
                if _may_become(text[start:], forms):
                    earliest = start
                    break
                start = text.find(head, start + 1, earliest + 1)
        if earliest == end and text[-1:] in self._firsts:
            return end - 1
        return earliest

    def _variable(self, name: str, value: str) -> str:
        if not value or not names_secret(name):
            return self.text(value)
        if key_kind(name) is KeyKind.COUNTER and is_numeric(value):
            return value
        return REDACTED

    def _walk(self, value: JsonValue, kind: KeyKind, depth: int) -> JsonValue:
        if isinstance(value, str):
            return self._leaf(value, kind)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return REDACTED if kind is KeyKind.SECRET else value
        if depth == 0:
            return REDACTED
        if isinstance(value, list):
            items = [self._walk(item, kind, depth - 1) for item in value]
            return items if _differ(items, value) else value
        entries = {key: self._walk(item, _stricter(kind, key), depth - 1) for key, item in value.items()}
        return entries if _differ(entries.values(), value.values()) else value

    def _leaf(self, text: str, kind: KeyKind) -> str:
        if kind is KeyKind.PLAIN:
            return self.text(text)
        if not text or (kind is KeyKind.COUNTER and is_numeric(text)) or text == REDACTED:
            return text
        return REDACTED


class StreamRedactor:
    """Takes known secrets out of one text that arrives in pieces, however they are cut.

    What comes out, joined, is what ``Redactor.text`` would make of the whole, as far as known secrets
    go; forms are looked for in each piece that comes out. Text is held back only while it may be the
    beginning of a known secret: at most one secret's length.
    """

    __slots__ = ("_changed", "_covered", "_pending", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending = ""
        # Characters of _pending that belong to a secret whose mask is out already. They are kept because
        # they may be the beginning of another one, and dropped when they are not.
        self._covered = 0
        self._changed = False

    @property
    def changed(self) -> bool:
        """Whether something was redacted in what the last call returned."""
        return self._changed

    @property
    def held(self) -> int:
        """Characters that are held back."""
        return len(self._pending)

    def feed(self, text: str) -> str:
        """Take the next piece and return what is decided now; perhaps nothing."""
        text = self._pending + text
        return self._emit(text, self._redactor.undecided(text))

    def flush(self) -> str:
        """Return what is still held back: the text is over, or must be seen now. Start afresh."""
        return self._emit(self._pending, len(self._pending))

    def _emit(self, text: str, until: int) -> str:
        spans = self._redactor.spans(text)
        if not spans and not self._covered:
            self._pending = text[until:]
            return self._formed(text[:until], masked=False)
        pieces: list[str] = []
        position = self._covered
        for start, end in spans:
            if start < position:  # continues the secret whose mask is out
                position = max(position, end)
            elif start > until:  # inside what may become a longer secret
                break
            else:
                pieces += (text[position:start], REDACTED)
                position = end
        pieces.append(text[position:until])
        self._pending = text[until:]
        self._covered = max(0, position - until)
        return self._formed("".join(pieces), masked=REDACTED in pieces)

    def _formed(self, text: str, *, masked: bool) -> str:
        formed = mask_forms(text)
        self._changed = masked or formed is not text
        return formed


def _mask(text: str, spans: Sequence[Span]) -> str:
    pieces: list[str] = []
    position = 0
    for start, end in spans:
        pieces += (text[position:start], REDACTED)
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _may_become(tail: str, forms: Iterable[str]) -> bool:
    return any(len(tail) < len(form) and form.startswith(tail) for form in forms)


def _differ(new: Iterable[JsonValue], old: Iterable[JsonValue]) -> bool:
    return any(a is not b for a, b in zip(new, old, strict=True))


def _stricter(kind: KeyKind, key: str) -> KeyKind:
    if kind is KeyKind.SECRET:
        return kind
    own = key_kind(key)
    return kind if own is KeyKind.PLAIN else own


def _variants(secret: str) -> set[str]:
    """Return the forms in which ``secret`` may appear, without those that must not be looked for."""
    values = {secret, secret.strip()}
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        # Output reaches us line by line. Lines with spaces and the armour of keys are no secrets.
        values.update(line for line in lines if _is_dense(line))
    forms = {form for value in values for form in _encodings(value)}
    return {form for form in forms if len(form.strip()) >= SHORTEST_SECRET and form not in REDACTED}


def _is_dense(line: str) -> bool:
    return len(line) >= _SHORTEST_LINE and " " not in line and not line.startswith("-----")


def _encodings(value: str) -> set[str]:
    if len(value.strip()) < SHORTEST_SECRET:
        return set()
    once = _json_escapes(value)
    twice = {form for escaped in once for form in _json_escapes(escaped)}
    forms = {value} | once | twice
    for quote in (urllib.parse.quote, urllib.parse.quote_plus):
        for safe in ("", "/"):
            encoded = quote(value, safe=safe, errors="replace")
            forms |= {encoded, re.sub("%..", lambda match: match[0].lower(), encoded)}
    return forms


def _json_escapes(value: str) -> set[str]:
    escaped = json.dumps(value)[1:-1]
    # Go also escapes what is special in HTML.
    for_html = re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", escaped)
    return {escaped, for_html, json.dumps(value, ensure_ascii=False)[1:-1]}
