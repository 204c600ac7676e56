"""A port in the clear that serves health, and nothing else: for the kubelet, which knows no TLS and no Unix socket.

It has its own server, so that no other service, interceptor or credential can come to it by accident.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeAlias

import grpc
from dragoman.protocol.addresses import Address, AddressError, port_address, why_not_bound
from dragoman.protocol.logs import Logger
from dragoman.protocol.server import Context
from grpc_health.v1 import health_pb2

LIVENESS: Final = "liveness"
"""The name of no service, which serves as long as the process answers: also while it starts or drains."""

_OPTIONS: Final = (
    # On by default, and then two servers share a port in silence.
    ("grpc.so_reuseport", 0),
    # A request holds the name of a service.
    ("grpc.max_receive_message_length", 4096),
    # A probe asks once and goes; who stays without asking must not hold a connection for ever.
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 8),
)

_Check: TypeAlias = Callable[[health_pb2.HealthCheckRequest, Context], Awaitable[health_pb2.HealthCheckResponse]]

_log = Logger("dragoman.health")


@contextlib.asynccontextmanager
async def health_served(text: str, check: _Check) -> AsyncIterator[str]:
    """Answer ``Check`` of ``grpc.health.v1.Health`` at an address while the block runs; yield ``host:port``.

    Not ``Watch``: its streams stay open, and anyone who reaches the port could hold many.

    Args:
        text: a port, which is one on loopback, or ``host:port``; port 0 for any.
        check: answers for all services but ``LIVENESS``.

    Raises:
        AddressError: nothing can listen there.
    """
    address = port_address(text)

    async def answer(request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        if request.service == LIVENESS:
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
        return await check(request, context)

    handler = grpc.unary_unary_rpc_method_handler(
        answer, health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
    )
    server = grpc.aio.server(options=_OPTIONS)
    service = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Check": handler}),))
    try:
        port = server.add_insecure_port(str(address))
    except RuntimeError as error:
        raise AddressError(f"health cannot be served at {address}: {why_not_bound(address)}") from error
    await server.start()
    try:
        where = str(Address(host=address.host, port=port))
        _log.info("health is served", address=where)
        yield where
    finally:
        await server.stop(None)
