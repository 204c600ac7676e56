"""Tokens of a run, added up from those of its calls. Absent is not zero. Pure."""

from dragoman.v1 import event_pb2 as pb

_COUNTS = ("input", "output", "cache_read", "cache_write", "reasoning")


def add(total: pb.Usage | None, call: pb.Usage) -> pb.Usage:
    """Return what a run has used with one more call of the model."""
    made = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    if total is not None:
        made.CopyFrom(total)
    _add(made.tokens, call.tokens)
    for share in call.models:
        known = next((item for item in made.models if item.model == share.model), None)
        _add((known or made.models.add(model=share.model)).tokens, share.tokens)
    tokens = call.tokens
    if tokens.HasField("input"):  # what the next question repeats
        made.context_used = tokens.input + tokens.cache_read + tokens.cache_write + tokens.output
    return made


def _add(total: pb.TokenCounts, more: pb.TokenCounts) -> None:
    for name in _COUNTS:
        if more.HasField(name):  # type: ignore[arg-type] # the names are those of the fields
            setattr(total, name, getattr(total, name) + getattr(more, name))
