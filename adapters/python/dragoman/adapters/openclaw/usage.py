"""Tokens and cost, as the contract counts them. Pure.

OpenClaw reports the sums of the run at its end, tokens read from a cache apart from the input. Its cost follows the
prices in its configuration; without prices it is 0, which then means no cost at all.
"""

from typing import Final

from dragoman.sdk import fields as read
from dragoman.sdk import parsing
from dragoman.sdk.fields import Fields
from dragoman.v1 import event_pb2 as pb

_TOKENS: Final = {
    "input": "input",
    "output": "output",
    "cacheRead": "cache_read",
    "cacheWrite": "cache_write",
    "reasoningTokens": "reasoning",
}


def run_usage(meta: Fields) -> pb.Usage | None:
    """Return what a run used, by its ``agentMeta``; None if it has no usage."""
    counts = read.inner(meta, "usage")
    if not counts:
        return None
    usage = parsing.run_usage(parsing.token_counts(counts, _TOKENS))
    total = read.number(read.inner(counts, "cost"), "total")
    if total:
        usage.cost.CopyFrom(parsing.cost_in_dollars(total))
        usage.cost.provider = read.text(meta, "provider")
    used, size = read.count(meta, "promptTokens"), read.count(meta, "contextTokens")
    usage.MergeFrom(pb.Usage(context_used=used, context_size=size))
    return usage
