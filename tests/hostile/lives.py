"""Lives until killed, or a minute: with the argument `deaf` ignores every signal that can be ignored."""

import os
import signal
import sys

if "deaf" in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
signal.alarm(60)  # should a failed test forget it
os.write(1, f"{os.getpid()}\n".encode())
while True:
    signal.pause()
