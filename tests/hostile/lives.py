"""Lives until killed: ignores every signal that can be ignored, if told `deaf`."""

import os
import signal
import sys

if "deaf" in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
os.write(1, f"{os.getpid()}\n".encode())
while True:
    signal.pause()
