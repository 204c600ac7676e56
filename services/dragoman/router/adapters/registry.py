"""The registry of adapters and their names.

A name, whether a type or an alias, belongs to the first adapter that claims it. A later adapter with the same name
is rejected and listed with the reason; the first one is not affected. An adapter that is rejected for another reason
keeps its names, so that callers get that reason.

A launched adapter claims its configured name and declared aliases before it is started, and further aliases once its
description is known, from this or an earlier start. An adapter that runs already has no name before that.

An adapter that is removed gives its names back, and those that were rejected because of them may claim them.
"""

import itertools
import json
import time
from collections.abc import Iterable, Sequence

from dragoman.protocol.identity import is_adapter_type, near_names
from dragoman.router.adapters.specs import AdapterSpec, Source
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf.message import DecodeError
from msgspec import Struct, field

MIN_REVISION = 1
"""The oldest revision of the protocol that this router can use."""

_LONGEST_ALIAS = 128


class Refusal(Struct, frozen=True):
    """Why an adapter is rejected."""

    reason: str
    """The name of the ``Reason``; its module is not imported here, as that imports gRPC."""
    message: str


class Endpoint(Struct, frozen=True):
    """One process of an adapter that has several, as it was discovered."""

    key: str
    """Distinguishes it from others at the same address, before and after it."""
    address: str
    name: str
    """For people: the name of its pod."""
    takes_runs: bool = True
    """Whether new runs may go there; live ones stay in any case."""
    reason: str = ""
    """Why no new runs may; empty if they may."""


class AdapterRecord(Struct, eq=False):
    """The present state of one adapter."""

    spec: AdapterSpec
    number: int
    """Its position in the configuration."""
    identity: str = ""
    """The key of its cached description; empty if that is not cached."""
    state: router_pb2.AdapterState.ValueType = router_pb2.ADAPTER_STATE_IDLE
    reason: str = ""
    description: adapter_pb2.DescribeResponse | None = None
    names: frozenset[str] = frozenset()
    address: str = ""
    pid: int | None = None
    guard_pid: int | None = None
    live_runs: int = 0
    restarts: int = 0
    since: float = field(default_factory=time.time)
    """Since when it is in its state, for its reason, in seconds since the epoch."""
    lease_expires_at: float | None = None
    """When its registration expires, in seconds since the epoch; ``None`` if it has none."""

    @property
    def type(self) -> str:
        """Its type, or its configured name while the type is unknown."""
        return self.description.adapter if self.description is not None else self.spec.name

    @property
    def label(self) -> str:
        """Its name, for people."""
        return (self.description.label if self.description is not None else "") or self.type

    @property
    def is_rejected(self) -> bool:
        """Whether it is rejected; ``reason`` says why."""
        return self.state == router_pb2.ADAPTER_STATE_REFUSED

    @property
    def is_registered(self) -> bool:
        """Whether it has announced itself."""
        return self.spec.source is Source.REGISTRATION

    def declares(self, feature: event_pb2.Feature.ValueType) -> bool:
        """Return whether it is known to declare a feature."""
        items = self.description.capabilities.items if self.description is not None else ()
        return any(item.feature == feature for item in items)

    def enter(self, state: router_pb2.AdapterState.ValueType, reason: str = "") -> None:
        """Set its state, and why it is in it."""
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason, self.since = state, reason, time.time()

    def reject(self, reason: str) -> None:
        """Reject it."""
        self.enter(router_pb2.ADAPTER_STATE_REFUSED, reason)

    def entry(self) -> router_pb2.AdapterEntry:
        """Return its entry for ``ListAdapters``."""
        entry = router_pb2.AdapterEntry(
            adapter=self.type,
            state=self.state,
            source=router_pb2.AdapterSource.Value(f"ADAPTER_SOURCE_{self.spec.source.name}"),
            address=self.address,
            reason=self.reason,
            description=self.description,
            pid=self.pid,
            guard_pid=self.guard_pid,
            live_runs=self.live_runs,
            restarts=self.restarts,
            origin=self.spec.origin,
        )
        entry.since.FromNanoseconds(int(self.since * 1e9))
        if self.lease_expires_at is not None:
            entry.lease_expires_at.FromNanoseconds(int(self.lease_expires_at * 1e9))
        return entry


