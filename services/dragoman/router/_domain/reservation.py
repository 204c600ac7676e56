"""Which sequences a router may tell of before it has written down that it will.

A router that is killed loses what it had not yet written. Who comes after it must not give a sequence of those to
another event; so no sequence is told to anybody above a mark that was written before, and what comes after a loss
begins above the mark.
"""

STEP = 10_000
"""Sequences reserved at a time."""


def next_reserved(reserved: int, last: int) -> int:
    """Return the mark to write: ahead of ``last``, and moved on before it is reached.

    Args:
        reserved: the mark as it is.
        last: the last sequence there is.
    """
    return reserved if last + STEP // 2 <= reserved else last + STEP
