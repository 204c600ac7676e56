"""Looking for many known texts in one, at a cost that hardly depends on how many they are. Pure."""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dragoman.protocol.redaction.forms import GRAM

LONG: Final = 13
"""Characters from which on a form is a long one: for such, only every eighth place of a text is looked at."""
_FEW: Final = 32  # short forms that are searched one by one
_WIDEST: Final = 32  # characters between two places
_MANY: Final = 1000  # long forms of which fewer grams are kept


class Index:
    """Finds forms by their grams.

    Each form is known by so many first grams that one of them begins at a place of the text that is looked at.

    Args:
        forms: sorted; all of them long, or all short.
    """

    __slots__ = ("_forms", "_grams", "_longest", "_stride")

    def __init__(self, forms: Sequence[str]) -> None:
        shortest = min(map(len, forms), default=0)
        widest = _WIDEST if len(forms) <= _MANY else LONG - GRAM + 1
        self._stride = 1 if shortest < LONG else min(widest, shortest - GRAM + 1)
        self._longest = max(map(len, forms), default=0)
        self._forms = forms if shortest < LONG and len(forms) <= _FEW else ()
        self._grams: dict[str, dict[int, list[str]]] = {}
        for form in forms if not self._forms else ():
            for offset in range(self._stride):
                self._grams.setdefault(form[offset : offset + GRAM], {}).setdefault(offset, []).append(form)

    def occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where forms are; of those that begin at one place the longest, of one that overlaps itself enough."""
        for form in self._forms:
            yield from _occurrences(form, text)
        grams = self._grams
        if not grams:
            return
        places = range(0, len(text) - GRAM + 1, self._stride)
        for at in [at for at in places if text[at : at + GRAM] in grams]:
            for offset, forms in grams[text[at : at + GRAM]].items():
                start = at - offset
                if start >= 0 and (length := _longest_beginning(text[start : start + self._longest], forms)):
                    yield start, start + length


def _occurrences(form: str, text: str) -> Iterator[tuple[int, int]]:
    start = text.find(form)
    while start >= 0:
        yield start, start + len(form)
        # Of the occurrences that overlap this one the last reaches farthest.
        last = text.rfind(form, start + 1, start + 2 * len(form) - 1)
        start = last if last >= 0 else text.find(form, start + len(form))


def _longest_beginning(text: str, forms: Sequence[str]) -> int:
    """Return the length of the longest of some sorted forms that a text begins with; 0 if it begins with none."""
    while text:
        at = bisect.bisect_right(forms, text)
        if not at:
            return 0
        nearest = forms[at - 1]
        if text.startswith(nearest):
            return len(nearest)
        text = text[: _same(text, nearest)]
    return 0


def _same(one: Iterable[str], other: Iterable[str]) -> int:
    """Return how many characters two texts have in common at their beginning."""
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count
