"""Tokens and cost, as the protocol counts them. Pure.

Three counts run side by side and only one of them is the run's: a message's own usage (one call of the model),
``model_usage_since_last_result`` (what this process spent, nested agents and aborted calls included), and
``modelUsage`` with ``total_cost_usd`` (the whole session with its earlier runs, and a fork's parent).
"""

from decimal import Decimal
from typing import Final

from dragoman.sdk.detection import Billing
from dragoman.sdk.fields import Fields, count, inner, number, text, unix_moment
from dragoman.sdk.parsing import add_call, call_usage, cost_in_dollars, rate_limit, run_usage, token_counts
from dragoman.v1 import event_pb2 as pb

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
    "thinking_tokens": "reasoning",
}
PROVIDER: Final = "anthropic"
"""The models' maker; a cloud may serve them."""
_FIRST_PARTY: Final = ("firstParty", "")
_NO_KEY: Final = frozenset({"", "none", "oauth"})
"""Values of ``apiKeySource`` if no API key pays."""

UNPRICED: Final = "unknown"
"""The ``costBasis`` of a model whose price Claude Code does not know; its ``costUSD`` is a guess."""


def message_usage(usage: Fields, model: str) -> pb.Usage:
    """Return what one call of the model used."""
    details = inner(usage, "output_tokens_details")
    return call_usage(token_counts({**details, **usage}, _MESSAGE_TOKENS), model)


def _rate_limits(info: Fields) -> list[pb.RateLimit]:
    """Return the limits in a ``rate_limit_info``: each window, or the one it is about."""
    windows = inner(info, "unifiedWindows")
    known = [_rate_limit(name, inner(windows, name)) for name in windows if inner(windows, name)]
    main = text(info, "rateLimitType")
    if any(limit.window == main for limit in known):
        return known
    return [_rate_limit(main, info), *known] if main or text(info, "status") else known


def _rate_limit(window: str, info: Fields) -> pb.RateLimit:
    used = number(info, "utilization")
    percent = None if used is None else round(used * 100, 6)
    return rate_limit(window, percent, unix_moment(info, "resetsAt"), text(info, "status"))


class RunTotals:
    """What the run used, over all its results, and who pays. Each background task that ends brings another result."""

    def __init__(self) -> None:
        self.api_key_source = ""
        """Where Claude Code has its API key from, as it names it."""
        self._limits: list[pb.RateLimit] = []
        self._uses_overage = False
        self._usage: pb.Usage | None = None
        self._costs: dict[str, Decimal] = {}
        self._providers: dict[str, str] = {}
        self._unpriced: set[str] = set()
        self.context_size: int | None = None
        """Tokens that the model in use can hold."""

    def limits(self, info: Fields) -> list[pb.RateLimit]:
        """Handle a ``rate_limit_info``; return its limits."""
        self._limits = _rate_limits(info)
        self._uses_overage = info.get("isUsingOverage") is True
        return self._limits

    def add(self, result: Fields, main_model: str) -> None:
        """Handle a ``result`` frame."""
        models = inner(result, "model_usage_since_last_result")
        for model in models:
            self._add_model(model, inner(models, model))
        # Only the models used since the last result are listed, so the main one may be missing.
        size = count(inner(models, main_model), "contextWindow")
        self.context_size = size or self.context_size
        if not self._providers:
            self._usage = run_usage(token_counts(inner(result, "usage"), _MESSAGE_TOKENS))

    def _add_model(self, model: str, usage: Fields) -> None:
        self._usage = add_call(self._usage if self._providers else None, _model_call(model, usage))
        self._providers[model] = text(usage, "provider")
        cost = number(usage, "costUSD")
        if cost is not None:
            self._costs[model] = self._costs.get(model, Decimal(0)) + Decimal(repr(cost))
        if text(usage, "costBasis") == UNPRICED:
            self._unpriced.add(model)

    def usage(self) -> pb.Usage | None:
        """Return the run's totals; None if no result came."""
        if self._usage is None:
            return None
        usage = pb.Usage()
        usage.CopyFrom(self._usage)
        for item in usage.models:
            cost = self._cost(item.model)
            if cost is not None:
                item.cost.CopyFrom(cost)
        # A total that leaves out a model would look like a price.
        if usage.models and all(item.HasField("cost") for item in usage.models):
            usage.cost.CopyFrom(usage.models[0].cost)
            usage.cost.amount = cost_in_dollars(sum(Decimal(item.cost.amount) for item in usage.models)).amount
        usage.MergeFrom(pb.Usage(context_size=self.context_size, rate_limits=self._limits))
        return usage

    def billing(self) -> Billing:
        """Return who pays how: a cloud that served a model, else Anthropic."""
        cloud = next((server for server in self._providers.values() if server not in _FIRST_PARTY), "")
        if cloud:
            return Billing(pb.BILLING_TYPE_METERED_API, cloud)
        kind = self._billing_type()
        return Billing(kind, PROVIDER) if kind else Billing()

    def _billing_type(self) -> pb.BillingType.ValueType:
        if self.api_key_source not in _NO_KEY:
            return pb.BILLING_TYPE_API
        if not self._limits:
            return pb.BILLING_TYPE_UNSPECIFIED  # only subscriptions have limits
        return pb.BILLING_TYPE_SUBSCRIPTION_OVERAGE if self._uses_overage else pb.BILLING_TYPE_SUBSCRIPTION

    def _cost(self, model: str) -> pb.Cost | None:
        amount = self._costs.get(model)
        if amount is None or model in self._unpriced:
            return None
        server = self._providers[model]
        is_direct = server in _FIRST_PARTY
        cost = cost_in_dollars(amount)
        cost.provider = PROVIDER
        cost.biller = "" if is_direct else server
        cost.billing_type = self._billing_type() if is_direct else pb.BILLING_TYPE_METERED_API
        return cost


def session_usage(result: Fields) -> pb.Usage | None:
    """Return the session's totals so far, which are not the run's; None if the result has none."""
    models = inner(result, "modelUsage")
    usage: pb.Usage | None = None
    for model in models:
        usage = add_call(usage, _model_call(model, inner(models, model)))
    if usage is None:
        return None
    usage.scope = pb.USAGE_SCOPE_SESSION
    cost = number(result, "total_cost_usd")
    if cost is not None and not any(text(inner(models, model), "costBasis") == UNPRICED for model in models):
        usage.cost.CopyFrom(cost_in_dollars(cost))
    return usage


def _model_call(model: str, usage: Fields) -> pb.Usage:
    tokens = token_counts(usage, _MODEL_TOKENS)
    call = call_usage(tokens)
    call.models.add(model=model, tokens=tokens)
    return call
