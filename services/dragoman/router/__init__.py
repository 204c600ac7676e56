"""The router: one address before many adapters.

``app``      configuration, wiring, signals; what programs import
``_domain``  what is decided: names, back-off, a run's record, what a cache may answer; no grpc, no asyncio
``_ports``   what the router needs of the machine: a launcher, a clock, a store
``_local``   these on this machine: adapters under guards, entry points and manifests, files
``_rpc``     the services, the connections to adapters, and the pump between them

The router knows no agent by name and imports no adapter: it finds commands and addresses, and talks to what
answers there.
"""

import os

# It starts processes. With its fork handlers grpc has crashed such children; they are read at its import.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
