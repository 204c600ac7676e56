"""Entry point, as ``python -m dragoman.guard`` and as a path given to ``python -I -S``.

The second way is the fast one (no site, no environment) and leaves ``sys.path`` without our root.
"""

import os
import sys

if not __package__:
    # Appended: beside us may lie third-party modules, which must not shadow the standard library.
    sys.path.append(__file__.rsplit(os.sep, 3)[0])

from dragoman.guard.guard import main

if __name__ == "__main__":
    # Everything was written by os.write, so there is nothing to flush, and an orderly shutdown of
    # the interpreter would delay the owner by some milliseconds.
    os._exit(main(sys.argv[1:]))
