"""Tokens and cost of a run, and of its calls of the model. Absent is not zero. Pure."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final

from dragoman.sdk._encoding.fields import Fields, count
from dragoman.v1 import event_pb2 as pb

_MOST: Final = 2**63 - 1


def token_counts(
    counts: Fields, names: Mapping[str, str], *, input_has_cached: bool = False
) -> pb.TokenCounts | None:
    """Read numbers of tokens; None if there is none of them.

    Args:
        counts: an object of the agent's.
        names: its keys, and the fields of ``TokenCounts`` that they stand for.
        input_has_cached: whether the agent counts what was read from a cache or written to one as input too.
    """
    tokens = pb.TokenCounts()
    for key, name in names.items():
        if (number := count(counts, key)) is not None:
            setattr(tokens, name, number)
    if input_has_cached and tokens.HasField("input"):
        tokens.input = max(0, tokens.input - tokens.cache_read - tokens.cache_write)
    return tokens if tokens.ListFields() else None


def call_usage(tokens: pb.TokenCounts | None = None, model: str = "") -> pb.Usage:
    """Return what one call of the model used."""
    return _usage(pb.USAGE_SCOPE_CALL, pb.USAGE_SEMANTICS_DELTA, tokens, model)


def context_used(tokens: pb.TokenCounts) -> int | None:
    """Return how full the context is after a call, which the next one repeats; None if the call did not say."""
    if not tokens.HasField("input"):
        return None
    return min(tokens.input + tokens.cache_read + tokens.cache_write + tokens.output, _MOST)


def run_usage(tokens: pb.TokenCounts | None = None, model: str = "") -> pb.Usage:
    """Return what a run has used so far, or in all."""
    return _usage(pb.USAGE_SCOPE_RUN, pb.USAGE_SEMANTICS_CUMULATIVE, tokens, model)


def _usage(
    scope: pb.UsageScope.ValueType, semantics: pb.UsageSemantics.ValueType, tokens: pb.TokenCounts | None, model: str
) -> pb.Usage:
    usage = pb.Usage(scope=scope, semantics=semantics, tokens=tokens)
    if model and tokens is not None:
        usage.models.add(model=model).tokens.CopyFrom(tokens)
    return usage


def rate_limit(
    window: str, used_percent: float | None, resets_at: datetime | None = None, status: str = ""
) -> pb.RateLimit:
    """Return a window of an account's rate limits, as far as it is known."""
    limit = pb.RateLimit(window=window, used_percent=used_percent, status=status)
    if resets_at is not None:
        limit.resets_at.FromDatetime(resets_at)
    return limit


def cost_in_dollars(amount: Decimal | float, basis: pb.CostBasis.ValueType = pb.COST_BASIS_REPORTED) -> pb.Cost:
    """Return a cost as a plain decimal number. Beyond ten digits binary floating point has only noise."""
    exact = amount if isinstance(amount, Decimal) else Decimal(repr(amount))
    return pb.Cost(amount=amount_text(exact), currency="USD", basis=basis)


def amount_text(amount: Decimal) -> str:
    """Return an amount of money as a plain decimal number of at most ten digits behind the point."""
    return f"{amount:.10f}".rstrip("0").rstrip(".")


class UsageTotals:
    """What the calls of one attempt come to."""

    def __init__(self, basis: pb.CostBasis.ValueType = pb.COST_BASIS_REPORTED) -> None:
        self.total: pb.Usage | None = None
        """None: no call was counted."""
        self._basis = basis
        self._cost = Decimal(0)

    def add(self, call: pb.Usage, cost: float | None = None) -> pb.Usage:
        """Add a call, and what it cost in dollars; return the total. Costs of zero are none: prices are not known."""
        self.total = add_call(self.total, call)
        self._cost += Decimal(repr(cost)) if cost else 0
        if self._cost:
            self.total.cost.CopyFrom(cost_in_dollars(self._cost, self._basis))
        return self.total


def add_call(total: pb.Usage | None, call: pb.Usage) -> pb.Usage:
    """Return what a run has used with one more call of the model.

    Args:
        total: what the calls before used; None before the first.
        call: what this one used, by model too if it has ``models``.
    """
    usage = run_usage()
    if total is not None:
        usage.CopyFrom(total)
    _add(usage.tokens, call.tokens)
    for item in call.models:
        share = next((known for known in usage.models if known.model == item.model), None)
        _add((share or usage.models.add(model=item.model)).tokens, item.tokens)
    return usage


def _add(total: pb.TokenCounts, more: pb.TokenCounts) -> None:
    for field, value in more.ListFields():
        setattr(total, field.name, min(getattr(total, field.name) + value, _MOST))
