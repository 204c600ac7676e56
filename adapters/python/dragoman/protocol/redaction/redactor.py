"""Taking secrets out of whatever leaves an adapter.

Three nets, in this order: the *values* we know (tokens and keys that we put into the child's
environment ourselves), the *keys* that say their value is a secret, and the *forms* that credentials
of known vendors have. The first is exact, across chunks of a stream too. The other two catch what
was never registered; the forms see one chunk of a stream at a time.

Known values are found as they are, in JSON text (escaped once or twice), quoted for a shell, Python or HTML,
percent-encoded, in hexadecimal and in base64 (see ``forms``); each of these also where up to 64 characters in a row
interrupt it that a terminal does not show: escape sequences, control characters, line ends, bytes that are no UTF-8,
or their escapes in JSON.

Not found: values below 6 characters, plain words, values that were compressed, encrypted, reversed or spelt out,
values beyond 4,096 characters quoted, in hexadecimal, base64 or percent-encoded, and values whose pieces come in
different events, such as two lines of a log. SECURITY.md says so, too.
"""

import bisect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dragoman.protocol.redaction.forms import View, forms_of, has_escapes, interruptions
from dragoman.protocol.redaction.index import LONG, Index
from dragoman.protocol.redaction.patterns import (
    REDACTED,
    KeyKind,
    is_numeric,
    is_secret_flag,
    key_kind,
    mask_command,
    mask_forms,
    names_secret,
)
from dragoman.protocol.secrets import SHORTEST_SECRET
from dragoman.protocol.texts import JsonValue

_DEEPEST: Final = 200  # levels of a JSON value that are walked; frames of agents have a dozen

Span = tuple[int, int]


class Redactor:
    """Replaces secrets by ``[redacted]``. Immutable; one serves a whole run and any number of threads.

    Every method returns *the same object* when there was nothing to replace, so ``is`` shows whether
    something was redacted.

    Args:
        secrets: The secret values known to this run. Those shorter than ``SHORTEST_SECRET``
            characters are ignored. A secret of several lines is also found line by line.
    """

    __slots__ = ("_firsts", "_forms", "_heads", "_long", "_longest", "_short")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = sorted({form for secret in secrets for form in forms_of(secret) if form not in REDACTED})
        self._longest = max(map(len, self._forms), default=0)
        self._firsts = frozenset(form[0] for form in self._forms)
        self._heads = frozenset(form[:2] for form in self._forms)
        self._long = Index([form for form in self._forms if len(form) >= LONG])
        self._short = Index([form for form in self._forms if len(form) < LONG])

    def __repr__(self) -> str:
        """Return how many values are known, never which."""
        return f"<Redactor of {len(self._forms)} forms>"

    def text(self, text: str) -> str:
        """Return ``text`` without known secrets and without what has the form of one."""
        spans = self.spans(text)
        if spans:
            text = _mask(text, spans)
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
        if not self._forms:
            return []
        ways = interruptions(text)
        # Without escapes nothing is in the text that is not also in it without its control characters.
        found = [] if ways and not has_escapes(text) else self._occurrences(text)
        for without in ways:
            # Most texts hold no secret: where its characters are is worked out only if one does.
            if self._occurrences(re.sub(without, "", text)):
                view = View.of(text, without)
                found += (view.span(start, end) for start, end in self._occurrences(view.text))
        return _merged(found) if len(found) > 1 else found

    def undecided(self, text: str) -> int:
        """Return where the longest end of ``text`` starts that may be the beginning of a secret.

        ``len(text)`` if none does. A whole secret is not the beginning of itself.
        """
        if not self._forms:
            return len(text)
        earliest = self._open_end(text)
        size = 2 * self._longest
        begin = max(0, len(text) - size)
        for without in interruptions(text[begin:]):
            view = View.of(text[begin:], without)
            while begin and len(view.text) < self._longest:
                size *= 4
                begin = max(0, len(text) - size)
                view = View.of(text[begin:], without)
            start = self._open_end(view.text)
            if start < len(view.text):
                earliest = min(earliest, begin + view.origin(start))
        return earliest

    def _occurrences(self, text: str) -> list[Span]:
        return [*self._long.occurrences(text), *self._short.occurrences(text)]

    def _open_end(self, text: str) -> int:
        """Return where the longest end of a text starts that is a proper beginning of a form."""
        end = len(text)
        for start in range(max(0, end - self._longest + 1), end - 1):
            if text[start : start + 2] in self._heads and _begins_one(self._forms, text[start:]):
                return start
        return end - 1 if text[-1:] in self._firsts else end

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

    @property
    def unshown(self) -> int:
        """Characters that are held back and have neither come out nor been masked."""
        return len(self._pending) - self._covered

    def release(self) -> str:
        """Return what is held back, as it must be seen now, and go on watching what follows it.

        It is masked if it is long enough to be a secret: else one that comes piece by piece would be shown.
        """
        shown, is_long = self._pending[self._covered :], len(self._pending) >= SHORTEST_SECRET
        self._changed = is_long and bool(shown)
        self._covered = len(self._pending)
        return REDACTED if self._changed else shown

    def feed(self, text: str) -> str:
        """Read the next piece and return what is decided now; perhaps nothing."""
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


def _begins_one(forms: Sequence[str], tail: str) -> bool:
    """Return whether any of sorted forms begins with a text and is longer."""
    at = bisect.bisect_right(forms, tail)
    return at < len(forms) and forms[at].startswith(tail)


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


def _differ(new: Iterable[JsonValue], old: Iterable[JsonValue]) -> bool:
    return any(a is not b for a, b in zip(new, old, strict=True))


def _stricter(kind: KeyKind, key: str) -> KeyKind:
    if kind is KeyKind.SECRET:
        return kind
    own = key_kind(key)
    return kind if own is KeyKind.PLAIN else own
