"""What a value must have to be taken for a secret wherever it is seen, at routers and adapters alike."""

import re
from typing import Final

SHORTEST_SECRET: Final = 6
"""Characters. A shorter value is not looked for in texts: it stands in too many words by chance."""

_WORD: Final = re.compile("[a-z]{1,12}|[A-Z]{1,12}|[A-Z][a-z]{1,11}")


def is_plain_word(value: str) -> bool:
    """Return whether a value is a word, such as ``success`` or ``Production``, and so is not looked for in texts.

    At most 12 letters a to z, all small, all capital, or the first one alone. A secret has a digit, another
    character, mixed case, or is longer.
    """
    return _WORD.fullmatch(value) is not None
