"""Which adapters there are, and which name belongs to which.

A name, be it a type or an alias, belongs to the first that claims it. Who comes later with a name that is taken
is refused as a whole, and stays listed with the reason; the first is not harmed. An adapter that is refused for
another reason keeps the names it had, so that who asks for it is told why.

Launched adapters claim the name they were configured with before they are ever started, and their aliases once
they have described themselves; configured addresses have no name before that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.protocol.identity import is_adapter_type, near_names
from dragoman.router._domain.logins import NO_TRAITS, Traits, read_traits
from dragoman.v1 import adapter_pb2, router_pb2

MIN_REVISION = 1
"""The oldest revision of the protocol that this router can use."""

_LONGEST_ALIAS = 128
_SOURCES = {
    router_pb2.ADAPTER_SOURCE_ENTRY_POINT: "entry point",
    router_pb2.ADAPTER_SOURCE_MANIFEST: "manifest",
    router_pb2.ADAPTER_SOURCE_ADDRESS: "address",
}


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """How an adapter is started."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables over those of the router."""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """One adapter, as it was configured."""

    name: str
    """The type; for an address the address."""
    source: router_pb2.AdapterSource.ValueType
    aliases: tuple[str, ...] = ()
    launch: LaunchSpec | None = None
    address: str = ""
    """Where it is; empty for one that is launched."""
    origin: str = ""
    """Where this was read, for people."""
    problem: str = ""
    """Why it cannot be used at all; empty if it can."""


@dataclass(eq=False, slots=True)
class AdapterRecord:
    """One adapter, as the router knows it now."""

    spec: AdapterSpec
    number: int
    """Its place in the configuration."""
    state: router_pb2.AdapterState.ValueType = router_pb2.ADAPTER_STATE_IDLE
    reason: str = ""
    description: adapter_pb2.DescribeResponse | None = None
    traits: Traits = NO_TRAITS
    """Of the schema in ``description``; none while that is not known."""
    names: frozenset[str] = frozenset()
    address: str = ""
    pid: int | None = None
    guard_pid: int | None = None
    live_runs: int = 0
    restarts: int = 0

    @property
    def type(self) -> str:
        """Its type, or what it was configured as while that is not known."""
        return self.description.adapter if self.description is not None else self.spec.name

    @property
    def label(self) -> str:
        """Its name for people."""
        return (self.description.label if self.description is not None else "") or self.type

    @property
    def is_refused(self) -> bool:
        """Whether it is refused; ``reason`` says why."""
        return self.state == router_pb2.ADAPTER_STATE_REFUSED

    def refuse(self, reason: str) -> None:
        """Refuse it."""
        self.state, self.reason = router_pb2.ADAPTER_STATE_REFUSED, reason

    def entry(self) -> router_pb2.AdapterEntry:
        """Return what ``ListAdapters`` tells of it."""
        return router_pb2.AdapterEntry(
            adapter=self.type,
            state=self.state,
            source=self.spec.source,
            address=self.address,
            reason=self.reason,
            description=self.description,
            pid=self.pid,
            guard_pid=self.guard_pid,
            live_runs=self.live_runs,
            restarts=self.restarts,
        )


class Directory:
    """All adapters and their names.

    Args:
        specs: the configured adapters; who comes first gets a name that two claim.
    """

    def __init__(self, specs: Iterable[AdapterSpec] = ()) -> None:
        self._records: list[AdapterRecord] = []
        self._owners: dict[str, AdapterRecord] = {}
        for spec in specs:
            self.add(spec)

    @property
    def records(self) -> Sequence[AdapterRecord]:
        """All adapters in the order of the configuration, the refused ones too."""
        return tuple(self._records)

    def add(self, spec: AdapterSpec) -> AdapterRecord:
        """Take up a configured adapter; look at its state to see whether it was refused."""
        record = AdapterRecord(spec, len(self._records), address=spec.address)
        self._records.append(record)
        if spec.problem:
            record.refuse(spec.problem)
        elif spec.launch is not None:
            refusal = self._claim(record, {spec.name, *spec.aliases})
            if refusal:
                record.refuse(refusal)
        return record

    def learn(self, record: AdapterRecord, description: adapter_pb2.DescribeResponse) -> str:
        """Take in what an adapter says of itself.

        Returns:
            Why it is refused, which is then its state too; empty if it is not.
        """
        refusal = _unusable(record.spec, description)
        refusal = refusal or self._claim(record, {description.adapter, *description.aliases, *record.spec.aliases})
        if refusal:
            record.refuse(refusal)
        else:
            record.description = description
            record.traits = read_traits(description.config_schema_json)
        return refusal

    def find(self, name: str) -> AdapterRecord | None:
        """Return the adapter with this type or alias; a refused one too, if the name is its own."""
        return self._owners.get(name)

    def near(self, name: str) -> list[str]:
        """Return the names that may have been meant, one for each adapter."""
        best: dict[AdapterRecord, str] = {}
        for near in near_names(name, sorted(self._owners)):
            best.setdefault(self._owners[near], near)
        return list(best.values())

    def types(self) -> list[str]:
        """Return the types of all adapters that are not refused."""
        return sorted(record.type for record in self._records if record.names and not record.is_refused)

    def entries(self) -> list[router_pb2.AdapterEntry]:
        """Return what there is to tell of all adapters, by type and then in the order of configuration."""
        return [record.entry() for record in sorted(self._records, key=lambda one: (one.type, one.number))]

    def _claim(self, record: AdapterRecord, names: set[str]) -> str:
        for name in sorted(names):
            owner = self._owners.get(name)
            if owner is not None and owner is not record:
                return f"the name {name!r} belongs to the adapter {owner.type!r} ({_where(owner.spec)})"
        for name in record.names - names:
            del self._owners[name]
        record.names = frozenset(names)
        self._owners.update(dict.fromkeys(names, record))
        return ""


def _unusable(spec: AdapterSpec, description: adapter_pb2.DescribeResponse) -> str:
    """Return why an adapter that describes itself so cannot be used; empty if it can."""
    name = description.adapter
    if not name:
        return "Describe left `adapter` empty, which names its type"
    if not is_adapter_type(name):
        return f"it calls itself {name[:80]!r}; a type is [a-z][a-z0-9_]*, at most 64 characters"
    if spec.launch is not None and name != spec.name:
        return f"it was configured as {spec.name!r} and calls itself {name!r}"
    if not description.revision:
        return f"Describe left `revision` empty, the revision of the protocol it speaks; now {MIN_REVISION}"
    if description.revision < MIN_REVISION:
        return (
            f"it speaks revision {description.revision} of the protocol and this router needs {MIN_REVISION}"
            " or later; update the adapter"
        )
    if not description.instance_id:
        return "Describe left `instance_id` empty, so that a restart could not be told from a lost connection"
    odd = [alias for alias in description.aliases if not alias or len(alias) > _LONGEST_ALIAS]
    return f"the alias {odd[0][:80]!r} is empty or longer than {_LONGEST_ALIAS} characters" if odd else ""


def _where(spec: AdapterSpec) -> str:
    kind = _SOURCES.get(spec.source, "other source")
    return f"{kind} {spec.origin}" if spec.origin else kind
