"""Forks and exits in a circle, so that its pid is never the same for long.

`sessions`: each turn moves to a session of its own. The first process exits with 5. It burns out
after 8 seconds, in case nobody catches it: longer than a guard tries.
"""

import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left after the first exit gets one
first = True
burns_out_at = time.monotonic() + 8
while time.monotonic() < burns_out_at:
    if os.fork():
        os._exit(5 if first else 0)
    if "sessions" in sys.argv:
        os.setsid()
    if first:
        os.write(1, b"flying\n")
    first = False
