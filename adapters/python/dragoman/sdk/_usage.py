"""Tokens of a run, added up from those of its calls. Absent is not zero. Pure."""

from typing import Final

from dragoman.v1 import event_pb2 as pb

_MOST: Final = 2**63 - 1


def add_call(total: pb.Usage | None, call: pb.Usage) -> pb.Usage:
    """Return what a run has used with one more call of the model.

    Args:
        total: what the calls before used; None before the first.
        call: what this one used, by model too if it has ``models``.
    """
    made = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    if total is not None:
        made.CopyFrom(total)
    _add(made.tokens, call.tokens)
    for item in call.models:
        share = next((known for known in made.models if known.model == item.model), None)
        _add((share or made.models.add(model=item.model)).tokens, item.tokens)
    return made


def _add(total: pb.TokenCounts, more: pb.TokenCounts) -> None:
    for field, value in more.ListFields():
        setattr(total, field.name, min(getattr(total, field.name) + value, _MOST))
