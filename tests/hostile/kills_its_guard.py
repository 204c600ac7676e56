"""Leaves a daemon without anything that says whose it is, kills its parent, and stays.

The daemon: two forks, a session of its own, an empty environment, no descriptors, another directory, another name.
The argument names the file that gets its pid.
"""

import os
import signal
import sys

signal.alarm(60)  # should a failed test forget it
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writer, f"{os.getpid()}\n".encode())
        os.chdir("/")
        os.closerange(0, 64)
        os.execve("/bin/sleep", ["worker", "60"], {})
    os._exit(0)
os.wait()
daemon = os.read(reader, 32)
with open(sys.argv[1], "wb") as file:
    file.write(daemon)
os.kill(os.getppid(), signal.SIGKILL)
while True:
    signal.pause()
