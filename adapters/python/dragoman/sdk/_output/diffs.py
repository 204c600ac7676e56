"""Unified diffs of file changes that an agent reports as two texts. Pure."""

import re
from typing import Final

_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MOST_LINES: Final = 10_000
"""Lines of both sides together; comparing more takes too long."""


def unified_diff(path: str, old: str, new: str, *, created: bool) -> str:
    """Return a unified diff; empty if nothing changed or it would take too long to find out what."""
    before, after = _LINES.findall(old), _LINES.findall(new)
    if len(before) + len(after) > _MOST_LINES:
        return ""
    import difflib  # noqa: PLC0415 - most agents send diffs themselves

    lines = difflib.unified_diff(before, after, "/dev/null" if created else path, path)
    ends = "\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else f"{line}\n{ends}" for line in lines)
