"""Describing and detecting many adapters in one process: what they share is imported once."""

import asyncio
from collections.abc import Mapping

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.logs import configure_logs
from dragoman.protocol.server import Context, DragomanServer, service_handler
from dragoman.sdk._serving.loading import load_adapter
from dragoman.sdk._serving.service import AdapterServicer
from dragoman.v1 import adapter_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["AdapterService"]


class DetectionServicer:
    """Answers Describe and Detect for several adapters as each of them does, and nothing else.

    Args:
        references: where each adapter is, ``module:attribute``, by its type. It is loaded when it is asked first.
    """

    def __init__(self, references: Mapping[str, str]) -> None:
        self._references = references
        self._loaded: dict[str, AdapterServicer] = {}

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:  # noqa: N802
        """Return what the adapter is that the request names."""
        return await self._named(request.adapter).Describe(request, context)

    async def Detect(self, request: pb.DetectRequest, context: Context) -> pb.DetectResponse:  # noqa: N802
        """Look for the agent of the adapter that the request names."""
        return await self._named(request.adapter).Detect(request, context)

    def _named(self, name: str) -> AdapterServicer:
        if name not in self._references:
            raise DragomanError(Reason.ADAPTER_NOT_FOUND, f"Adapter {name[:200]!r} is not detected here.")
        if name not in self._loaded:
            self._loaded[name] = AdapterServicer(load_adapter(self._references[name]))
        return self._loaded[name]


def serve_detection(references: Mapping[str, str], listen: str) -> None:
    """Serve a ``DetectionServicer`` until the process is killed; it has no runs to end.

    Args:
        references: as for ``DetectionServicer``.
        listen: the address.

    Raises:
        AddressError: the address cannot be used.
    """

    async def main() -> None:
        server = DragomanServer({_SERVICE: service_handler(_SERVICE, DetectionServicer(references))}, [listen])
        await server.start()
        await server.set_serving()
        await server.wait()

    configure_logs("auto", level="info")
    asyncio.run(main())
