"""Tokens and cost, as the protocol counts them. Pure.

OpenClaw counts what was read from a cache apart from the input, and tells the sums of the run when it ends.
Its cost is what the prices in its configuration come to; without prices it is 0, which is then no cost at all.
"""

from decimal import Decimal

from dragoman.sdk import fields as read
from dragoman.sdk.fields import Fields
from dragoman.v1 import event_pb2 as pb


def run_usage(meta: Fields) -> pb.Usage | None:
    """Return what a run used, by its ``agentMeta``; None if it does not say."""
    told = read.inner(meta, "usage")
    if not told:
        return None
    made = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    names = {
        "input": "input",
        "output": "output",
        "cache_read": "cacheRead",
        "cache_write": "cacheWrite",
        "reasoning": "reasoningTokens",
    }
    for ours, theirs in names.items():
        tokens = read.count(told, theirs)
        if tokens is not None:
            setattr(made.tokens, ours, tokens)
    total = read.number(read.inner(told, "cost"), "total")
    if total:
        made.cost.CopyFrom(
            pb.Cost(
                amount=f"{Decimal(repr(total)):f}",
                currency="USD",
                basis=pb.COST_BASIS_REPORTED,
                provider=read.text(meta, "provider"),
            )
        )
    used, size = read.count(meta, "promptTokens"), read.count(meta, "contextTokens")
    if used is not None:
        made.context_used = used
    if size is not None:
        made.context_size = size
    return made
