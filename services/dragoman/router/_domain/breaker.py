"""Circuit breakers: an adapter whose login failed is not asked with that login again and again.

One breaker for each adapter and login. A login is what the request gives that chooses an account: secrets, other
homes, other services; whoever gives none uses the machine's own. It is known here by a keyed digest alone. A breaker
opens when a run says that the login is needed or refused, that the quota is used up (until the time that was told),
or when the agent crashed several times in a row before it did anything. When its time is over one run is let
through: if that works it closes, else it opens for twice as long. All of this is in memory: a router that was
restarted tries anew.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from dragoman.v1 import adapter_pb2
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
_SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_ACCOUNT_NAME: Final = re.compile(
    r"^HOME$|_HOME$|CONFIG|BASE_URL|ENDPOINT|PROFILE|^AWS_|REGION|PROJECT", re.IGNORECASE
)
_WORDS: Final[Mapping[int, str]] = {
    pb.FAILURE_KIND_AUTH_REQUIRED: "the login was refused",
    pb.FAILURE_KIND_QUOTA_EXCEEDED: "the quota is used up",
}


class Key(NamedTuple):
    """Whose breaker: an adapter's, for a login."""

    adapter: str
    login: bytes = b""
    """A keyed digest; empty for the machine's own."""


@dataclass(frozen=True, slots=True)
class Open:
    """Why a run is not let through."""

    cause: pb.FailureKind.ValueType
    wait_s: float
    """Until one is let through again."""

    @property
    def told(self) -> str:
        """The cause in words."""
        return _WORDS.get(self.cause, "the agent crashed each time")


@dataclass(slots=True)
class _Breaker:
    times: int = 0
    """How often in a row it opened."""
    crashes: int = 0
    until: float = 0.0
    cause: pb.FailureKind.ValueType = pb.FAILURE_KIND_UNSPECIFIED
    """Unspecified while it is closed."""
    probe: str = ""
    probe_until: float = 0.0


class Breakers:
    """All breakers of one router. Times are seconds since the epoch.

    Args:
        crashes: how many in a row open one; 0 for never.
    """

    def __init__(self, crashes: int = CRASHES) -> None:
        self._crashes = crashes
        self._breakers: dict[Key, _Breaker] = {}

    def admit(self, key: Key, run_id: str, now: float) -> Open | None:
        """Let a run through, as the probe if one is due; else say why not."""
        breaker = self._breakers.get(key)
        if breaker is None or not breaker.cause:
            return None
        if now < breaker.until:
            return Open(breaker.cause, breaker.until - now)
        if breaker.probe not in {"", run_id} and now < breaker.probe_until:
            return Open(breaker.cause, min(1.0, breaker.probe_until - now))
        breaker.probe, breaker.probe_until = run_id, now + PROBE_S
        return None

    def release(self, key: Key, run_id: str) -> None:
        """Say that a run that was let through tells nothing; another one may be the probe."""
        breaker = self._breakers.get(key)
        if breaker is not None and breaker.probe == run_id:
            breaker.probe = ""

    def note(self, key: Key, run_id: str, result: pb.Result, now: float, *, did_work: bool) -> bool:
        """Take note of how an attempt ended; True if the breaker opened or closed.

        Args:
            key: whose breaker.
            run_id: the run.
            result: how it ended.
            now: the time.
            did_work: whether the agent did anything.
        """
        kind = result.failure.kind
        if result.outcome == pb.OUTCOME_FAILED and kind in _OPENS_ON:
            self._open(key, kind, result, now)
            return True
        if result.outcome == pb.OUTCOME_FAILED and kind in _CRASHES_ON and result.signal not in _BY_OTHERS:
            return self._crashed(key, run_id, result, now, did_work=did_work)
        if result.outcome == pb.OUTCOME_SUCCEEDED or (result.outcome == pb.OUTCOME_FAILED and kind in _PROVES):
            was = self._breakers.pop(key, None)
            return was is not None and bool(was.cause)
        self.release(key, run_id)
        return False

    def reset(self, adapter: str) -> bool:
        """Close the breaker of the machine's own login, as it was seen to be good; True if it was open."""
        was = self._breakers.pop(Key(adapter), None)
        return was is not None and bool(was.cause)

    def opened(self, adapter: str, now: float) -> list[tuple[Key, Open]]:
        """Return the adapter's open breakers."""
        return [
            (key, Open(breaker.cause, max(0.0, breaker.until - now)))
            for key, breaker in self._breakers.items()
            if key.adapter == adapter and breaker.cause
        ]

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
        wait_s = min(LONGEST_S, FIRST_S * 2.0 ** min(breaker.times - 1, 16))
        if cause == pb.FAILURE_KIND_QUOTA_EXCEEDED and result.failure.HasField("retry_not_before"):
            told_s = result.failure.retry_not_before.ToNanoseconds() / 1e9 - now
            wait_s = min(max(told_s, 0.0), LONGEST_QUOTA_S)
        breaker.cause, breaker.until, breaker.probe = cause, now + wait_s, ""

    def _of(self, key: Key) -> _Breaker:
        while len(self._breakers) >= MOST_BREAKERS and key not in self._breakers:
            del self._breakers[next(iter(self._breakers))]
        return self._breakers.setdefault(key, _Breaker())


def login_parts(request: adapter_pb2.ExecuteRequest) -> list[str]:
    """Return what in a request chooses the account, in one order; empty for the machine's own login.

    Args:
        request: the request. The caller's own token and variables are not the agent's login.
    """
    prefix = f"{request.brand.env_prefix or 'DRAGOMAN'}_"
    parts = {name: value for name, value in _variables(request) if not name.startswith(prefix)}
    chosen = {name: text for name, text in parts.items() if _SECRET_NAME.search(name) or _ACCOUNT_NAME.search(name)}
    command = request.config.fields["command"].string_value if "command" in request.config.fields else ""
    return [*(f"{name}={chosen[name]}" for name in sorted(chosen)), *([f"command {command}"] if command else [])]


def _variables(request: adapter_pb2.ExecuteRequest) -> Iterable[tuple[str, str]]:
    settings = request.config.fields
    if "env" in settings:
        yield from ((name, value.string_value) for name, value in settings["env"].struct_value.fields.items())
    yield from request.env.items()
