"""Circuit breakers: they reject runs of an adapter and login that keep failing.

There is one breaker per adapter, login and model. A login is what a request has of credentials, homes and services
(see ``policy.login``). A request without any uses the machine's own login. Logins are known only as keyed digests.

A breaker opens when a run reports that the login is missing or rejected, that the quota is exhausted (until the time
that the failure names), or when the agent crashed several times in a row before it did any work. When the time is
over, the breaker is half-open: it admits one run as a probe. It closes as soon as the probe's agent does any work,
and opens for twice as long if the probe fails. Runs admitted before the breaker opened do not reset or extend it;
concurrent failures count once. The state is in memory only: a restarted router begins with closed breakers.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dragoman.protocol.backoff import backoff_s
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.texts import enum_name
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

FIRST_S: Final = 30.0
"""How long a breaker stays open at first; doubled each time."""
LONGEST_S: Final = 900.0
LONGEST_QUOTA_S: Final = 7 * 24 * 3600.0
"""The longest time that a quota failure keeps a breaker open, whatever time it names."""
CRASHES: Final = 5
"""Crashes in a row that open a breaker."""
MAX_BREAKERS: Final = 1000
PROBE_S: Final = 120.0
"""After so long without a sign of its agent, a probe no longer blocks the next one."""
PROBE_RETRY_S: Final = 5.0
"""The retry delay for callers while a probe is in progress, as it soon closes or reopens the breaker."""
MAX_MESSAGE_CHARS: Final = 500
"""Characters of a failure's message that a breaker stores and a status repeats."""

_CRASHES_ON: Final = frozenset({pb.FAILURE_KIND_PROCESS_CRASHED, pb.FAILURE_KIND_SPAWN_FAILED})
_OPENS_ON: Final = frozenset({pb.FAILURE_KIND_AUTH_REQUIRED, pb.FAILURE_KIND_QUOTA_EXCEEDED})
_PROVES: Final = frozenset(
    {
        pb.FAILURE_KIND_MODEL_REFUSED,
        pb.FAILURE_KIND_MAX_TURNS,
        pb.FAILURE_KIND_CONTEXT_OVERFLOW,
        pb.FAILURE_KIND_PERMISSION_DENIED,
        pb.FAILURE_KIND_MODEL_NOT_FOUND,
    }
)
"""Failures that prove that the login works."""
_EXTERNAL_SIGNALS: Final = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
"""Signals that end an agent from outside, so that its end is not a crash."""
_CAUSES: Final[Mapping[int, str]] = {
    pb.FAILURE_KIND_AUTH_REQUIRED: "the login was rejected",
    pb.FAILURE_KIND_QUOTA_EXCEEDED: "the quota is exhausted",
}


class BreakerKey(NamedTuple):
    """The adapter, login and model that a breaker belongs to."""

    adapter: str
    login: bytes = b""
    """A keyed digest of the login; empty for the machine's own."""
    model: str = ""
    """The model that the request names, behind its provider if it names one; empty for the default."""


class Rejection(Struct, frozen=True):
    """Why a breaker rejects a run."""

    cause: pb.FailureKind.ValueType
    wait_s: float
    """Seconds until the breaker may admit a run again."""
    is_probed: bool = False
    """Whether a probe is in progress."""
    message: str = ""
    """The message of the failure that opened the breaker."""
    login_url: str = ""
    """The login URL of that failure; empty if it had none."""

    @property
    def description(self) -> str:
        """The cause, for people."""
        cause = _CAUSES.get(self.cause, "the agent crashed repeatedly")
        return f"{cause}; a probe run is in progress" if self.is_probed else cause


class _CircuitBreaker(Struct):
    openings: int = 0
    """How often in a row the breaker opened."""
    crashes: int = 0
    until: float = 0.0
    opened_at: float = 0.0
    message: str = ""
    login_url: str = ""
    cause: pb.FailureKind.ValueType = pb.FAILURE_KIND_UNSPECIFIED
    """Unspecified while the breaker is closed."""
    probe: str = ""
    probe_until: float = 0.0
    admitted: set[str] = field(default_factory=set)
    """Runs admitted since the breaker opened: the probe, and those that ignored the breaker."""

    @property
    def is_about_login(self) -> bool:
        """Whether the breaker is open because the login was rejected."""
        return self.cause == pb.FAILURE_KIND_AUTH_REQUIRED

    def wait_s(self, now: float) -> float:
        """Return for how long only the probe is admitted; 0 if the next run may be the probe."""
        if self.cause and now < self.until:
            return self.until - now
        return min(PROBE_RETRY_S, max(0.0, self.probe_until - now)) if self.cause and self.probe else 0.0

    def rejection(self, now: float) -> Rejection | None:
        """Return why only the probe is admitted; ``None`` if the next run may be the probe."""
        wait_s = self.wait_s(now)
        is_probed = now >= self.until
        return Rejection(self.cause, wait_s, is_probed, self.message, self.login_url) if wait_s > 0 else None

    def record_failure(self, failure: pb.Failure) -> None:
        """Store the message of the failure that opened the breaker; the adapter has redacted it."""
        self.message = failure.message[:MAX_MESSAGE_CHARS]
        # A truncated URL would be useless.
        self.login_url = failure.login_url if len(failure.login_url) <= MAX_MESSAGE_CHARS else ""


