"""Tokens, as the protocol counts them: one event for each call of the model, nested agents' included. Pure."""

from typing import Final

from dragoman.sdk.fields import Fields, count, text
from dragoman.v1 import event_pb2 as pb

_MOST: Final = 2**63 - 1


def call_usage(data: Fields) -> pb.Usage:
    """Return what one call of the model used (``assistant.usage``). Copilot counts cached tokens as input too."""
    made = pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA)
    cached = {"cache_read": count(data, "cacheReadTokens"), "cache_write": count(data, "cacheWriteTokens")}
    taken = count(data, "inputTokens")
    tokens = {
        **cached,
        "input": max(0, taken - sum(filter(None, cached.values()))) if taken is not None else None,
        "output": count(data, "outputTokens"),
        "reasoning": count(data, "reasoningTokens"),
    }
    for name, value in tokens.items():
        if value is not None:
            setattr(made.tokens, name, value)
    if text(data, "model"):
        made.models.add(model=text(data, "model")).tokens.CopyFrom(made.tokens)
    if taken is not None:
        made.context_used = min(taken + (tokens["output"] or 0), _MOST)
    return made
