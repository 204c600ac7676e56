"""The records of the run log."""

from collections.abc import Mapping, Sequence
from typing import Final

from dragoman.router.model.assignment import Assignment, Unassigned
from dragoman.router.model.spending import Account, Spent
from dragoman.v1 import router_pb2
from msgspec import Struct, field

AHEAD: Final = 10_000
"""How many sequences a router may publish ahead of the log: a killed one loses what it had not stored, and the next
one must not assign those sequences to other events."""


class StoredRun(Struct, frozen=True):
    """A run as it is stored. Times are seconds since the epoch."""

    run_id: str
    accepted_at: float
    adapter: str
    state: router_pb2.GetRunResponse
    """The last state that the router published, without the number of readers."""
    owner: str
    """The name of the router that owns the run."""
    lease_until: float
    """The end of the owner's lease; then another router may take the run over."""
    assignment: Assignment = field(default_factory=Unassigned)
    """Where the run is."""
    router: str = ""
    """The address at which other routers reach its owner; empty if there is none."""
    orphan_after: float = 0.0
    """Seconds that the run continues without a holder."""
    digest: bytes | None = None
    """A keyed digest of the request; ``None`` if no adapter ever had the run, so that its ID may be used again."""
    logged: int = 0
    """The last sequence whose event is stored, or known to be missing."""
    size: int = 0
    """Bytes of its stored events."""
    finished_at: float | None = None
    spent: Mapping[Account, Spent] = field(default_factory=dict)
    """What it has used of the operator's budgets. Only written."""


class StoredProgress(Struct, frozen=True, gc=False):
    """How far a run is stored, of which nothing else has changed."""

    run_id: str
    owner: str
    logged: int
    size: int
    may_lag: bool = False
    """Whether its row may say less, as the rows of its events show the rest."""


class StoredEvents(Struct, gc=False):
    """A row of consecutive events."""

    run_id: str
    first: int
    last: int
    events: Sequence[bytes] | None
    """``None``: they are missing."""


class RunQuery(Struct, frozen=True):
    """Filters of a list of runs; an empty field matches all runs."""

    adapter: str = ""
    agent_id: str = ""
    task_key: str = ""
    outcome: int = 0
    live_only: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    started_by: str = ""
    agent_name: str = ""

    def matches(self, run: router_pb2.RunSummary) -> bool:
        """Return whether a run matches all filters."""
        return (
            self.adapter in {"", run.adapter}
            and self.agent_id in {"", run.agent_id}
            and self.task_key in {"", run.task_key}
            and self.outcome in {0, run.result.outcome}
            and not (self.live_only and run.HasField("finished_at"))
            and all(run.labels.get(key) == value for key, value in self.labels.items())
            and self.started_by in {"", run.started_by}
            and self.agent_name in {"", run.agent_name}
        )


class TaskId(Struct, frozen=True):
    """A task, as the table of active agents knows it."""

    company_id: str
    task_key: str


class SessionId(Struct, frozen=True):
    """The key of a stored session."""

    company_id: str
    agent_id: str
    adapter: str
    task_key: str
