"""An adapter that several processes serve, at addresses that come and go.

Each new run goes to the process with the fewest calls and runs, and stays there. A process that is not to take new
runs, or is no longer in the list, keeps its connection until its last run is over.
"""

import asyncio
from collections.abc import Iterable, Iterator

from dragoman.protocol.errors import DragomanError
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.registry import AdapterRecord, Endpoint
from dragoman.router.adapters.remote import RemoteAdapter, RunningAdapter
from dragoman.router.adapters.specs import AdapterSpec
from dragoman.router.model.tasks import Conditions
from dragoman.v1 import adapter_pb2, router_pb2


class ServiceAdapter(RunningAdapter):
    """An adapter with several endpoints. ``update`` says which."""

    def __init__(self, record: AdapterRecord, context: AdapterContext) -> None:
        super().__init__(record, context)
        self._members: dict[str, _Member] = {}
        self._leaving: set[_Member] = set()
        """Those that are no longer in the list, and serve their last runs."""
        self._conditions = Conditions()

    def begin(self) -> None:
        """Wait for endpoints."""
        self.set_state(router_pb2.ADAPTER_STATE_STARTING)

    def update(self, endpoints: Iterable[Endpoint]) -> None:
        """Connect to new endpoints, and let go of those that are not in the list; their runs stay with them."""
        listed = {endpoint.key: endpoint for endpoint in endpoints}
        for key in self._members.keys() - listed.keys():
            self._let_go(self._members.pop(key))
        for key, endpoint in listed.items():
            known = self._members.get(key)
            if known is not None and known.endpoint.address != endpoint.address:
                self._let_go(self._members.pop(key))
                known = None
            if known is not None:
                known.update(endpoint)
            else:
                member = self._members[key] = _Member(endpoint, self, self._context)
                member.begin()
        self.refresh()

    def reconsider(self) -> None:
        """Try rejected endpoints again now."""
        for member in self._members.values():
            member.reconsider()

    @property
    def remarks(self) -> list[str]:
        """Which endpoints take no runs, and why."""
        return [
            f"{member.endpoint.name} ({member.endpoint.address}) takes no new runs: {member.reason}"
            for member in self._members.values()
            if not member.takes_runs
        ]

    @property
    def is_stranger(self) -> bool:
        """Whether no endpoint was reached that said which adapter it is, and one may be."""
        return self.record.description is None and any(
            not member.record.is_rejected for member in self._members.values()
        )

    def refresh(self) -> None:
        """Take the state of the adapter from those of its endpoints."""
        members = self._members.values()
        taking = sum(member.takes_runs for member in members)
        self.process_count = max(1, taking)
        if taking:
            self.set_state(router_pb2.ADAPTER_STATE_READY)
        elif any(member.record.state == router_pb2.ADAPTER_STATE_STARTING for member in members):
            self.set_state(router_pb2.ADAPTER_STATE_STARTING)
        elif members:
            why = f"has no endpoint that takes runs, of {len(members)}"
            self.set_state(router_pb2.ADAPTER_STATE_UNAVAILABLE, why)
        else:
            self.set_state(router_pb2.ADAPTER_STATE_UNAVAILABLE, "has no endpoints")
        if self.record.state != router_pb2.ADAPTER_STATE_STARTING:
            self.tried.set()
        self._conditions.check()

    def describe(self, member: RemoteAdapter, description: adapter_pb2.DescribeResponse) -> str:
        """Store what one endpoint says of the adapter; return why the endpoint is rejected, empty if it is not."""
        known = self.record.description
        if known is not None and known.adapter != description.adapter:
            others = [one for one in self._members.values() if one is not member and one.serves("")]
            if others:
                name, is_it = others[0].endpoint.name, description.adapter[:64]
                return (
                    f"It is adapter {is_it!r}, but {name} of the same Service is {known.adapter!r}; "
                    "use one Service per adapter."
                )
        return self._context.registry.describe(self.record, description)

    async def _end_unused(self) -> None:
        members = [*self._members.values(), *self._leaving]
        await asyncio.gather(*(member.retire() for member in members))

    async def stop(self, grace_s: float) -> None:
        """Close all connections; the processes live on."""
        await asyncio.gather(*(member.stop(grace_s) for member in (*self._members.values(), *self._leaving)))

    async def _acquire(self, instance_id: str) -> AdapterInstance:
        await self._conditions.until(
            lambda: self.record.is_rejected or self._choose(instance_id) is not None, self._context.timing.patience_s
        )
        if self.record.is_rejected:
            raise self.refusal()
        instance = self._choose(instance_id)
        if instance is None:
            why = "has no endpoint with this process" if instance_id else self.record.reason
            raise self.unavailable(why or "has no endpoint that takes runs")
        return instance

    def _choose(self, instance_id: str) -> AdapterInstance | None:
        if instance_id:
            return next(self._instances(instance_id, [*self._members.values(), *self._leaving]), None)
        free = self._instances("", [member for member in self._members.values() if member.takes_runs])
        now = asyncio.get_running_loop().time()
        return min(free, key=lambda one: (one.users, -one.idle_s(now)), default=None)

    def _instances(self, instance_id: str, members: Iterable[RemoteAdapter]) -> Iterator[AdapterInstance]:
        for member in members:
            if member.instance is not None and member.serves(instance_id):
                yield member.instance

    def _let_go(self, member: "_Member") -> None:
        self._leaving.add(member)
        retiring = self._context.tasks.start(member.retire(), f"let go of {member.endpoint.address}")
        retiring.add_done_callback(lambda _: self._leaving.discard(member))


class _Member(RemoteAdapter):
    """One endpoint."""

    def __init__(self, endpoint: Endpoint, service: ServiceAdapter, context: AdapterContext) -> None:
        of = service.record.spec
        spec = AdapterSpec(
            endpoint.name, of.source, address=endpoint.address, origin=of.origin, server_name=of.server_name
        )
        super().__init__(AdapterRecord(spec, 0, address=endpoint.address), context)
        self.endpoint = endpoint
        self._service = service

    def update(self, endpoint: Endpoint) -> None:
        """Take what the list says of it now; one that has become ready, and was not reached, is tried again now."""
        if endpoint.takes_runs and not self.endpoint.takes_runs:
            self.reconsider()
        self.endpoint = endpoint

    @property
    def takes_runs(self) -> bool:
        """Whether new runs may go there now."""
        return self.endpoint.takes_runs and not self.record.is_rejected and self.serves("")

    @property
    def reason(self) -> str:
        """Why they may not."""
        return self.endpoint.reason or self.record.reason or "is being reached"

    def set_state(self, state: router_pb2.AdapterState.ValueType, reason: str = "") -> None:
        """Set its state, and that of the adapter."""
        super().set_state(state, reason)
        self._service.refresh()

    def reject(self, why: str) -> DragomanError:
        """Note that it is rejected."""
        error = super().reject(why)
        self._service.refresh()
        return error

    def _describe(self, description: adapter_pb2.DescribeResponse) -> str:
        return self._service.describe(self, description)
