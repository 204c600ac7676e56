"""Serves what the environment says, where ``DRAGOMAN_LISTEN`` says; a router starts installed adapters so.

``DRAGOMAN_ADAPTER`` is an adapter, as ``module:attribute``. ``DRAGOMAN_DETECT_ADAPTERS`` is a list of adapters of
which only Describe and Detect are served, as ``type=module:attribute``, separated by spaces.

``dragoman adapter serve`` is for people: it costs the import of a command line and a search of all packages.
"""

import os

from dragoman.protocol.importing import importing

with importing():
    from dragoman.sdk import serve
    from dragoman.sdk._serving.detecting import serve_detection
    from dragoman.sdk._serving.loading import load_adapter
    from dragoman.sdk._serving.server import LISTEN_VARIABLE


def main() -> None:
    """Serve until a signal ends the process."""
    detected = os.environ.get("DRAGOMAN_DETECT_ADAPTERS")
    if detected is None:
        with importing():
            adapter = load_adapter(os.environ["DRAGOMAN_ADAPTER"])
        serve(adapter)
    else:
        serve_detection(dict(entry.split("=") for entry in detected.split()), os.environ[LISTEN_VARIABLE])
    # At once: gRPC's clean-up at exit sometimes blocks forever.
    os._exit(0)


if __name__ == "__main__":
    main()
