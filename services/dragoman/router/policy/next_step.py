"""What follows an attempt of a run: a retry of the same adapter, a fallback to the next one, or the end.

A retry is the router's own policy: only if the model API was unavailable, and only before the agent did any work. A
fallback needs the request: it names the adapters and the failures. A fallback does not follow an attempt that may
have had side effects: it called a tool, changed a file or requested input, or its adapter does not report these.
"""

from typing import Final, TypeAlias

from dragoman.protocol.backoff import backoff_s
from dragoman.protocol.errors import DragomanError
from dragoman.router.policy.fallback import FAILED, failure_kind_of
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct
from msgspec.structs import replace

FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 20.0
_FACTOR: Final = 3.0


class Rules(Struct, frozen=True):
    """What the request and the router's configuration allow."""

    fallback: adapter_pb2.Fallback
    retries: int = 0
    """How often to retry an attempt that failed because the model API was unavailable."""

    @property
    def has_no_fallback(self) -> bool:
        """Whether the request has no fallback, so that the result suggests candidates to the caller."""
        return not (self.fallback.adapters and self.fallback.on)


class History(Struct, frozen=True):
    """The attempts of a run so far."""

    retries: int = 0
    """How often the present adapter was retried."""
    chosen: int = 0
    """How many of the request's fallback adapters were chosen."""
    failed: pb.Result | None = None
    """How the last attempt ended that another one followed."""
    skipped: DragomanError | None = None
    """Why the first adapter was not asked, if the run fell back from it before any attempt."""

    def moved(self) -> "History":
        """Return the history of a run whose next attempt is at another adapter."""
        return replace(self, retries=0)


class Failed(Struct, frozen=True):
    """An attempt ended with this result."""

    result: pb.Result
    did_work: bool = False
    had_effects: bool = False


class Rejected(Struct, frozen=True):
    """An adapter did not take the run."""

    error: DragomanError


class Retry(Struct, frozen=True):
    """The same adapter tries again."""

    history: History
    delay_s: float


class Fallback(Struct, frozen=True):
    """Another adapter tries. If that one is not available, the next step after the same outcome is due."""

    history: History
    adapter: str
    """Its name in the request's fallback."""


class End(Struct, frozen=True):
    """The run ends as it did."""

    is_withheld: bool = False
    """Whether only side effects prevent a fallback."""


Outcome: TypeAlias = Failed | Rejected
NextStep: TypeAlias = Retry | Fallback | End


def next_step(rules: Rules, history: History, outcome: Outcome, chance: float = 0.0) -> NextStep:
    """Return what follows.

    Args:
        rules: what is allowed.
        history: the attempts before.
        outcome: how the present one ended.
        chance: a random number in [0, 1), for jitter.
    """
    if isinstance(outcome, Rejected):
        return _after_rejection(rules, history, outcome.error)
    result = outcome.result
    if _may_retry(rules, history, outcome):
        number = history.retries + 1
        delay_s = backoff_s(number, FIRST_DELAY_S, LONGEST_DELAY_S, factor=_FACTOR, chance=chance)
        return Retry(replace(history, retries=number, failed=result), delay_s)
    if not _falls_back_on(rules, result) or history.chosen >= len(rules.fallback.adapters):
        return End()
    if not _is_harmless(rules, outcome):
        return End(is_withheld=True)
    return _fall_back(rules, replace(history, failed=result))


def _after_rejection(rules: Rules, history: History, error: DragomanError) -> NextStep:
    if history.failed is not None:
        failed = Failed(history.failed)
        may_continue = _falls_back_on(rules, failed.result) and _is_harmless(rules, failed)
    elif history.skipped is None:
        history = replace(history, skipped=error)
        kind = failure_kind_of(error)
        may_continue = kind is not None and kind in rules.fallback.on
    else:
        may_continue = True
    return _fall_back(rules, history) if may_continue else End()


def _fall_back(rules: Rules, history: History) -> NextStep:
    if history.chosen >= len(rules.fallback.adapters):
        return End()
    following = replace(history, chosen=history.chosen + 1)
    return Fallback(following, rules.fallback.adapters[history.chosen])


def _may_retry(rules: Rules, history: History, outcome: Failed) -> bool:
    result = outcome.result
    has_agent_retried = result.failure.agent_retried or bool(result.counters.retries)
    return (
        result.outcome in FAILED
        and result.failure.kind == pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE
        and not result.failure.HasField("retry_not_before")
        and not has_agent_retried
        and not outcome.did_work
        and not _counts_effects(result)
        and history.retries < rules.retries
    )


def _falls_back_on(rules: Rules, result: pb.Result) -> bool:
    return result.outcome in FAILED and result.failure.kind in rules.fallback.on


def _is_harmless(rules: Rules, outcome: Failed) -> bool:
    return rules.fallback.after_side_effects or not (outcome.had_effects or _counts_effects(outcome.result))


def _counts_effects(result: pb.Result) -> bool:
    """Return whether a result's counters show side effects. Turns do not count: they include one that failed."""
    return bool(result.counters.tool_calls or result.counters.file_changes)
