"""Pages of lists: opaque tokens that say after which key to go on."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

_DEFAULT = 100
_MOST = 1000

Item = TypeVar("Item")
Key = list[str | int]


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
    after = _decode(token) if token else None
    wanted = min(size or _DEFAULT, _MOST)
    try:
        rest = [item for item in items if after is None or key(item) > after]
    except TypeError as error:
        raise PageTokenError("the page token belongs to another list") from error
    shown = rest[:wanted]
    return shown, _encode(key(shown[-1])) if len(rest) > wanted else ""


def _encode(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _decode(token: str) -> Key:
    try:
        key = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, binascii.Error) as error:
        raise PageTokenError("the page token is not one of ours") from error
    if not isinstance(key, list):
        raise PageTokenError("the page token is not one of ours")
    return key
