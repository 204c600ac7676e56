"""The reservation of sequences: how far a router may publish events ahead of the run log.

A killed router loses the events that it had published but not yet stored. Its successor must not assign their
sequences to other events. So a router publishes no sequence above a mark that it has stored before, and a successor
continues above that mark.
"""

STEP = 10_000
"""Sequences reserved at a time."""


def next_reserved(reserved: int, last: int) -> int:
    """Return the mark to store: ahead of ``last``, and advanced before it is reached.

    Args:
        reserved: the present mark.
        last: the last sequence.
    """
    return reserved if last + STEP // 2 <= reserved else last + STEP
