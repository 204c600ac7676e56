"""What all adapters of a running router share."""

from dragoman.protocol.limits import DEFAULT_GRACE_S, REATTACH_S
from dragoman.router.adapters.descriptions import DescriptionFolder
from dragoman.router.adapters.launcher import GuardLauncher
from dragoman.router.adapters.registry import AdapterRegistry
from dragoman.router.model.ports import Clock, Processes
from dragoman.router.model.tasks import Changes, Tasks
from msgspec import Struct, field


class Timing(Struct, frozen=True):
    """How long things may take, in seconds."""

    start_s: float = 30.0
    """From launch to ready."""
    idle_s: float = 300.0
    """How long a launched adapter is kept without a run and without a call."""
    stop_s: float = DEFAULT_GRACE_S + 5.0
    """How long a launched adapter may take to drain when it is let go."""
    patience_s: float = 2.0
    """How long a call waits for an adapter that is about to come back."""
    learn_s: float = 10.0
    """How long a call with an unknown name may wait for configured addresses that were not reached yet."""
    reattach_s: float = REATTACH_S
    """How long a run whose stream broke is tried to be followed, before it is LOST."""
    detect_s: float = 30.0
    """How long one adapter's Detect may take when several are asked."""
    detect_ttl_s: float = 24 * 3600.0
    """The maximum age of a cached detection."""


class AdapterContext(Struct, frozen=True):
    """What the backends of all adapters share."""

    registry: AdapterRegistry
    launcher: GuardLauncher
    descriptions: DescriptionFolder
    clock: Clock
    processes: Processes
    timing: Timing
    tasks: Tasks = field(default_factory=Tasks)
    changes: Changes = field(default_factory=Changes)
