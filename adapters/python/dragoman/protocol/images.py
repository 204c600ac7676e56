"""The images that models take: their media types, and how such a file begins. Pure."""

import re
from typing import Final

HEAD_BYTES: Final = 16
"""How much of a file shows what image it is."""
_BEGINNINGS: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}


def is_image(media_type: str) -> bool:
    """Return whether a file of this type goes to a model as an image."""
    return media_type.lower() in _BEGINNINGS


def image_type(head: bytes) -> str:
    """Return which image a file is by its first bytes; empty if it is none that models take."""
    return next((name for name, beginning in _BEGINNINGS.items() if beginning.match(head)), "")
