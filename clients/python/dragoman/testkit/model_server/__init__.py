"""A scripted model server on loopback: real agent programs run against it, offline and for nothing.

In an event loop::

    async with ModelServer() as server:
        ...  # point the agent at server.url, prompt it with "MOCK_WRITE path=a.txt"
        assert server.model_requests[0].scenario == "WRITE"

From synchronous code use `serving`; from another language run ``python -m
dragoman.testkit.model_server``, which prints one JSON line with its ``url`` and serves until its
standard input closes. `SCENARIOS` are the built-in ones. ``GET /_testkit/requests`` lists what was
received so far, ``POST /_testkit/release?gate=stall`` ends a stall.
"""

from dragoman.testkit.model_server.scenarios import SCENARIOS
from dragoman.testkit.model_server.scheduler import RecordedRequest
from dragoman.testkit.model_server.server import APIS, ModelServer
from dragoman.testkit.model_server.thread import ServerInThread, serving

__all__ = ["APIS", "SCENARIOS", "ModelServer", "RecordedRequest", "ServerInThread", "serving"]
