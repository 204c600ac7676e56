"""What all programs that speak ``dragoman.v1`` share.

``order``     what may follow what in a run's stream, as a table and as a checker
``wire``      reading an event's sequence and kind without parsing it; batches
``fanout``    one run's events in memory, read by many, bounded in bytes
``holding``   which streams keep a run alive, and for how long after the last
``duties``    who honours each field of a request, and who has each other duty of a run
``errors``    statuses with reasons, in both directions
``failures``  default retryability of failure kinds
``backoff``   delays between retries
``identity``  ids, near names, and when two requests are the same
``limits``    sizes, times, and the channel options that follow from them
"""

__all__ = ["REVISION"]

REVISION = 1
"""The revision of the protocol that this distribution speaks (DescribeResponse.revision)."""
