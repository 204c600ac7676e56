"""Leaves a daemon behind (two forks, a session of its own) and exits with 4.

`wiped`: the daemon starts with an empty environment. `deaf`: it ignores TERM. `stay`: the first
process stays too.
"""

import os
import signal
import sys
from pathlib import Path

signal.alarm(60)  # should a failed test forget it
words = sys.argv[1:]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        lives = str(Path(__file__).with_name("lives.py"))
        argv = [sys.executable, "-I", "-S", lives, *words]
        os.execve(sys.executable, argv, {} if "wiped" in words else dict(os.environ))
    os._exit(0)
os.wait()
while "stay" in words:
    signal.pause()
sys.stdin.readline()  # the test has read the daemon's pid
sys.exit(4)
