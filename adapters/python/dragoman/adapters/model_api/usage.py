"""Tokens of a run, added up from those of its calls. Absent is not zero. Pure."""

from dragoman.sdk.parsing import add_call
from dragoman.v1 import event_pb2 as pb


def add(total: pb.Usage | None, call: pb.Usage) -> pb.Usage:
    """Return what a run has used with one more call of the model."""
    usage = add_call(total, call)
    tokens = call.tokens
    if tokens.HasField("input"):  # what the next request repeats
        usage.context_used = tokens.input + tokens.cache_read + tokens.cache_write + tokens.output
    return usage
