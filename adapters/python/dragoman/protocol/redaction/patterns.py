"""What a secret looks like when its value is not known: by the key it is under, or by its form.

Three questions are answered here, as tables and plain functions. Which keys name a secret
(``key_kind``)? Which pieces of a text have the form of a credential (``mask_forms``)? Which words of
a command line are one (``mask_command``)?
"""

import enum
import functools
import re
from collections.abc import Iterator
from typing import Final

REDACTED: Final = "[redacted]"
"""What stands where a secret stood."""

_SECRET_WORD: Final = re.compile("key|token|secret|password|passwd|passphrase|authorization|cookie", re.IGNORECASE)
_WORDS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_NUMERIC: Final = re.compile(r"\s*[+-]?[0-9][0-9_.,]*\s*")

# Final words of keys that say where a secret is, what it is called or how long it lives, not what it is.
_DESCRIPTORS: Final = frozenset(
    (
        *("name", "type", "kind", "source", "path", "file", "dir", "directory", "url", "uri", "endpoint"),
        *("env", "helper", "status", "state", "provider", "scheme", "algorithm", "format", "version"),
        *("ref", "var", "variable"),
    )
)
_LIFETIMES: Final = frozenset({"expires", "expiry", "expiration", "expired", "ttl"})
# Words that contain a secret word by accident of spelling.
_INNOCENT: Final = frozenset(
    (
        *("keyboard", "keyword", "keywords", "keyframe", "keyframes", "keymap", "keypress", "keydown"),
        *("keyup", "keystroke", "keystrokes", "monkey", "turkey", "hockey", "tokenize", "tokenized"),
        *("tokenizer", "tokenization", "keyring", "hotkey", "hotkeys"),
    )
)
# Words that turn "token" from a credential into a unit of text.
_PLURALS: Final = frozenset({"tokens", "keys", "cookies", "secrets", "passwords"})
_COUNTING: Final = frozenset(
    (
        *("count", "counts", "counter", "limit", "max", "min", "maximum", "minimum", "total", "num"),
        *("number", "budget", "usage", "used", "remaining", "size", "length", "cost", "price", "rate"),
        *("per", "index"),
    )
)


class KeyKind(enum.Enum):
    """What the name of a key says about the value under it."""

    PLAIN = "plain"
    """Nothing."""

    COUNTER = "counter"
    """Numbers are amounts and no secrets; other text may be: ``input_tokens``, ``keys``."""

    SECRET = "secret"  # noqa: S105 - the name of a kind, not a secret
    """A secret, whatever its type: ``api_key``, ``Authorization``."""


def names_secret(key: str) -> bool:
    """Return whether ``key`` contains a word for a secret: the broad rule, for masking environments."""
    return _SECRET_WORD.search(key) is not None


def key_kind(key: str) -> KeyKind:
    """Return what ``key`` says about its value: the fine rule, for data that people must read.

    A key with a word for a secret in it, anywhere and in any case, is SECRET, with four exceptions:

    * its final word describes one (``apiKeySource``, ``token_url``, ``secret_name``), or a word
      speaks of its lifetime (``token_expires_at``): PLAIN;
    * the word is there by accident (``keyboard``, ``tokenizer``): PLAIN;
    * ``public`` stands beside ``key``: PLAIN;
    * a word is a plural (``input_tokens``, ``keys``) or counts (``token_count``, ``maxToken``):
      COUNTER.
    """
    return _cached_kind(key) if len(key) <= _LONGEST_CACHED_KEY else _kind(key)


def _kind(key: str) -> KeyKind:
    if not names_secret(key):
        return KeyKind.PLAIN
    words = [word.lower() for word in _WORDS.findall(key)]
    hits = {word for word in words if names_secret(word)}
    if words[-1] in _DESCRIPTORS or not _LIFETIMES.isdisjoint(words):
        return KeyKind.PLAIN
    if hits and (hits <= _INNOCENT or ("public" in words and hits <= {"key", "keys"})):
        return KeyKind.PLAIN
    if not _PLURALS.isdisjoint(hits) or not _COUNTING.isdisjoint(words):
        return KeyKind.COUNTER
    return KeyKind.SECRET


# Agents repeat a few dozen keys without end; what they invent must not fill the memory.
_LONGEST_CACHED_KEY: Final = 64
_cached_kind = functools.lru_cache(maxsize=1024)(_kind)


