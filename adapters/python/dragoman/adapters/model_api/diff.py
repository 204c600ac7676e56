"""What a change of a text looks like: one hunk around what differs. Linear in the size, whatever the texts. Pure."""

from typing import Final

_CONTEXT: Final = 3
_NO_NEWLINE: Final = "\\ No newline at end of file\n"


def unified(path: str, before: str | None, after: str) -> str:
    """Return a unified diff of one hunk; empty if nothing changed.

    Args:
        path: as it stands in the head.
        before: the old text. None: there was no file.
        after: the new text.
    """
    if before == after:
        return ""
    old, new = lines(before or ""), lines(after)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    first = max(0, start - _CONTEXT)
    tail = min(_CONTEXT, end)
    head = f"--- {path if before is not None else '/dev/null'}\n+++ {path}\n"
    removed, added = old[start : len(old) - end], new[start : len(new) - end]
    following = old[len(old) - end : len(old) - end + tail]
    counts = [len(old[first:start]) + len(part) + len(following) for part in (removed, added)]
    # Counted from 1; an empty side names the line before it.
    starts = [first + 1 if count else first for count in counts]
    place = f"@@ -{starts[0]},{counts[0]} +{starts[1]},{counts[1]} @@\n"
    marked = [*_marked(" ", old[first:start]), *_marked("-", removed), *_marked("+", added)]
    return head + place + "".join([*marked, *_marked(" ", following)])


def lines(text: str) -> list[str]:
    """Return the lines of a text, each with its newline: no other character ends a line of a file."""
    found = text.split("\n")
    last = found.pop()
    return [f"{line}\n" for line in found] + ([last] if last else [])


def _common(one: list[str], other: list[str]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _marked(mark: str, among: list[str]) -> list[str]:
    return [f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n{_NO_NEWLINE}" for line in among]
