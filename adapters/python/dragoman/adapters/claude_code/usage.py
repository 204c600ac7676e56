"""Tokens and cost, as the protocol counts them. Pure.

Three counts run side by side and only one of them is the run's: a message's own usage (one call of the model),
``model_usage_since_last_result`` (what this process spent, nested agents and aborted calls included), and
``modelUsage`` with ``total_cost_usd`` (the whole session with its earlier runs, and a fork's parent).
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final

from dragoman.adapters.claude_code.fields import Fields, count, inner, moment, number, text
from dragoman.v1 import event_pb2 as pb

_COST_DIGITS: Final = Decimal("0.0000000001")
"""Costs come as binary floating point; beyond ten digits there is only noise."""

_MOST_TOKENS: Final = 2**63 - 1

_MODEL_TOKENS: Final = {
    "inputTokens": "input",
    "outputTokens": "output",
    "cacheReadInputTokens": "cache_read",
    "cacheCreationInputTokens": "cache_write",
    "thinkingTokens": "reasoning",
}
_MESSAGE_TOKENS: Final = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_write",
}
PROVIDER: Final = "anthropic"
"""Whose models they are, whoever serves them."""
_FIRST_PARTY: Final = ("firstParty", "")

UNPRICED: Final = "unknown"
"""The ``costBasis`` of a model whose price Claude Code does not know; its ``costUSD`` is a guess."""


def call_usage(usage: Fields, model: str) -> pb.Usage:
    """Return what one call of the model used."""
    made = pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA)
    _read_tokens(made.tokens, usage, _MESSAGE_TOKENS)
    thinking = count(inner(usage, "output_tokens_details"), "thinking_tokens")
    if thinking is not None:
        made.tokens.reasoning = thinking
    if model:
        made.models.add(model=model).tokens.CopyFrom(made.tokens)
    return made


def context_used(tokens: pb.TokenCounts) -> int | None:
    """Return how full the context is after a call; None if the call did not say."""
    if not tokens.HasField("input"):
        return None
    return tokens.input + tokens.cache_read + tokens.cache_write + tokens.output


def rate_limits(info: Fields) -> list[pb.RateLimit]:
    """Return the limits in a ``rate_limit_info``: each window, or the one it is about."""
    windows = inner(info, "unifiedWindows")
    known = [_rate_limit(name, inner(windows, name)) for name in windows if inner(windows, name)]
    main = text(info, "rateLimitType")
    if any(limit.window == main for limit in known):
        return known
    return [_rate_limit(main, info), *known] if main or text(info, "status") else known


def _rate_limit(window: str, info: Fields) -> pb.RateLimit:
    limit = pb.RateLimit(window=window, status=text(info, "status"))
    resets_at = moment(info, "resetsAt")
    if resets_at is not None:
        limit.resets_at.FromDatetime(resets_at)
    used = number(info, "utilization")
    if used is not None:
        limit.used_percent = round(used * 100, 6)
    return limit


class RunTotals:
    """What the run used, over all its results: there is a further one for each background task that ends."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, Decimal]] = {}
        self._providers: dict[str, str] = {}
        self._unpriced: set[str] = set()
        self._fallback: pb.TokenCounts | None = None
        self.context_size: int | None = None
        """Tokens that the model in use can hold."""

    def add(self, result: Fields, main_model: str) -> None:
        """Take a ``result`` frame."""
        models = inner(result, "model_usage_since_last_result")
        for model in models:
            self._add_model(model, inner(models, model))
        # Only the models used since the last result are listed, so the main one may be missing.
        size = count(inner(models, main_model), "contextWindow")
        self.context_size = size or self.context_size
        if not models:
            self._fallback = pb.TokenCounts()
            _read_tokens(self._fallback, inner(result, "usage"), _MESSAGE_TOKENS)

    def _add_model(self, model: str, usage: Fields) -> None:
        sums = self._models.setdefault(model, {})
        for key in (*_MODEL_TOKENS, "costUSD"):
            value = number(usage, key)
            if value is not None:
                sums[key] = sums.get(key, Decimal(0)) + Decimal(repr(value))
        self._providers[model] = text(usage, "provider")
        if text(usage, "costBasis") == UNPRICED:
            self._unpriced.add(model)

    def usage(self, billing: pb.BillingType.ValueType) -> pb.Usage | None:
        """Return the run's totals; None if no result came."""
        if not self._models and self._fallback is None:
            return None
        made = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
        for model, sums in self._models.items():
            self._write_model(made.models.add(model=model), sums, self._cost(model, billing))
        if not self._models and self._fallback is not None:
            made.tokens.CopyFrom(self._fallback)
        else:
            _sum_tokens(made.tokens, (item.tokens for item in made.models))
        # A total that leaves out a model would look like a price.
        if made.models and all(item.HasField("cost") for item in made.models):
            total = sum((Decimal(item.cost.amount) for item in made.models), Decimal(0))
            made.cost.CopyFrom(made.models[0].cost)
            made.cost.amount = _amount(total)
        if self.context_size is not None:
            made.context_size = self.context_size
        return made

    def _write_model(self, item: pb.ModelUsage, sums: Mapping[str, Decimal], cost: pb.Cost | None) -> None:
        item.tokens.SetInParent()
        for key, name in _MODEL_TOKENS.items():
            if key in sums:
                setattr(item.tokens, name, min(int(sums[key]), _MOST_TOKENS))
        if cost is not None:
            item.cost.CopyFrom(cost)

    def _cost(self, model: str, billing: pb.BillingType.ValueType) -> pb.Cost | None:
        amount = self._models[model].get("costUSD")
        if amount is None or model in self._unpriced:
            return None
        server = self._providers[model]
        direct = server in _FIRST_PARTY
        return pb.Cost(
            amount=_amount(amount),
            currency="USD",
            basis=pb.COST_BASIS_REPORTED,
            provider=PROVIDER,
            biller="" if direct else server,
            billing_type=billing if direct else pb.BILLING_TYPE_METERED_API,
        )


def session_usage(result: Fields) -> pb.Usage | None:
    """Return the session's totals so far; None if the result does not say. Never to be taken for the run's."""
    models = inner(result, "modelUsage")
    if not models:
        return None
    made = pb.Usage(scope=pb.USAGE_SCOPE_SESSION, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    for model in models:
        _read_tokens(made.models.add(model=model).tokens, inner(models, model), _MODEL_TOKENS)
    _sum_tokens(made.tokens, (item.tokens for item in made.models))
    cost = number(result, "total_cost_usd")
    if cost is not None and not any(text(inner(models, model), "costBasis") == UNPRICED for model in models):
        amount = _amount(Decimal(repr(cost)))
        made.cost.CopyFrom(pb.Cost(amount=amount, currency="USD", basis=pb.COST_BASIS_REPORTED))
    return made


def _read_tokens(tokens: pb.TokenCounts, usage: Fields, names: Mapping[str, str]) -> None:
    for key, name in names.items():
        value = count(usage, key)
        if value is not None:
            setattr(tokens, name, value)


def _sum_tokens(total: pb.TokenCounts, parts: Iterable[pb.TokenCounts]) -> None:
    for part in parts:
        for field, value in part.ListFields():
            setattr(total, field.name, min(getattr(total, field.name) + value, _MOST_TOKENS))


def _amount(value: Decimal) -> str:
    rounded = value.quantize(_COST_DIGITS) if value < 10**12 else value
    plain = f"{rounded:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain
