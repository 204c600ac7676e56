"""Tokens, as the contract counts them: one event for each call of the model, nested agents' included. Pure."""

from typing import Final

from dragoman.sdk import parsing
from dragoman.sdk.fields import Fields, count, text
from dragoman.v1 import event_pb2 as pb

_MOST: Final = 2**63 - 1
_NAMES: Final = {
    "inputTokens": "input",
    "outputTokens": "output",
    "cacheReadTokens": "cache_read",
    "cacheWriteTokens": "cache_write",
    "reasoningTokens": "reasoning",
}


def call_usage(data: Fields) -> pb.Usage:
    """Return what one call of the model used (``assistant.usage``). Copilot counts cached tokens as input too."""
    tokens, taken = parsing.token_counts(data, _NAMES), count(data, "inputTokens")
    if tokens is not None and taken is not None:
        tokens.input = max(0, taken - tokens.cache_read - tokens.cache_write)
    usage = parsing.call_usage(tokens, text(data, "model"))
    if tokens is not None and taken is not None:
        usage.context_used = min(taken + tokens.output, _MOST)
    return usage