class AdapterRegistry:
    """All adapters and their names.

    Args:
        specs: the configured adapters; the first one gets a name that several claim.
    """

    def __init__(self, specs: Iterable[AdapterSpec] = ()) -> None:
        self._records: list[AdapterRecord] = []
        self._owners: dict[str, AdapterRecord] = {}
        self._numbers = itertools.count()
        for spec in specs:
            self.add(spec)

    @property
    def records(self) -> Sequence[AdapterRecord]:
        """All adapters in the order of the configuration, including rejected ones."""
        return tuple(self._records)

    def add(self, spec: AdapterSpec) -> AdapterRecord:
        """Add an adapter; its state says whether it was rejected."""
        identity = spec.identity if isinstance(spec.identity, str) else spec.identity()
        record = AdapterRecord(spec, next(self._numbers), address=spec.address, identity=identity)
        self._records.append(record)
        if spec.problem:
            record.reject(spec.problem)
        else:
            self._claim_configured(record)
        return record

    def remove(self, record: AdapterRecord) -> None:
        """Remove an adapter, and give its names to those that were rejected because of them."""
        self._records.remove(record)
        for name in record.names:
            del self._owners[name]
        self._offer_free_names()

    def _offer_free_names(self) -> None:
        """Have those claim their names again that were rejected because others had them."""
        for record in self._records:
            if record.is_rejected and not record.names and not record.spec.problem:
                self._claim_configured(record)

    def _claim_configured(self, record: AdapterRecord) -> None:
        """Have a launched adapter claim the names that are known before it is started."""
        if record.spec.launch is None:
            return
        refusal = self._claim(record, {record.spec.name, *record.spec.aliases})
        if refusal:
            record.reject(refusal)
        else:
            record.enter(router_pb2.ADAPTER_STATE_IDLE)

    def describe(self, record: AdapterRecord, description: adapter_pb2.DescribeResponse) -> str:
        """Store an adapter's description, or reject the adapter because of it.

        Returns:
            Why the adapter is rejected; empty if it is not.
        """
        mismatch = _rejection(record.spec, description)
        refusal = mismatch.message if mismatch is not None else self._claim(record, _names(record.spec, description))
        if refusal:
            record.reject(refusal)
        else:
            record.description = description
            self._offer_free_names()
        return refusal

    def refusal(self, spec: AdapterSpec, description: adapter_pb2.DescribeResponse) -> Refusal | None:
        """Return why an adapter that is not in the registry would be rejected; ``None`` if it would not."""
        mismatch = _rejection(spec, description)
        if mismatch is not None:
            return mismatch
        taken = self._taken(None, _names(spec, description))
        return Refusal("ADAPTER_TAKEN", taken) if taken else None

    def restore(self, record: AdapterRecord, data: bytes) -> None:
        """Store the cached description of an adapter that has not been started yet, if it is usable."""
        try:
            description = adapter_pb2.DescribeResponse.FromString(data)
        except DecodeError:
            return
        is_wrong = record.is_rejected or _mismatch(record.spec, description) is not None
        if is_wrong or self._claim(record, _names(record.spec, description)):
            return
        record.description = without_process(description)

    def find(self, name: str) -> AdapterRecord | None:
        """Return the adapter with this type or alias, even if it is rejected."""
        return self._owners.get(name)

    def similar_names(self, name: str) -> list[str]:
        """Return similar names, one for each adapter."""
        best: dict[AdapterRecord, str] = {}
        for near in near_names(name, sorted(self._owners)):
            best.setdefault(self._owners[near], near)
        return list(best.values())

    def types(self) -> list[str]:
        """Return the types of all adapters that are not rejected."""
        return sorted(record.type for record in self._records if record.names and not record.is_rejected)

    def by_type(self) -> list[AdapterRecord]:
        """Return all adapters, by type and then in the order in which they were found."""
        return sorted(self._records, key=lambda one: (one.type, one.number))

    def _taken(self, record: AdapterRecord | None, names: set[str]) -> str:
        """Return which of these names another adapter has; empty if none."""
        for name in sorted(names):
            owner = self._owners.get(name)
            if owner is not None and owner is not record:
                return f"the name {name!r} is already used by adapter {owner.type!r} ({_where(owner.spec)})"
        return ""

    def _claim(self, record: AdapterRecord, names: set[str]) -> str:
        if taken := self._taken(record, names):
            return taken
        for name in record.names - names:
            del self._owners[name]
        record.names = frozenset(names)
        self._owners.update(dict.fromkeys(names, record))
        return ""


def without_process(description: adapter_pb2.DescribeResponse) -> adapter_pb2.DescribeResponse:
    """Return the part of a description that does not depend on a process."""
    lasting = adapter_pb2.DescribeResponse()
    lasting.CopyFrom(description)
    lasting.ClearField("instance_id")
    lasting.ClearField("pid")
    return lasting


def _names(spec: AdapterSpec, description: adapter_pb2.DescribeResponse) -> set[str]:
    return {description.adapter, *description.aliases, *spec.aliases}


def _rejection(spec: AdapterSpec, description: adapter_pb2.DescribeResponse) -> Refusal | None:
    """Return why an adapter with this description is rejected; ``None`` if it is not."""
    if not description.instance_id and description.adapter and description.revision:
        return _refused("its DescribeResponse has no `instance_id`; set it to an ID that is new for each process")
    return _mismatch(spec, description)


def _mismatch(spec: AdapterSpec, description: adapter_pb2.DescribeResponse) -> Refusal | None:
    """Return why a description is invalid or does not match its specification; ``None`` if it does."""
    name = description.adapter
    if not name:
        return _refused("its DescribeResponse has no `adapter`; set it to the adapter's type")
    if not is_adapter_type(name):
        return _refused(f"its type {name[:80]!r} is invalid; a type matches [a-z][a-z0-9_]*, at most 64 characters")
    if spec.launch is not None and name != spec.name:
        return _refused(f"it is configured as {spec.name!r}, but its DescribeResponse says {name!r}")
    if not description.revision:
        return _refused(
            f"its DescribeResponse has no `revision`; set it to the protocol revision, now {MIN_REVISION}"
        )
    if description.revision < MIN_REVISION:
        return Refusal(
            "REVISION_TOO_OLD",
            f"it implements protocol revision {description.revision}, but this router requires {MIN_REVISION}"
            " or later; update the adapter",
        )
    odd = [alias for alias in description.aliases if not alias or len(alias) > _LONGEST_ALIAS]
    if odd:
        return _refused(f"its alias {odd[0][:80]!r} is empty or longer than {_LONGEST_ALIAS} characters")
    problem = _schema_problem(description.config_schema_json)
    return _refused(problem) if problem else None


def _refused(message: str) -> Refusal:
    return Refusal("ADAPTER_REFUSED", message)


def _schema_problem(text: str) -> str:
    """Return why a text is not a schema of ``config``; empty if it is, or there is none."""
    if not text:
        return ""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return "its `config_schema_json` is not JSON; set it to the JSON Schema of `config`, or leave it empty"
    return "" if isinstance(schema, dict) else "its `config_schema_json` is not a JSON object"


def _where(spec: AdapterSpec) -> str:
    where = spec.address or spec.origin
    return f"{spec.source.value} {where}" if where else spec.source.value
