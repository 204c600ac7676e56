"""Unified diffs of file changes that an agent reports as two texts. Pure."""

import re
from typing import Final

_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MOST_LINES: Final = 10_000
"""Lines of both sides together; comparing more takes too long."""
_NO_NEWLINE: Final = "\n\\ No newline at end of file\n"


def unified_diff(path: str, old: str, new: str, *, created: bool) -> str:
    """Return a unified diff; empty if nothing changed or it would take too long to find out what."""
    before, after = _LINES.findall(old), _LINES.findall(new)
    if len(before) + len(after) > _MOST_LINES:
        return ""
    import difflib  # noqa: PLC0415 - most agents send diffs themselves

    lines = difflib.unified_diff(before, after, "/dev/null" if created else path, path)
    return "".join(line if line.endswith("\n") else f"{line}{_NO_NEWLINE}" for line in lines)


def whole_file_diff(path: str, content: str, *, deleted: bool = False) -> str:
    """Return the diff of a file that is new, or gone; empty if nothing was in it."""
    if not content:
        return ""
    lines = _LINES.findall(content)
    sign, old, new = ("-", path, "/dev/null") if deleted else ("+", "/dev/null", path)
    hunk = f"@@ -1,{len(lines)} +0,0 @@" if deleted else f"@@ -0,0 +1,{len(lines)} @@"
    body = "".join(f"{sign}{line}" for line in lines)
    end = "" if content.endswith("\n") else _NO_NEWLINE
    return f"--- {old}\n+++ {new}\n{hunk}\n{body}{end}"
