"""Tokens and limits, as the contract counts them. Pure.

Codex reports a thread's totals over all of its runs, and the newest call's usage. The run's usage is the difference
to the totals before its first call. ``inputTokens`` include tokens read from caches and written to them.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from dragoman.sdk import parsing
from dragoman.sdk.fields import Fields, count, inner, number, text, unix_moment
from dragoman.sdk.parsing import call_usage, rate_limit, run_usage
from dragoman.v1 import event_pb2 as pb

Counts = Mapping[str, int]
"""Token numbers of a breakdown, by Codex's names."""

_NAMES: Final = {
    "inputTokens": "input",
    "cachedInputTokens": "cache_read",
    "cacheWriteInputTokens": "cache_write",
    "outputTokens": "output",
    "reasoningOutputTokens": "reasoning",
}


def read_counts(fields: Fields) -> Counts:
    """Return the token numbers of a breakdown."""
    found = {key: count(fields, key) for key in _NAMES}
    return {key: value for key, value in found.items() if value is not None}


def minus(total: Counts, before: Counts) -> Counts:
    """Return what was added to ``before``; never less than nothing."""
    return {key: max(0, value - before.get(key, 0)) for key, value in total.items()}


def plus(parts: Iterable[Counts]) -> Counts:
    """Return the sum; numbers that no part has stay absent."""
    total: dict[str, int] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = min(total.get(key, 0) + value, 2**63 - 1)
    return total


def token_counts(counts: Counts) -> pb.TokenCounts:
    """Return token numbers as the contract has them."""
    return parsing.token_counts(counts, _NAMES, input_has_cached=True) or pb.TokenCounts()


def dump(counts: Counts) -> str:
    """Return totals as text, for a session's handle."""
    return json.dumps(counts, sort_keys=True)


def load(text_: str) -> Counts | None:
    """Return the totals that ``dump`` wrote; None for any other text."""
    try:
        value = json.loads(text_)
    except ValueError:
        return None
    return read_counts(value) if isinstance(value, dict) else None


class RunTotals:
    """What this run used, over all of its threads.

    Args:
        stored: the main thread's totals after the run before, if that is known. A run's first numbers may repeat
            them: then they are of no call.
    """

    def __init__(self, stored: Counts | None = None) -> None:
        self._stored = stored
        self._before: dict[str, Counts] = {}
        self._total: dict[str, Counts] = {}
        self.context_used: int | None = None
        self.context_size: int | None = None

    def begin(self, thread: str, usage: Fields) -> None:
        """Handle a thread's ``tokenUsage`` as it was before this run."""
        self._before[thread] = read_counts(inner(usage, "total"))

    def take(self, thread: str, usage: Fields, *, is_main: bool) -> pb.Usage | None:
        """Handle a thread's ``tokenUsage`` in this run; return a call's usage, None if there was no call."""
        total, last = read_counts(inner(usage, "total")), read_counts(inner(usage, "last"))
        if thread not in self._before:
            self._before[thread] = total if is_main and total == self._stored else minus(total, last)
        size, used = count(usage, "modelContextWindow"), count(inner(usage, "last"), "totalTokens")
        if is_main:
            self.context_size, self.context_used = size or self.context_size, used
        if total == self._total.get(thread, self._before[thread]):
            return None  # the numbers are repeated after a compaction
        self._total[thread] = total
        call = call_usage(token_counts(last))
        call.MergeFrom(pb.Usage(context_used=used, context_size=size))
        return call

    def total(self, thread: str) -> Counts:
        """Return a thread's totals; empty if they are not known."""
        return self._total.get(thread) or self._before.get(thread, {})

    def usage(self, model: str, limits: Iterable[pb.RateLimit] = ()) -> pb.Usage | None:
        """Return the run's totals; None if there was no call.

        Args:
            model: the main thread's. With nested agents, the usage of each model is unknown.
            limits: of the account.
        """
        if not self._total:
            return None
        parts = [minus(total, self._before[thread]) for thread, total in self._total.items()]
        usage = run_usage(token_counts(plus(parts)), model if len(parts) == 1 else "")
        usage.MergeFrom(pb.Usage(context_used=self.context_used, context_size=self.context_size, rate_limits=limits))
        return usage


def rate_limits(snapshot: Fields) -> list[pb.RateLimit]:
    """Return the windows of ``account/rateLimits/updated``; none if the account has none."""
    limits = []
    for name in ("primary", "secondary"):
        window = inner(snapshot, name)
        if not window:
            continue
        minutes = count(window, "windowDurationMins")
        label = f"{name} ({minutes} min)" if minutes else name
        used, resets_at = number(window, "usedPercent"), unix_moment(window, "resetsAt")
        limits.append(rate_limit(label, used, resets_at, text(snapshot, "rateLimitReachedType")))
    return limits


def used_up_until(limits: Iterable[pb.RateLimit]) -> datetime | None:
    """Return when the last of the windows ends that are used up; None if none is, or none has an end."""
    ends = [
        item.resets_at.ToDatetime(UTC) for item in limits if item.used_percent >= 100 and item.HasField("resets_at")
    ]
    return max(ends, default=None)
