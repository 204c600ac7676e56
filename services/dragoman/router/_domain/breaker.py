"""Circuit breakers: an adapter whose login failed is not asked with that login again and again.

One breaker for each adapter and login. A login is what the request gives that chooses an account: secrets, other
homes, other services, and the settings of which the adapter says so; whoever gives no secret uses the machine's own.
It is known here by keyed digests alone. A breaker opens when a run says that the login is needed or refused, that the
quota is used up (until the time that was told), or when the agent crashed several times in a row before it did
anything. When its time is over one run is let through: as soon as its agent does any work it closes, and if it fails
it opens for twice as long. What was let through before it opened changes nothing but that: runs that fail together
fail once. All of this is in memory: a router that was restarted tries anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dragoman.v1 import event_pb2 as pb

FIRST_S: Final = 30.0
"""For how long a breaker opens at first; doubled each time."""
LONGEST_S: Final = 900.0
LONGEST_QUOTA_S: Final = 7 * 24 * 3600.0
"""A quota that is said to last for longer is tried again all the same."""
CRASHES: Final = 5
"""Crashes in a row that open a breaker."""
MOST_BREAKERS: Final = 1000
PROBE_S: Final = 120.0
"""A probe that says nothing for so long is not waited for."""
PROBE_RETRY_S: Final = 5.0
"""When to come again while a probe is under way: it closes the breaker as soon as its agent works, or fails."""
LONGEST_WORDS: Final = 500
"""Characters that are kept of what a failure said: so many are told in a status."""

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
"""Failures that show that the login works."""
_BY_OTHERS: Final = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
"""Who ends an agent from outside says nothing about it."""
_WORDS: Final[Mapping[int, str]] = {
    pb.FAILURE_KIND_AUTH_REQUIRED: "the login was refused",
    pb.FAILURE_KIND_QUOTA_EXCEEDED: "the quota is used up",
}


class Key(NamedTuple):
    """Whose breaker: an adapter's, for a login."""

    adapter: str
    login: bytes = b""
    """A keyed digest; empty for the machine's own."""
    settings: bytes = b""
    """A keyed digest of the settings that choose among logins; empty if none do."""


@dataclass(frozen=True, slots=True)
class Open:
    """Why a run is not let through."""

    cause: pb.FailureKind.ValueType
    wait_s: float
    """Until one is let through again."""
    is_probed: bool = False
    """Whether one was let through, and it is not known yet how it fares."""
    message: str = ""
    """What the failure said that opened it."""
    login_url: str = ""
    """Where that said to log in; empty if it did not."""

    @property
    def told(self) -> str:
        """The cause in words."""
        cause = _WORDS.get(self.cause, "the agent crashed each time")
        return f"{cause}; one run tries it again now" if self.is_probed else cause


@dataclass(slots=True)
class _Breaker:
    times: int = 0
    """How often in a row it opened."""
    crashes: int = 0
    until: float = 0.0
    opened_at: float = 0.0
    message: str = ""
    login_url: str = ""
    cause: pb.FailureKind.ValueType = pb.FAILURE_KIND_UNSPECIFIED
    """Unspecified while it is closed."""
    probe: str = ""
    probe_until: float = 0.0
    tries: set[str] = field(default_factory=set)
    """Runs that were let through since it opened: the probe, and those that wanted it all the same."""

    @property
    def is_about_login(self) -> bool:
        """Whether it is open as the login was refused."""
        return self.cause == pb.FAILURE_KIND_AUTH_REQUIRED

    def wait_s(self, now: float) -> float:
        """Return for how long nobody is let through but its probe; 0 if the next run may be that."""
        if self.cause and now < self.until:
            return self.until - now
        return min(PROBE_RETRY_S, max(0.0, self.probe_until - now)) if self.cause and self.probe else 0.0

    def told(self, now: float) -> Open | None:
        """Return why nobody but its probe is let through; ``None`` if the next run may be that."""
        wait_s = self.wait_s(now)
        is_probed = now >= self.until
        return Open(self.cause, wait_s, is_probed, self.message, self.login_url) if wait_s > 0 else None

    def quote(self, failure: pb.Failure) -> None:
        """Keep the words of the failure that keeps it open. Adapters redact them, as in a result."""
        self.message = failure.message[:LONGEST_WORDS]
        # What is cut is no address.
        self.login_url = failure.login_url if len(failure.login_url) <= LONGEST_WORDS else ""


