"""Pagination: pages of lists, and opaque tokens that contain the last key of a page."""

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import MIB
from google.protobuf.message import Message

_DEFAULT = 100
_MOST = 1000
PAGE_BYTES: Final = 3 * MIB
"""Maximum size of a page's entries: gRPC clients reject messages of over 4 MiB by default."""

Entry = TypeVar("Entry", bound=Message)
Item = TypeVar("Item")
First = TypeVar("First")
Second = TypeVar("Second")
Key = list[str | int | float]


def page(items: Sequence[Item], key: Callable[[Item], Key], *, size: int, token: str) -> tuple[list[Item], str]:
    """Return one page and the token of the next, which is empty at the end.

    Items that are added or removed between two pages neither repeat nor hide others.

    Args:
        items: all items, sorted by ``key``.
        key: returns an item's sort key, which is unique.
        size: maximum number of items; 0 for 100, at most 1000.
        token: the token of the page; empty for the first.

    Raises:
        DragomanError: INVALID_PAGE_TOKEN: the token is invalid.
    """
    after = decode_any(token) if token else None
    limit = page_size(size)
    try:
        rest = [item for item in items if after is None or key(item) > after]
    except TypeError as error:
        raise _invalid("The page token belongs to a different list.") from error
    shown = rest[:limit]
    return shown, encode_token(key(shown[-1])) if len(rest) > limit else ""


def page_of_messages(
    items: Sequence[Item], key: Callable[[Item], Key], message: Callable[[Item], Entry], *, size: int, token: str
) -> tuple[list[Entry], str]:
    """Return one page as ``page`` does, of no more messages than fit into one answer.

    Args:
        items: as in ``page``.
        key: as in ``page``.
        message: returns the message for an item.
        size: as in ``page``.
        token: as in ``page``.

    Raises:
        DragomanError: INVALID_PAGE_TOKEN: the token is invalid.
    """
    shown, following = page(items, key, size=size, token=token)
    messages = fitting(message(item) for item in shown)
    return messages, following if len(messages) == len(shown) else encode_token(key(shown[len(messages) - 1]))


def page_size(asked: int) -> int:
    """Return the maximum number of entries of a page: the requested one, 0 for 100, at most 1000."""
    return min(asked or _DEFAULT, _MOST)


def within_page(entries: Iterable[Entry], shorten: Callable[[Entry], object]) -> list[Entry]:
    """Return all of ``entries``; shorten in place those beyond the maximum size of a page."""
    shown = list(entries)
    length = 0
    for entry in shown:
        length += entry.ByteSize()
        if length > PAGE_BYTES:
            length -= entry.ByteSize()
            shorten(entry)
            length += entry.ByteSize()
    return shown


def fitting(entries: Iterable[Entry]) -> list[Entry]:
    """Return the first of ``entries``, up to the maximum size of a page, but at least one if there is any."""
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
        DragomanError: INVALID_PAGE_TOKEN: the token is invalid, or belongs to another list.
    """
    key = decode_any(token)
    if len(key) != 2 or not isinstance(key[0], first) or not isinstance(key[1], second):
        raise _invalid("The page token belongs to a different list.")
    return key[0], key[1]


def encode_token(key: Key) -> str:
    """Return the token of the page after a key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def decode_any(token: str) -> Key:
    """Return the key of a token.

    Raises:
        DragomanError: INVALID_PAGE_TOKEN.
    """
    try:
        key = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list):
        raise invalid_token()
    return key


def invalid_token() -> DragomanError:
    """Return the error for a token that is of no list."""
    return _invalid("The page token is invalid; pass the next_page_token of the previous response.")


def _invalid(why: str) -> DragomanError:
    return DragomanError(Reason.INVALID_PAGE_TOKEN, why)
