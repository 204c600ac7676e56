"""Tokens and cost, as the protocol counts them. Pure."""

from decimal import Decimal, InvalidOperation
from typing import Final

from dragoman.sdk._encoding.fields import Fields, count, inner, number, text
from dragoman.v1 import event_pb2 as pb

_COST_DIGITS: Final = Decimal("0.0000000001")
"""Costs come as binary floating point; beyond ten digits there is only noise."""
_MOST_COST: Final = Decimal(10) ** 12


def read_tokens(usage: Fields) -> pb.TokenCounts | None:
    """Read a prompt's ``usage``; None if it says nothing.

    Agents disagree about what is part of what; where they give a total, it shows which: in some, input is with what
    was read from a cache and output with reasoning, in others each token is counted once.
    """
    names = ("inputTokens", "outputTokens", "cachedReadTokens", "cachedWriteTokens", "thoughtTokens")
    total_input, out, read, write, thought = (count(usage, name) for name in names)
    if total_input is None and out is None:
        return None
    cached = (read or 0) + (write or 0)
    total = count(usage, "totalTokens")
    parts = (total_input or 0) + (out or 0)
    # All apart unless the total says otherwise.
    input_has_cached = total is not None and cached > 0 and total in {parts, parts + (thought or 0)}
    output_has_thought = total is not None and total in {parts, parts + cached}
    tokens = pb.TokenCounts(cache_read=read, cache_write=write, reasoning=thought)
    if total_input is not None:
        tokens.input = max(0, total_input - cached) if input_has_cached else total_input
    if out is not None:
        tokens.output = out if output_has_thought else out + (thought or 0)
    return tokens


class SessionCost:
    """What a session has cost, and what of it is this run's.

    Args:
        before: what it had cost before this run, as was kept; None if unknown. 0 for a new session.
    """

    def __init__(self, before: Decimal | None) -> None:
        self._before = before
        self.total: Decimal | None = None
        self.currency = ""

    def take(self, update: Fields, *, is_history: bool) -> None:
        """Read a usage update.

        Args:
            update: the update.
            is_history: whether it came before this run's prompt.
        """
        cost = inner(update, "cost")
        amount = number(cost, "amount")
        if amount is None:
            return
        self.total, self.currency = Decimal(repr(amount)), text(cost, "currency")
        if is_history:
            self._before = self.total

    def of_run(self) -> pb.Cost | None:
        """Return what this run has cost; None if that is unknown."""
        if self.total is None or self._before is None or self.total < self._before:
            return None
        return self._cost(self.total - self._before)

    def of_session(self) -> pb.Cost | None:
        """Return what the session has cost so far; None if that is unknown."""
        return None if self.total is None else self._cost(self.total)

    def _cost(self, amount: Decimal) -> pb.Cost:
        return pb.Cost(amount=amount_text(amount), currency=self.currency, basis=pb.COST_BASIS_REPORTED)


def amount_text(value: Decimal) -> str:
    """Return an amount as a plain decimal number."""
    rounded = value.quantize(_COST_DIGITS) if value < _MOST_COST else value
    plain = f"{rounded:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def read_amount(kept: str | None) -> Decimal | None:
    """Return an amount that was kept as text; None if it is none."""
    if not kept:
        return None
    try:
        value = Decimal(kept)
    except InvalidOperation:
        return None
    return value if value.is_finite() and 0 <= value < _MOST_COST else None