class CircuitBreakers:
    """All circuit breakers of one router. Times are seconds since the epoch.

    Args:
        crashes: number of consecutive crashes that open one; 0 for never.
    """

    def __init__(self, crashes: int = CRASHES) -> None:
        self._crashes = crashes
        self._breakers: dict[BreakerKey, _CircuitBreaker] = {}

    def rejection(self, key: BreakerKey, run_id: str, now: float) -> Rejection | None:
        """Return why a run would be rejected now; ``None`` if it would be admitted."""
        breaker = self._breakers.get(key)
        if breaker is None or (breaker.probe == run_id and now >= breaker.until):
            return None
        return breaker.rejection(now)

    def admit(self, key: BreakerKey, run_id: str, now: float, *, is_forced: bool = False) -> Rejection | None:
        """Admit a run, as the probe if one is due; else return why it is rejected."""
        breaker = self._breakers.get(key)
        if breaker is None or not breaker.cause:
            return None
        refused = self.rejection(key, run_id, now)
        if refused is None:
            breaker.probe, breaker.probe_until = run_id, now + PROBE_S
        elif not is_forced:
            return refused
        breaker.admitted.add(run_id)
        return None

    def is_probe(self, key: BreakerKey, run_id: str) -> bool:
        """Return whether this run is the probe of an open breaker."""
        breaker = self._breakers.get(key)
        return breaker is not None and bool(breaker.cause) and breaker.probe == run_id

    def release(self, key: BreakerKey, run_id: str) -> None:
        """Record that an admitted run proves nothing, so that another one may be the probe."""
        breaker = self._breakers.get(key)
        if breaker is None:
            return
        breaker.admitted.discard(run_id)
        if breaker.probe == run_id:
            breaker.probe = ""

    def record_result(self, key: BreakerKey, run_id: str, result: pb.Result, now: float, *, did_work: bool) -> bool:
        """Record how an attempt ended; True if the breaker opened or closed, or stays open for longer."""
        breaker, kind = self._breakers.get(key, _CircuitBreaker()), result.failure.kind
        has_failed = result.outcome == pb.OUTCOME_FAILED
        proves = result.outcome == pb.OUTCOME_SUCCEEDED or (has_failed and kind in _PROVES)
        counts = breaker.probe == run_id or (proves and run_id in breaker.admitted)
        if breaker.cause and not counts:
            breaker.admitted.discard(run_id)
            return _extend(breaker, result, now)
        if has_failed and kind in _OPENS_ON:
            self._open(key, kind, result, now)
            return True
        if has_failed and kind in _CRASHES_ON and not _is_external(result):
            return self._crashed(key, run_id, result, now, did_work=did_work)
        if proves:
            was = self._breakers.pop(key, None)
            return was is not None and bool(was.cause)
        self.release(key, run_id)
        return False

    def record_progress(self, key: BreakerKey, run_id: str) -> bool:
        """Record that a run's agent does work; True if that closes the breaker, as the run is its probe.

        The count of openings is reset only when a run succeeds, because some agents report a rejected login as if it
        were text of their own.
        """
        if not self.is_probe(key, run_id):
            return False
        breaker = self._breakers[key]
        breaker.cause, breaker.until, breaker.probe, breaker.crashes = pb.FAILURE_KIND_UNSPECIFIED, 0.0, "", 0
        breaker.admitted.clear()
        return True

    def reset(self, adapter: str, since: float) -> bool:
        """Close the breakers of the machine's own login, as it was restored; True if one was open.

        Only those that opened because the login was rejected: a login proves nothing about quotas or crashes.

        Args:
            adapter: the adapter's type.
            since: when the login was checked; later failures may have another cause.
        """
        own = [key for key in self._breakers if key.adapter == adapter and not key.login]
        closed = [key for key in own if self._breakers[key].is_about_login and self._breakers[key].opened_at <= since]
        for key in closed:
            del self._breakers[key]
        return bool(closed)

    def opened(self, adapter: str, now: float) -> list[tuple[BreakerKey, Rejection]]:
        """Return the adapter's breakers that are open now."""
        found = [(key, breaker.rejection(now)) for key, breaker in self._breakers.items() if key.adapter == adapter]
        return [(key, opened) for key, opened in found if opened is not None]

    def next_end_s(self, now: float) -> float | None:
        """Return the seconds until the next breaker becomes half-open; ``None`` if none will."""
        ends = [max(one.until, one.probe_until if one.probe else 0.0) for one in self._breakers.values() if one.cause]
        return min((end - now for end in ends if end > now), default=None)

    def _crashed(self, key: BreakerKey, run_id: str, result: pb.Result, now: float, *, did_work: bool) -> bool:
        breaker = self._breaker(key)
        # A crash after work may be caused by the task.
        breaker.crashes = 0 if did_work else breaker.crashes + 1
        was_open = bool(breaker.cause) and not did_work
        if was_open or (self._crashes and breaker.crashes >= self._crashes):
            self._open(key, result.failure.kind, result, now)
            return True
        self.release(key, run_id)
        return False

    def _open(self, key: BreakerKey, cause: pb.FailureKind.ValueType, result: pb.Result, now: float) -> None:
        breaker = self._breaker(key)
        breaker.openings += 1
        reset_s = _quota_reset_s(result, now)
        wait_s = backoff_s(breaker.openings, FIRST_S, LONGEST_S) if reset_s is None else reset_s
        # Another run may have reported a longer time while the probe was in progress.
        breaker.cause, breaker.until, breaker.probe = cause, max(breaker.until, now + wait_s), ""
        breaker.opened_at = now
        breaker.record_failure(result.failure)
        breaker.admitted.clear()

    def _breaker(self, key: BreakerKey) -> _CircuitBreaker:
        while len(self._breakers) >= MAX_BREAKERS and key not in self._breakers:
            # Logins that differ per run must not evict breakers that stay open for longer.
            del self._breakers[min(self._breakers, key=lambda one: self._breakers[one].until)]
        return self._breakers.setdefault(key, _CircuitBreaker())