def is_secret_key(key: str) -> bool:
    """Return whether text under ``key`` is a secret by the fine rule."""
    return key_kind(key) is KeyKind.SECRET


def is_secret_entry(key: str, value: str) -> bool:
    """Return whether ``value`` under ``key`` is a secret by the fine rule; an empty value is none."""
    kind = key_kind(key)
    if kind is KeyKind.PLAIN or not value:
        return False
    return kind is KeyKind.SECRET or not is_numeric(value)


_CALLER_SECRET_WORDS: Final = frozenset(
    (
        *("pass", "pwd", "pat", "auth", "cred", "creds", "credential", "credentials", "bearer", "jwt", "dsn", "salt"),
        *("private", "signature", "signing"),
    )
)
_RANDOM: Final = re.compile(r"[A-Za-z0-9_+=~.-]{20,}")
_HEX: Final = re.compile("[0-9a-f]{32,}|[0-9A-F]{32,}")
_COMMIT_LENGTHS: Final = frozenset({40})


def is_caller_secret(name: str, value: str) -> bool:
    """Return whether a variable that a caller gave to a run is to be taken for a secret.

    The broad rule: the documentation sends callers' secrets into variables. Besides what
    ``is_secret_entry`` says: names with a word such as ``PASS`` or ``AUTH`` in them, and values that look random
    (20 characters or more of mixed case with digits, or 32 or more hexadecimal ones but for a commit's 40).
    """
    if not value or is_secret_entry(name, value):
        return bool(value)
    if _has_caller_word(name):
        return not is_numeric(value)
    return looks_random(value)


def is_caller_secret_name(name: str) -> bool:
    """Return whether the name of a setting or parameter that a caller gave says that text under it is a secret."""
    return key_kind(name) is KeyKind.SECRET or _has_caller_word(name)


def _has_caller_word(name: str) -> bool:
    return not _CALLER_SECRET_WORDS.isdisjoint(word.lower() for word in _WORDS.findall(name))


def looks_random(value: str) -> bool:
    """Return whether a text looks generated rather than written."""
    if _HEX.fullmatch(value):
        return len(value) not in _COMMIT_LENGTHS
    if not _RANDOM.fullmatch(value):
        return False
    kinds = (str.isdigit, str.islower, str.isupper)
    return all(any(kind(character) for character in value) for kind in kinds)


def is_numeric(text: str) -> bool:
    """Return whether ``text`` is a number, as text."""
    return _NUMERIC.fullmatch(text) is not None


# A credential begins where a word begins. In JSON text that is also after an escaped line end.
_START: Final = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"
_VALUE: Final = r"[A-Za-z0-9._~+/=-]"


# Not compiled: few texts hold any, and ``re`` keeps what it compiled.
_PRIVATE_KEY: Final = r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----(?:[^-]|-(?!-))*(?:-----END [A-Z ]{0,32}KEY-----)?"
_HEADER: Final = (
    r"(?i)(\b(?:proxy-)?authorization\\?[\"']?\s{0,8}[:=]\s{0,8}\\?[\"']?)"
    rf"(?:((?:bearer|basic|token|digest|apikey)\s{{1,8}}){_VALUE}{{6,}}|{_VALUE}{{16,}})"
)
_BEARER: Final = rf"(?i)(\bbearer\s{{1,8}})(?=[A-Za-z._~+/=-]{{0,64}}[0-9]){_VALUE}{{16,}}"
_COOKIE: Final = r"(?i)(\b(?:set-)?cookie\s{0,8}:\s{0,8})[^\s=;,\"']{1,256}=[^\r\n\"'\\]*"
_USERINFO: Final = r"(://[^\s/:@\"']{0,256}:)(?!\[redacted])[^\s/?#@\"']{1,512}(?=@)"

_GITHUB: Final = rf"{_START}gh[pousr]_[A-Za-z0-9]{{16,}}"
_AWS: Final = rf"{_START}A(?:KIA|SIA)[A-Z0-9]{{16}}(?![A-Za-z0-9])"
_HEADER_MASK: Final = rf"\g<1>\g<2>{REDACTED}"
_PREFIX_MASK: Final = rf"\g<1>{REDACTED}"

