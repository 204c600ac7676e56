"""Forks and exits in a circle, so that its pid is never the same for long.

`sessions`: each turn moves to a session of its own. The first process exits with 5.
"""

import os
import signal
import sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left after the first exit gets one
first = True
while True:
    if os.fork():
        os._exit(5 if first else 0)
    if "sessions" in sys.argv:
        os.setsid()
    if first:
        os.write(1, b"flying\n")
    first = False
