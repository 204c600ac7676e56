"""Closes stdout and stderr, lives on until its stdin ends, then exits with 7."""

import os

os.write(1, b"last words\n")
os.close(1)
os.close(2)
while os.read(0, 1):
    pass
os._exit(7)
