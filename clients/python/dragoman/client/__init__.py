"""Run agents through a Dragoman router, or through one adapter.

One run, from a prompt to its outcome::

    from dragoman.client import Client, execute_request

    async with Client("unix:/run/user/1000/dragoman.sock") as client:
        request = execute_request("claude_code", "Say hello.", cwd="/srv/project")
        async with client.execute(request) as run:
            async for event in run:
                if event.WhichOneof("body") == "text":
                    print(event.text.delta or event.text.whole, end="")
        print(run.run_id, run.result)

Events are ``dragoman.v1.event_pb2.AgentEvent``, with the same types for every agent. A stream reconnects by itself,
and no event comes twice. A failed *call* raises `DragomanError`; a failed *agent* is the run's result.
"""

from dragoman.client._client import Client
from dragoman.client._requests import execute_request, to_struct
from dragoman.client._stream import RunStream
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason

__all__ = ["Client", "DragomanError", "FieldViolation", "Reason", "RunStream", "execute_request", "to_struct"]
