"""``python -m dragoman.testkit.model_server``."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence

from dragoman.testkit.model_server import serving


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until standard input closes or Ctrl-C; print ``{"url": …, "pid": …}`` first."""
    parser = argparse.ArgumentParser(prog="python -m dragoman.testkit.model_server")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="TCP port (default: a free one)")
    options = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt), serving(host=options.host, port=options.port) as server:
        print(json.dumps({"url": server.url, "pid": os.getpid()}), flush=True)
        sys.stdin.buffer.read()  # returns when the parent process has exited


if __name__ == "__main__":
    main()
