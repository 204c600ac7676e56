"""Serves what the environment says, where ``DRAGOMAN_LISTEN`` says; a router starts installed adapters so.

``DRAGOMAN_ADAPTER`` is an adapter, as ``module:attribute``. ``DRAGOMAN_DETECT_ADAPTERS`` is a list of adapters of
which only Describe and Detect are served, as ``type=module:attribute``, separated by spaces.

``dragoman adapter serve`` is for people: it costs the import of a command line and a search of all packages.
"""

import gc

gc.disable()  # until all is imported: Python would look through it again and again, for a tenth of the time

import os  # noqa: E402 - after that

from dragoman.protocol.deferred import defer_unused_imports  # noqa: E402

defer_unused_imports()

from dragoman.sdk import serve  # noqa: E402
from dragoman.sdk._serving.detecting import serve_detection  # noqa: E402
from dragoman.sdk._serving.loading import load_adapter  # noqa: E402
from dragoman.sdk._serving.server import LISTEN_VARIABLE  # noqa: E402


def main() -> None:
    """Serve until a signal ends the process."""
    detected = os.environ.get("DRAGOMAN_DETECT_ADAPTERS")
    adapter = load_adapter(os.environ["DRAGOMAN_ADAPTER"]) if detected is None else None
    gc.freeze()  # what is loaded stays
    gc.enable()
    if adapter is not None:
        serve(adapter)
    else:
        serve_detection(dict(entry.split("=") for entry in (detected or "").split()), os.environ[LISTEN_VARIABLE])
    # At once: gRPC's clean-up at exit sometimes blocks forever.
    os._exit(0)


if __name__ == "__main__":
    main()
