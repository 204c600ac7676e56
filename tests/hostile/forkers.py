"""Keeps the given number of children alive: each one that dies is replaced at once."""

import os
import signal
import sys

count = int(sys.argv[1])
os.write(1, f"{os.getpid()}\n".encode())
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.alarm(60)  # should a failed test forget it
alive = 0
while True:
    while alive < count:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.alarm(60)
                signal.pause()
            os.wait()
            os._exit(0)
        alive += 1
    os.wait()
    alive -= 1
