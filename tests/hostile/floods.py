"""Writes the given number of bytes to stdout and to stderr at once, then exits with 0."""

import os
import sys
import threading

size = int(sys.argv[1])


def flood(fd: int) -> None:
    left = size
    while left:
        left -= os.write(fd, b"x" * min(left, 1 << 16))


threads = [threading.Thread(target=flood, args=(fd,)) for fd in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
