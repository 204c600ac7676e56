"""Respawns itself without end: forks and exits, so that its pid never lasts.

`sessions`: each turn moves to a session of its own. The first process exits with 5. It stops
after 8 seconds, in case no guard kills it: longer than a guard tries.
"""

import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left after the first exit gets one
first = True
stops_at = time.monotonic() + 8
while time.monotonic() < stops_at:
    if os.fork():
        os._exit(5 if first else 0)
    if "sessions" in sys.argv:
        os.setsid()
    if first:
        os.write(1, b"flying\n")
    first = False
