"""Pages of lists: opaque tokens that say after which key to go on."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from dragoman.protocol.limits import MIB
from google.protobuf.message import Message

_DEFAULT = 100
_MOST = 1000
PAGE_BYTES: Final = 3 * MIB
"""What the entries of one page may have together: a gRPC client takes no message above 4 MiB unless it is told to."""

Entry = TypeVar("Entry", bound=Message)
Item = TypeVar("Item")
First = TypeVar("First")
Second = TypeVar("Second")
Key = list[str | int | float]


class PageTokenError(ValueError):
    """The token is not one of ours."""


def page(items: Sequence[Item], key: Callable[[Item], Key], *, size: int, token: str) -> tuple[list[Item], str]:
    """Return one page and the token of the next, which is empty at the end.

    What comes or goes between two pages neither repeats nor hides anything else.

    Args:
        items: all of them, sorted by ``key``.
        key: what they are sorted by; unique.
        size: at most so many; 0 for 100, never more than 1000.
        token: where to go on; empty for the beginning.

    Raises:
        PageTokenError: the token is not one of ours.
    """
    after = decode_any(token) if token else None
    wanted = page_size(size)
    try:
        rest = [item for item in items if after is None or key(item) > after]
    except TypeError as error:
        raise PageTokenError("the page token belongs to another list") from error
    shown = rest[:wanted]
    return shown, encode_token(key(shown[-1])) if len(rest) > wanted else ""


def page_size(asked: int) -> int:
    """Return how many entries a page has: 0 for 100, never more than 1000."""
    return min(asked or _DEFAULT, _MOST)


def fitting(entries: Iterable[Entry]) -> list[Entry]:
    """Return the first of ``entries``, as many as a message has room for; at least one, if there is any."""
    shown: list[Entry] = []
    length = 0
    for entry in entries:
        length += entry.ByteSize()
        if shown and length > PAGE_BYTES:
            break
        shown.append(entry)
    return shown


def decode_token(token: str, first: type[First], second: type[Second]) -> tuple[First, Second]:
    """Return the two parts of a token's key.

    Raises:
        PageTokenError: the token is not one of ours, or of another list.
    """
    key = decode_any(token)
    if len(key) != 2 or not isinstance(key[0], first) or not isinstance(key[1], second):
        raise PageTokenError("the page token belongs to another list")
    return key[0], key[1]


def encode_token(key: Key) -> str:
    """Return the token for what comes after a key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def decode_any(token: str) -> Key:
    """Return the key of a token.

    Raises:
        PageTokenError: the token is not one of ours.
    """
    try:
        key = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, RecursionError, binascii.Error) as error:
        raise PageTokenError("the page token is not one of ours") from error
    if not isinstance(key, list):
        raise PageTokenError("the page token is not one of ours")
    return key