class Breakers:
    """All breakers of one router. Times are seconds since the epoch.

    Args:
        crashes: how many in a row open one; 0 for never.
    """

    def __init__(self, crashes: int = CRASHES) -> None:
        self._crashes = crashes
        self._breakers: dict[Key, _Breaker] = {}

    def refusal(self, key: Key, run_id: str, now: float) -> Open | None:
        """Say why a run would not be let through now; ``None`` if it would."""
        breaker = self._breakers.get(key)
        if breaker is None or (breaker.probe == run_id and now >= breaker.until):
            return None
        return breaker.told(now)

    def admit(self, key: Key, run_id: str, now: float, *, is_forced: bool = False) -> Open | None:
        """Let a run through, as the probe if one is due; else say why not.

        Args:
            key: whose breaker.
            run_id: the run.
            now: the time.
            is_forced: let it through in any case.
        """
        breaker = self._breakers.get(key)
        if breaker is None or not breaker.cause:
            return None
        refused = self.refusal(key, run_id, now)
        if refused is None:
            breaker.probe, breaker.probe_until = run_id, now + PROBE_S
        elif not is_forced:
            return refused
        breaker.tries.add(run_id)
        return None

    def is_probe(self, key: Key, run_id: str) -> bool:
        """Tell whether all others wait for how this run fares."""
        breaker = self._breakers.get(key)
        return breaker is not None and bool(breaker.cause) and breaker.probe == run_id

    def release(self, key: Key, run_id: str) -> None:
        """Say that a run that was let through tells nothing; another one may be the probe."""
        breaker = self._breakers.get(key)
        if breaker is None:
            return
        breaker.tries.discard(run_id)
        if breaker.probe == run_id:
            breaker.probe = ""

    def note(self, key: Key, run_id: str, result: pb.Result, now: float, *, did_work: bool) -> bool:
        """Take note of how an attempt ended; True if the breaker opened or closed, or stays open for longer.

        Args:
            key: whose breaker.
            run_id: the run.
            result: how it ended.
            now: the time.
            did_work: whether the agent did anything.
        """
        breaker, kind = self._breakers.get(key, _Breaker()), result.failure.kind
        has_failed = result.outcome == pb.OUTCOME_FAILED
        proves = result.outcome == pb.OUTCOME_SUCCEEDED or (has_failed and kind in _PROVES)
        counts = breaker.probe == run_id or (proves and run_id in breaker.tries)
        if breaker.cause and not counts:
            breaker.tries.discard(run_id)
            return _prolong(breaker, result, now)
        if has_failed and kind in _OPENS_ON:
            self._open(key, kind, result, now)
            return True
        if has_failed and kind in _CRASHES_ON and result.signal not in _BY_OTHERS:
            return self._crashed(key, run_id, result, now, did_work=did_work)
        if proves:
            was = self._breakers.pop(key, None)
            return was is not None and bool(was.cause)
        self.release(key, run_id)
        return False

    def works(self, key: Key, run_id: str) -> bool:
        """Take note that a run's agent does its work; True if that closes the breaker, as the run is its probe.

        What it did so far in a row is not forgotten before a run succeeds: some agents tell that they are not let in
        as if they said it themselves.
        """
        if not self.is_probe(key, run_id):
            return False
        breaker = self._breakers[key]
        breaker.cause, breaker.until, breaker.probe, breaker.crashes = pb.FAILURE_KIND_UNSPECIFIED, 0.0, "", 0
        breaker.tries.clear()
        return True

    def reset(self, adapter: str, since: float) -> bool:
        """Close the breakers of the machine's own login, as that was mended; True if one was open.

        Only those that opened as the login was refused: that there is one says nothing of quotas or crashes.

        Args:
            adapter: whose.
            since: when the login was looked at; what failed after that may have failed for another.
        """
        own = [key for key in self._breakers if key.adapter == adapter and not key.login]
        closed = [key for key in own if self._breakers[key].is_about_login and self._breakers[key].opened_at <= since]
        for key in closed:
            del self._breakers[key]
        return bool(closed)

    def opened(self, adapter: str, now: float) -> list[tuple[Key, Open]]:
        """Return the adapter's breakers that let nobody through now."""
        told = [(key, breaker.told(now)) for key, breaker in self._breakers.items() if key.adapter == adapter]
        return [(key, opened) for key, opened in told if opened is not None]

    def next_end_s(self, now: float) -> float | None:
        """Return after how many seconds one lets runs through again by itself; ``None`` if all do, or never."""
        ends = [max(one.until, one.probe_until if one.probe else 0.0) for one in self._breakers.values() if one.cause]
        return min((end - now for end in ends if end > now), default=None)

    def _crashed(self, key: Key, run_id: str, result: pb.Result, now: float, *, did_work: bool) -> bool:
        breaker = self._of(key)
        # One that worked and then died may be its task's doing.
        breaker.crashes = 0 if did_work else breaker.crashes + 1
        was_open = bool(breaker.cause) and not did_work
        if was_open or (self._crashes and breaker.crashes >= self._crashes):
            self._open(key, result.failure.kind, result, now)
            return True
        self.release(key, run_id)
        return False

    def _open(self, key: Key, cause: pb.FailureKind.ValueType, result: pb.Result, now: float) -> None:
        breaker = self._of(key)
        breaker.times += 1
        told_s = _told_s(result, now)
        wait_s = min(LONGEST_S, FIRST_S * 2.0 ** min(breaker.times - 1, 16)) if told_s is None else told_s
        # A longer time may have been told while the probe was under way.
        breaker.cause, breaker.until, breaker.probe = cause, max(breaker.until, now + wait_s), ""
        breaker.opened_at = now
        breaker.quote(result.failure)
        breaker.tries.clear()

    def _of(self, key: Key) -> _Breaker:
        while len(self._breakers) >= MOST_BREAKERS and key not in self._breakers:
            # Whoever gives a login that nobody else has must not make others' be forgotten that are open for longer.
            del self._breakers[min(self._breakers, key=lambda one: self._breakers[one].until)]
        return self._breakers.setdefault(key, _Breaker())


def _prolong(breaker: _Breaker, result: pb.Result, now: float) -> bool:
    """Take note of a quota's end that a run tells which was let through before; nothing else of it counts."""
    told_s = _told_s(result, now)
    if told_s is None or now + told_s <= breaker.until:
        return False
    breaker.cause, breaker.until = pb.FAILURE_KIND_QUOTA_EXCEEDED, now + told_s
    breaker.quote(result.failure)
    return True


def _told_s(result: pb.Result, now: float) -> float | None:
    """Return for how many seconds a quota is said to be used up; ``None`` if that is not said."""
    failure = result.failure
    is_told = failure.kind == pb.FAILURE_KIND_QUOTA_EXCEEDED and failure.HasField("retry_not_before")
    if result.outcome != pb.OUTCOME_FAILED or not is_told:
        return None
    return min(max(failure.retry_not_before.ToNanoseconds() / 1e9 - now, 0.0), LONGEST_QUOTA_S)
