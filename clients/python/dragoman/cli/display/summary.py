"""The summary line of a run, and its exit code."""

from typing import Literal

from dragoman.cli.display.style import Style
from dragoman.cli.display.text import UNKNOWN, count, enum_label, money, one_line, span
from dragoman.cli.exit_codes import EXIT_CANCELLED, EXIT_FAILED, EXIT_OK
from dragoman.v1 import event_pb2 as pb

_Field = Literal["input", "output", "cache_read", "cache_write"]


def exit_code(result: pb.Result) -> int:
    """Return 0 only for a run that succeeded."""
    if result.outcome == pb.OUTCOME_SUCCEEDED:
        return EXIT_OK
    return EXIT_CANCELLED if result.outcome == pb.OUTCOME_CANCELLED else EXIT_FAILED


def last_line(result: pb.Result, run_id: str) -> str:
    """Return outcome, duration, tokens, cost and run ID; a missing value is shown as unknown, not as zero.

    Example: ``succeeded in 3.2 s · 1,234 in / 56 out tokens · $0.0026 · run run-0a1b``.
    """
    outcome = enum_label(pb.Outcome.DESCRIPTOR, result.outcome, "OUTCOME_")
    duration = span(result.duration) if result.HasField("duration") else f"{UNKNOWN} time"
    return f"{outcome} in {duration} · {_tokens(result)} · {_cost(result)} · run {one_line(run_id)}"


def _tokens(result: pb.Result) -> str:
    totals = _totals(result.usage)
    if totals is None:
        return f"tokens {UNKNOWN}"
    cached = totals.cache_read + totals.cache_write
    more = f" + {count(cached)} cached" if cached else ""
    return f"{_amount(totals, 'input')} in{more} / {_amount(totals, 'output')} out tokens"


def _amount(tokens: pb.TokenCounts, field: _Field) -> str:
    return count(getattr(tokens, field)) if tokens.HasField(field) else UNKNOWN


def _totals(usage: pb.Usage) -> pb.TokenCounts | None:
    if usage.HasField("tokens"):
        return usage.tokens
    counted = [model.tokens for model in usage.models if model.HasField("tokens")]
    if not counted:
        return None
    totals = pb.TokenCounts()
    fields: tuple[_Field, ...] = ("input", "output", "cache_read", "cache_write")
    for field in fields:
        # A sum with an unknown summand is unknown.
        if all(tokens.HasField(field) for tokens in counted):
            setattr(totals, field, sum(getattr(tokens, field) for tokens in counted))
    return totals


def _cost(result: pb.Result) -> str:
    usage = result.usage
    if usage.HasField("cost"):
        amount = money(usage.cost)
        return amount if amount != UNKNOWN else f"cost {UNKNOWN}"
    return f"cost {UNKNOWN}"


def has_unconfirmed_processes(result: pb.Result) -> bool:
    """Return whether the state of the run's processes is shown without a request for it."""
    is_unproven = result.HasField("tree_confirmed_dead") and not result.tree_confirmed_dead
    return is_unproven or result.outcome in {pb.OUTCOME_CANCELLED, pb.OUTCOME_LOST}


def is_confirmed_dead(result: pb.Result) -> bool:
    """Return whether no process of the run is left: its adapter confirmed that, or starts none."""
    if not result.HasField("tree_confirmed_dead"):
        return result.outcome != pb.OUTCOME_LOST
    return result.tree_confirmed_dead


def outcome_style(result: pb.Result) -> Style:
    """Return the style of the summary line."""
    return Style.ASSISTANT if result.outcome == pb.OUTCOME_SUCCEEDED else Style.ERROR


def processes(result: pb.Result) -> str:
    """Describe whether all processes of the run are confirmed dead."""
    if not result.HasField("tree_confirmed_dead"):
        if result.outcome == pb.OUTCOME_LOST:
            return "its processes may still run; check for them"
        return "its adapter reports no processes"
    if result.tree_confirmed_dead:
        return "all processes of the run are confirmed dead"
    return "its processes are NOT confirmed dead; check for them"
