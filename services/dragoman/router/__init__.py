"""The router: one address for many adapters.

``app``       the public entry point: wiring and signals; ``config`` has the settings
``api``       the gRPC services: requests are checked and routed, runs are streamed
``cluster``   several routers with one run log: failover, forwarded calls
``runs``      one run, from its acceptance to its result
``policy``    decisions without I/O: fallback, circuit breaker, concurrency limits, sessions
``adapters``  discovery, processes under guards, configured addresses, and the channels to them
``storage``   the run log, on SQLite or PostgreSQL
``model``     records, errors and helpers that all packages share

A package imports only from those below it: ``policy``, ``adapters`` and ``storage`` not from one another.
``tests/test_architecture.py`` checks that.

The router knows no agent by name and imports no adapter: it discovers commands and addresses. Programs import
``dragoman.router.app``; this package exports nothing, so that a part of it can be imported without the whole router.
"""

import os

__all__: list[str] = []

# The router starts processes, and grpc's fork handlers have crashed such children. grpc reads this at import.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
