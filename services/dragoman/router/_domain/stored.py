"""What the run log keeps of runs and sessions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.v1 import router_pb2


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it is kept. Times are seconds since the epoch."""

    run_id: str
    accepted_at: float
    adapter: str
    state: router_pb2.GetRunResponse
    """What the router told of it last; without its readers."""
    reserved: int
    """No sequence above this was ever told to anybody."""
    owner: str
    """The router that follows it."""
    lease_until: float
    """After this, another router may take it."""
    place: str = "{}"
    """Where its adapter's process is, as JSON."""
    orphan_after: float = 0.0
    """Seconds that it goes on while nobody holds it."""
    digest: bytes | None = None
    """Of the request, keyed; ``None`` for a run that was found by Attach."""
    logged: int = 0
    """The last sequence whose event is kept, or known not to be."""
    size: int = 0
    """Bytes of its events."""
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class StoredEvents:
    """Some events in a row."""

    run_id: str
    first: int
    last: int
    data: bytes | None
    """As ``_store.batches`` packs them. ``None``: they were not kept."""


@dataclass(frozen=True, slots=True)
class RunQuery:
    """What runs are asked for; what is empty does not matter."""

    adapter: str = ""
    agent_id: str = ""
    task_key: str = ""
    outcome: int = 0
    live_only: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionId:
    """What a session is found by."""

    company_id: str
    agent_id: str
    adapter: str
    task_key: str
