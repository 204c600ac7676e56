"""Registration at a router: leases and their end, and what a router refuses."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from dragoman.conformance.check import Skip, Violation, check, expect
from dragoman.conformance.kit import Kit, ask_router, expect_reason, refusal, seconds, within
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from msgspec import Struct

_DEFAULT_LEASE_S = 30.0
_LONG_LEASE_S = 600.0
_SHORT_LEASE_S = 1.0
_TOLERANCE_S = 5.0
"""By how much the end of a lease may be off: the router's clock is another one, and the call takes its time."""
_REMOVED_WITHIN_S = 8.0
_POLL_S = 0.1


class Announced(Struct, frozen=True):
    """An adapter of the kit that does nothing but describe itself.

    Attributes:
        address: where it listens.
        adapter: its type.
        instance_id: its process, as far as a router can see.
    """

    address: str
    adapter: str
    instance_id: str = "conformance-instance"


@asynccontextmanager
async def own_adapter(kit: Kit, adapter: str = "") -> AsyncIterator[Announced]:
    """Serve an adapter that can be registered; end its registration afterwards.

    Args:
        kit: the kit.
        adapter: its type; one of its own if empty.

    Raises:
        Skip: the target is no router.
    """
    if not kit.is_router:
        raise Skip("an adapter keeps no registrations")
    path = kit.path("registered")
    name = f"conformance_{path.name.rpartition('-')[2]}_{int(time.time())}"
    announced = Announced(f"unix:{path}", adapter or name)
    described = api.DescribeResponse(adapter=announced.adapter, revision=1, instance_id=announced.instance_id)
    described.capabilities.permission_mode = pb.PERMISSION_MODE_NONE

    async def describe(_request: api.DescribeRequest, _context: object) -> api.DescribeResponse:
        return described

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        describe, api.DescribeRequest.FromString, api.DescribeResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("dragoman.v1.AdapterService", {"Describe": method}),)
    )
    service = health.aio.HealthServicer()
    for served in ("", "dragoman.v1.AdapterService"):
        await service.set(served, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(service, server)
    server.add_insecure_port(announced.address)
    await server.start()
    try:
        yield announced
    finally:
        await _unregister(kit, announced)
        await server.stop(None)


async def register(
    kit: Kit, announced: Announced, lease_s: float | None = None, *, instance_id: str = ""
) -> router_pb2.RegisterAdapterResponse:
    """Register an adapter.

    Raises:
        Skip: the kit may not.
        DragomanError: the router refuses it.
    """
    lease = None if lease_s is None else seconds(lease_s)
    fields = {"address": announced.address, "instance_id": instance_id, "lease": lease}
    try:
        answer = await ask_router(kit, "RegisterAdapter", **fields)
    except DragomanError as error:
        if error.reason is Reason.NOT_PERMITTED:
            raise Skip("the kit's token does not permit registrations") from error
        raise
    assert isinstance(answer, router_pb2.RegisterAdapterResponse)
    return answer


async def _unregister(kit: Kit, announced: Announced, instance_id: str = "") -> bool:
    answer = await ask_router(kit, "UnregisterAdapter", address=announced.address, instance_id=instance_id)
    return bool(answer.unregistered)


async def _entry(kit: Kit, announced: Announced) -> router_pb2.AdapterEntry | None:
    """Return what the router lists of an adapter; None if it does not."""
    token = ""
    while True:
        page = await ask_router(kit, "ListAdapters", page_token=token)
        for entry in page.adapters:
            if entry.adapter == announced.adapter and entry.address == announced.address:
                assert isinstance(entry, router_pb2.AdapterEntry)
                return entry
        if not (token := page.next_page_token):
            return None


def _left_s(answer: router_pb2.RegisterAdapterResponse) -> float:
    return answer.expires_at.ToNanoseconds() / 1e9 - time.time()


@check("registration.listed")
async def listed(kit: Kit) -> None:
    """Register an adapter, and look for it."""
    async with own_adapter(kit) as announced:
        answer = await register(kit, announced, _LONG_LEASE_S, instance_id=announced.instance_id)
        expect(answer.adapter.adapter == announced.adapter, f"the answer lists {answer.adapter.adapter!r}")
        entry = await _entry(kit, announced)
        if entry is None:
            raise Violation("a registered adapter is not listed")
        source = router_pb2.AdapterSource.Name(entry.source)
        expect(entry.source == router_pb2.ADAPTER_SOURCE_REGISTRATION, f"it is listed with {source}")
        expect(entry.lease_expires_at == answer.expires_at, "it is listed with another end of its lease than granted")
        described = await kit.call("Describe", api.DescribeRequest(adapter=announced.adapter))
        expect(described.instance_id == announced.instance_id, "Describe is not answered by the registered adapter")


@check("registration.lease")
async def lease(kit: Kit) -> None:
    """Register without a lease, and renew with one."""
    async with own_adapter(kit) as announced:
        for lease_s in (None, _LONG_LEASE_S):
            left_s = _left_s(await register(kit, announced, lease_s))
            due_s = lease_s or _DEFAULT_LEASE_S
            asked = "the lease is absent" if lease_s is None else f"{lease_s:g} s are requested"
            is_near = abs(left_s - due_s) <= _TOLERANCE_S
            expect(is_near, f"the lease ends in {left_s:.0f} s where {asked}; {due_s:g} s are due")


@check("registration.lease-bounds")
async def lease_bounds(kit: Kit) -> None:
    """Request a lease that is too short, and one that is too long."""
    async with own_adapter(kit) as announced:
        for lease_s in (0.5, 3601.0):
            error = await refusal(register(kit, announced, lease_s))
            expect_reason(error, Reason.INVALID_REQUEST, field_path="lease")


@check("registration.expires")
async def expires(kit: Kit) -> None:
    """Let a lease expire."""
    async with own_adapter(kit) as announced:
        await register(kit, announced, _SHORT_LEASE_S)
        fault = f"an adapter is still listed after a lease of {_SHORT_LEASE_S:g} s"
        async with within(kit, _REMOVED_WITHIN_S, fault):
            while await _entry(kit, announced) is not None:  # noqa: ASYNC110 - a list is what is examined
                await asyncio.sleep(_POLL_S)


@check("registration.taken")
async def taken(kit: Kit) -> None:
    """Register an adapter of the type that the router has already."""
    async with own_adapter(kit, kit.described.adapter) as announced:
        expect_reason(await refusal(register(kit, announced)), Reason.ADAPTER_TAKEN)


@check("registration.unreachable")
async def unreachable(kit: Kit) -> None:
    """Register where nothing listens, and in the name of another process than the one that does."""
    async with own_adapter(kit) as announced:
        nowhere = Announced(f"unix:{kit.path('nowhere')}", announced.adapter)
        expect_reason(await refusal(register(kit, nowhere)), Reason.ADAPTER_UNREACHABLE)
        other = register(kit, announced, instance_id="conformance-another")
        expect_reason(await refusal(other), Reason.ADAPTER_UNREACHABLE)


@check("registration.unregister")
async def unregister(kit: Kit) -> None:
    """End a registration: in the name of another process, of its own, and again."""
    async with own_adapter(kit) as announced:
        await register(kit, announced, _LONG_LEASE_S)
        is_other = await _unregister(kit, announced, "conformance-another")
        expect(not is_other, "the registration is ended in the name of another process")
        expect(await _unregister(kit, announced), "UnregisterAdapter does not report that it ended a registration")
        expect(await _entry(kit, announced) is None, "an adapter that is no longer registered is listed")
        expect(
            not await _unregister(kit, announced), "a second UnregisterAdapter reports that it ended a registration"
        )


@check("registration.restart")
async def restart(kit: Kit) -> None:
    """Have a registered adapter restarted, whose process is not the router's."""
    async with own_adapter(kit) as announced:
        await register(kit, announced, _LONG_LEASE_S)
        call = ask_router(kit, "RestartAdapter", adapter=announced.adapter)
        expect_reason(await refusal(call), Reason.ADAPTER_NOT_LAUNCHED)