def breaker_open(adapter: str, opened: Rejection, others: Iterable[str]) -> DragomanError:
    """Return the error for a run that is kept away: it says what a result would say of that failure.

    Args:
        adapter: the adapter's type.
        opened: why.
        others: adapters that the caller may use instead.
    """
    more = {"failure_message": opened.message, "login_url": opened.login_url, "candidates": ",".join(others)}
    return DragomanError(
        Reason.BREAKER_OPEN,
        f"The circuit breaker of adapter {adapter!r} is open for this login: {opened.description}.",
        {
            "adapter": adapter,
            "failure_kind": enum_name(pb.FailureKind.DESCRIPTOR, opened.cause),
            **{key: value for key, value in more.items() if value},
        },
        retry_after_s=max(opened.wait_s, 0.1),
    )


def _is_external(result: pb.Result) -> bool:
    """Return whether a crash has an external cause: a signal from outside, or a request that the API rejected."""
    status = result.failure.http_status
    return result.signal in _EXTERNAL_SIGNALS or 400 <= status < 500


def _extend(breaker: _CircuitBreaker, result: pb.Result, now: float) -> bool:
    """Extend an open breaker to the quota reset that a run admitted before it opened reports; ignore the rest."""
    reset_s = _quota_reset_s(result, now)
    if reset_s is None or now + reset_s <= breaker.until:
        return False
    breaker.cause, breaker.until = pb.FAILURE_KIND_QUOTA_EXCEEDED, now + reset_s
    breaker.record_failure(result.failure)
    return True


def _quota_reset_s(result: pb.Result, now: float) -> float | None:
    """Return the seconds until the quota resets; ``None`` if the result does not report that."""
    failure = result.failure
    has_reset = failure.kind == pb.FAILURE_KIND_QUOTA_EXCEEDED and failure.HasField("retry_not_before")
    if result.outcome != pb.OUTCOME_FAILED or not has_reset:
        return None
    return min(max(failure.retry_not_before.ToNanoseconds() / 1e9 - now, 0.0), LONGEST_QUOTA_S)
