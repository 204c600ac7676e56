"""How a router is configured."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dragoman.protocol.limits import MAX_RETAINED_RUNS, MIB, REATTACH_S, RETAIN_FINISHED_S, ROUTER_ORPHAN_AFTER_S
from dragoman.protocol.logs import LogFormat

DEFAULT_LISTEN = "127.0.0.1:7777"
"""Where a router listens if nothing else is said."""
POSTGRES: Final = ("postgresql://", "postgres://")
"""How the URLs of a run log on a server begin."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Configuration of one router. Times are seconds.

    Attributes:
        listen: addresses: ``unix:/path`` (only this user can open it) or ``host:port`` on loopback, port 0 for any.
        state_dir: where logs of adapters and the cache of detections are kept, and sockets, if its path is short
            enough; ``None`` for the user's own directories.
        entry_points: whether installed adapters (entry points of group ``dragoman.adapters``) are offered.
        user_manifests: whether the manifests in ``$XDG_CONFIG_HOME/dragoman/adapters`` are read.
        manifests: more manifests: files, or folders of them; see ``dragoman.router._local.sources``.
        addresses: addresses of adapters that others start.
        idle_after_s: a launched adapter without run and call is let go after this.
        detect_ttl_s: how old a cached detection may be.
        detect_timeout_s: how long one adapter's Detect may take when all are asked.
        start_timeout_s: how long an adapter may take from launch to ready.
        stop_timeout_s: how long an adapter may take to drain when it is let go, before it is killed.
        adapter_orphan_after_s: how long a launched adapter lives on when this router is gone without a word.
        reattach_s: how long a run whose stream broke is tried to be followed, before it is LOST.
        run_log: where runs are kept: empty for a SQLite file in ``state_dir``, ``memory`` for as long as the router
            runs, or a ``postgresql://`` URL, which several routers may share (extra ``postgres``).
        advertise: the address at which other routers of the same log reach this one; ``None`` for the first it
            listens on.
        takes_over: whether it goes on with all runs of routers of this log that are gone. One that is there for a
            single command does so only with the run that it is asked for, and leaves it when it ends.
        log_lease_s: how long this router may say nothing before others take its runs.
        log_retain_s: how long finished runs are kept in the log.
        log_max_bytes: how many bytes of their events at most.
        log_retain_sessions_s: how long stored sessions are kept that no run uses; 0 for ever.
        retain_finished_s: how long finished runs are kept in memory too.
        max_retained_runs: how many of them at most.
        max_retained_bytes: how many bytes of their events at most.
        max_runs: how many runs an adapter may have at once, by its type or an alias; others may have any number.
        upstream_retries: how often an attempt that failed as the model's service was out of order is made again,
            before the agent did any work.
        breaker_crashes: so many crashes in a row of one adapter with one login keep runs from it for a while; 0 for
            never.
        drain_grace_s: how long live runs may go on after the first SIGTERM or SIGINT.
        log_format: ``json``, ``console``, or ``auto``: console at a terminal.
        log_level: the least level that is logged.
    """

    listen: tuple[str, ...] = (DEFAULT_LISTEN,)
    state_dir: Path | None = None
    entry_points: bool = True
    user_manifests: bool = True
    manifests: tuple[Path, ...] = ()
    addresses: tuple[str, ...] = ()
    idle_after_s: float = 300.0
    detect_ttl_s: float = 24 * 3600.0
    detect_timeout_s: float = 30.0
    start_timeout_s: float = 30.0
    stop_timeout_s: float = 20.0
    adapter_orphan_after_s: float = ROUTER_ORPHAN_AFTER_S
    reattach_s: float = REATTACH_S
    run_log: str = ""
    advertise: str | None = None
    takes_over: bool = True
    log_lease_s: float = 15.0
    log_retain_s: float = 7 * 24 * 3600.0
    log_max_bytes: int = 4096 * MIB
    log_retain_sessions_s: float = 90 * 24 * 3600.0
    retain_finished_s: float = RETAIN_FINISHED_S
    max_retained_runs: int = MAX_RETAINED_RUNS
    max_retained_bytes: int = 256 * MIB
    max_runs: Mapping[str, int] = field(default_factory=dict)
    upstream_retries: int = 2
    breaker_crashes: int = 5
    drain_grace_s: float = 30.0
    log_format: LogFormat = "auto"
    log_level: str = "info"

    def __post_init__(self) -> None:
        """Check what nothing else would.

        Raises:
            ValueError: ``run_log`` is neither of what it may be.
        """
        if problem := run_log_problem(self.run_log):
            raise ValueError(f"run_log {problem}")

    @property
    def manifest_paths(self) -> list[Path]:
        """Files and folders with manifests, those given here first."""
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        users = Path(base) / "dragoman" / "adapters"
        return [*self.manifests, *([users] if self.user_manifests and users.is_dir() else [])]


def run_log_problem(run_log: str) -> str:
    """Return what is wrong with a place for the run log; empty if nothing is. Tells no password."""
    if run_log in {"", "memory"} or run_log.startswith(POSTGRES):
        return ""
    # Its beginning only: what follows may be a password.
    scheme = run_log.partition("://")[0]
    return f"{scheme!r} is no postgresql:// URL, and not 'memory'; for a file choose the state directory"