# (text that must be present, form, what to put there). Looking for the first is what makes the common case
# cheap: a substring search costs a fiftieth of an unanchored pattern. Every form is matched in linear time.
_FORMS: Final[tuple[tuple[str, str, str], ...]] = (
    ("sk-", rf"{_START}sk-(?=[A-Za-z_-]{{0,64}}[0-9])[A-Za-z0-9_-]{{20,}}", REDACTED),
    ("ghp_", _GITHUB, REDACTED),
    ("gho_", _GITHUB, REDACTED),
    ("ghu_", _GITHUB, REDACTED),
    ("ghs_", _GITHUB, REDACTED),
    ("ghr_", _GITHUB, REDACTED),
    ("github_pat_", rf"{_START}github_pat_[A-Za-z0-9_]{{22,}}", REDACTED),
    ("glpat-", rf"{_START}glpat-[A-Za-z0-9_-]{{20,}}", REDACTED),
    ("xox", rf"{_START}xox[a-z]-[A-Za-z0-9-]{{10,}}", REDACTED),
    ("AKIA", _AWS, REDACTED),
    ("ASIA", _AWS, REDACTED),
    ("AIza", rf"{_START}AIza[A-Za-z0-9_-]{{35}}", REDACTED),
    ("eyJ", rf"{_START}eyJ[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]{{8,}}", REDACTED),
    ("PRIVATE KEY", _PRIVATE_KEY, REDACTED),
    ("uthorization", _HEADER, _HEADER_MASK),
    ("UTHORIZATION", _HEADER, _HEADER_MASK),
    ("earer ", _BEARER, _PREFIX_MASK),
    ("BEARER ", _BEARER, _PREFIX_MASK),
    ("ookie", _COOKIE, _PREFIX_MASK),
    ("://", _USERINFO, _PREFIX_MASK),
)


def mask_forms(text: str) -> str:
    """Return ``text`` with everything that has the form of a credential masked; unchanged, itself."""
    for needle, form, mask in _FORMS:
        if needle in text:
            masked, count = re.subn(form, mask, text)
            if count:
                text = masked
    return text


# Compiled, and kept by ``re``, when a command is masked.
_WORD_VALUE: Final = r"\"[^\"]*\"|'[^']*'|[^\s\"';|&]+"
_FLAG: Final = rf"(?<![\w-])(--?[A-Za-z][\w-]*)(\s*=\s*|\s+)(?!-)({_WORD_VALUE})"
_ASSIGNMENT: Final = rf"(?<![\w.-])([A-Za-z_][\w.-]*)(=)({_WORD_VALUE})"
_COMMAND_HEADER: Final = (
    r"(?i)(?<![\w-])([A-Za-z][\w-]*)(:\s*)(?!(?:bearer|basic|token|digest|apikey)\s)([^\s\"';|&]+)"
)
_HEADER_VALUE: Final = r"(?i)(?:authorization|cookie)\s*[:=]\s*[A-Za-z]+\s+([^\s\"']+)"
_REFERENCE: Final = r"\$\w+|\$\{\w+\}"
_FLAG_ITEM: Final = r"--?[A-Za-z][\w-]*"


def mask_command(text: str) -> str:
    """Return command text with the values of secret flags, assignments and headers masked.

    ``--api-key VALUE``, ``--token=VALUE``, ``DB_PASSWORD=VALUE``, ``x-api-key: VALUE``: the name
    stays, and so does a reference to a variable (``$TOKEN``). Meant for command lines alone: in prose
    or source code the same shapes are no secrets.
    """
    for shape in (_FLAG, _ASSIGNMENT, _COMMAND_HEADER):
        text = re.sub(shape, _mask_named_value, text)
    return text


def command_values(text: str) -> Iterator[str]:
    """Yield the values that ``mask_command`` masks."""
    for shape in (_FLAG, _ASSIGNMENT, _COMMAND_HEADER):
        for match in re.finditer(shape, text):
            bare = match[3].strip("\"'")
            if _is_secret_value(match[1], bare):
                yield bare
    yield from (match[1] for match in re.finditer(_HEADER_VALUE, text))


def _is_secret_value(name: str, bare: str) -> bool:
    return is_secret_entry(name, bare) and bare != REDACTED and not re.fullmatch(_REFERENCE, bare)


def _mask_named_value(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    bare = value.strip("\"'")
    if not _is_secret_value(name, bare):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{between}{quote}{REDACTED}{quote}"


def is_secret_flag(item: str) -> bool:
    """Return whether the item after this one of an argv is a secret: ``--api-key`` and the like."""
    return re.fullmatch(_FLAG_ITEM, item) is not None and is_secret_key(item)
