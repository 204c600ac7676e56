"""The configuration of a router."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dragoman.protocol.addresses import check_local
from dragoman.protocol.limits import MAX_RETAINED_RUNS, MIB, REATTACH_S, RETAIN_FINISHED_S, ROUTER_ORPHAN_AFTER_S
from dragoman.protocol.logs import LogFormat
from msgspec import Struct, field

POSTGRES: Final = ("postgresql://", "postgres://")
"""The URL schemes of a run log on PostgreSQL."""


class RouterConfig(Struct, frozen=True):
    """Configuration of one router. Times are seconds.

    Attributes:
        listen: addresses to listen on: ``unix:/path`` (only this user can connect), or ``host:port`` on loopback
            or, with TLS, anywhere (callers need the token; port 0 for any). Empty for the user's default address.
        at_default_too: whether to listen at the user's default address too, if no other router does, so that clients
            find one that listens on TCP.
        insecure_tcp_without_token: whether to accept calls over TCP without the token; for tests only.
        state_dir: directory for adapter logs and the detection cache, and for sockets if its path is short enough;
            ``None`` for the user's default directories.
        entry_points: whether to offer installed adapters (entry points of group ``dragoman.adapters``).
        user_manifests: whether to read the manifests in ``$XDG_CONFIG_HOME/dragoman/adapters``.
        manifests: more manifests: files, or folders of files; see ``dragoman.router.adapters.discovery``. What is
            added, changed or removed there takes effect within seconds.
        addresses: addresses of adapters that run already.
        socket_dirs: directories in which each Unix socket is an adapter that runs already, as sidecars in one pod
            share a volume. They are looked at every second.
        kubernetes: the label selector of the Services whose pods are adapters; empty for none. They are found by a
            watch of the EndpointSlices of one namespace.
        kubernetes_namespace: that namespace; empty for the pod's own.
        kubernetes_account: the directory with the token, the authorities and the namespace of the pod's service
            account.
        kubernetes_url: the API server; empty for the one that Kubernetes names in the pod's environment.
        idle_after_s: idle time after which the router stops an adapter that it launched.
        detects_at_start: whether ``run_router`` detects all agents in the background once it listens, and reports
            them. Cached detections are not repeated.
        detect_ttl_s: maximum age of a cached detection.
        detect_timeout_s: timeout of one adapter's Detect if all adapters are asked.
        start_timeout_s: timeout of an adapter from launch to ready.
        stop_timeout_s: how long an idle adapter may drain before it is killed.
        adapter_orphan_after_s: how long a launched adapter outlives a router that crashed, unless it is embedded.
        reattach_s: how long the router tries to reconnect a broken stream before the run is LOST.
        run_log: where runs are stored: empty for a SQLite file in ``state_dir``, ``memory`` for as long as the router
            runs, or a ``postgresql://`` URL, which several routers may share (extra ``postgres``).
        advertise: the address, on this machine unless there is TLS, at which other routers of the same run log reach
            this one; ``None`` for the first it listens on.
        peer_name: the name that the certificates of those routers are for; empty for the host of their addresses.
        embedded: whether the router is part of one command: if it is killed, its adapters and its runs end, too, and
            it recovers no run of another router.
        log_lease_s: the lease on live runs: after so long without renewal other routers may take them over.
        log_retain_s: retention of finished runs in the run log.
        log_max_bytes: maximum bytes of their events in the run log.
        log_retain_sessions_s: retention of stored sessions that no run uses; 0 for ever.
        retain_finished_s: retention of finished runs in memory.
        max_retained_runs: maximum number of finished runs in memory.
        max_runs: concurrency limit of an adapter, by its type or an alias; other adapters have none.
        policy: the file with the operator's policy, which requests can only narrow; ``None`` for no restriction.
        secrets: the directory with a file for each secret that stored agents refer to; ``None`` if there are none.
        webhooks: the file with the webhooks, which get events of the runs; ``None`` for none.
        upstream_retries: how often to retry an attempt that failed because the model API was unavailable, before the
            agent did any work.
        breaker_crashes: number of consecutive crashes that open the circuit breaker of an adapter and login; 0 for
            never.
        uvloop: whether ``run_router`` uses the event loop of ``uvloop`` (extra ``uvloop``), which costs less CPU.
        drain_grace_s: how long live runs may continue after the first SIGTERM or SIGINT.
        metrics: the address at which Prometheus reads metrics; empty for none. Needs the extra ``telemetry``.
        health: the address of a port in the clear that serves health alone, for probes; empty for none.
        log_format: ``json``, ``console``, or ``auto``: console at a terminal.
        log_level: the lowest level to log.
    """

    listen: tuple[str, ...] = ()
    at_default_too: bool = False
    insecure_tcp_without_token: bool = False
    state_dir: Path | None = None
    entry_points: bool = True
    user_manifests: bool = True
    manifests: tuple[Path, ...] = ()
    addresses: tuple[str, ...] = ()
    socket_dirs: tuple[Path, ...] = ()
    kubernetes: str = ""
    kubernetes_namespace: str = ""
    kubernetes_account: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    kubernetes_url: str = ""
    idle_after_s: float = 300.0
    detects_at_start: bool = False
    detect_ttl_s: float = 24 * 3600.0
    detect_timeout_s: float = 30.0
    start_timeout_s: float = 30.0
    stop_timeout_s: float = 20.0
    adapter_orphan_after_s: float = ROUTER_ORPHAN_AFTER_S
    reattach_s: float = REATTACH_S
    run_log: str = ""
    advertise: str | None = None
    peer_name: str = ""
    embedded: bool = False
    log_lease_s: float = 15.0
    log_retain_s: float = 7 * 24 * 3600.0
    log_max_bytes: int = 4096 * MIB
    log_retain_sessions_s: float = 90 * 24 * 3600.0
    retain_finished_s: float = RETAIN_FINISHED_S
    max_retained_runs: int = MAX_RETAINED_RUNS
    max_runs: Mapping[str, int] = field(default_factory=dict)
    policy: Path | None = None
    secrets: Path | None = None
    webhooks: Path | None = None
    upstream_retries: int = 2
    breaker_crashes: int = 5
    uvloop: bool = False
    drain_grace_s: float = 30.0
    metrics: str = ""
    health: str = ""
    log_format: LogFormat = "auto"
    log_level: str = "info"

    def __post_init__(self) -> None:
        """Check the fields that no later step checks.

        Raises:
            ValueError: ``run_log`` is invalid.
            AddressError: ``advertise`` is on another machine and there is no TLS.
        """
        if problem := run_log_problem(self.run_log):
            raise ValueError(f"run_log {problem}")
        if self.advertise is not None:
            check_local(self.advertise)

    @property
    def user_manifest_folder(self) -> Path | None:
        """The folder with the user's manifests, which need not exist; ``None`` if they are not read."""
        if not self.user_manifests:
            return None
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        return Path(base) / "dragoman" / "adapters"


def run_log_problem(run_log: str) -> str:
    """Return what is wrong with ``RouterConfig.run_log``; empty if it is valid. Reveals no password."""
    if run_log in {"", "memory"} or run_log.startswith(POSTGRES):
        return ""
    # Only the scheme: the rest may contain a password.
    scheme = run_log.partition("://")[0]
    return (
        f"{scheme!r} must be a postgresql:// URL or 'memory'; for a file leave it empty and set the state directory"
    )
