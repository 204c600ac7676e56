"""``--budget`` of ``dragoman run``: caps in words, such as ``2 USD`` or ``100k input tokens``. Pure."""

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

import click
from dragoman.protocol.budgets import MOST_TOKENS
from dragoman.v1 import event_pb2 as pb

_CAP: Final = re.compile(r"(?P<amount>[0-9]+(?:\.[0-9]+)?)(?P<unit>[kM]?)\s*(?P<what>[A-Za-z][A-Za-z _-]*)")
_UNITS: Final = {"": 1, "k": 1_000, "M": 1_000_000}
_FIELDS: Final = {
    "input tokens": ("input_tokens",),
    "output tokens": ("output_tokens",),
    "tokens": ("input_tokens", "output_tokens"),
    "model calls": ("model_calls",),
    "tool calls": ("tool_calls",),
    "turns": ("turns",),
    "repeats": ("repeats",),
}
"""The caps by what they count; ``tokens`` caps input and output each."""
_MOST: Final = {"input_tokens": MOST_TOKENS, "output_tokens": MOST_TOKENS}
_MOST_OTHERS: Final = 2**32 - 1
_ASK: Final = "ask"
_EXPECTED: Final = (
    f"an amount and what it caps: '2 USD', '100k tokens', '20 tool calls'; of {', '.join(_FIELDS)}; or {_ASK}"
)


def budget(texts: Iterable[str]) -> pb.Budget:
    """Read the caps of a run; without any, the budget is empty.

    Args:
        texts: caps as a person writes them; ``ask`` asks before a cap.

    Raises:
        click.BadParameter: one is malformed, or two are about the same.
    """
    caps = pb.Budget()
    for text in texts:
        words = " ".join(text.split())
        if words == _ASK:
            caps.ask = True
            continue
        found = _CAP.fullmatch(words)
        what = " ".join(re.split(r"[ _-]+", found["what"].strip())) if found is not None else ""
        if found is None or not (what.lower() in _FIELDS or re.fullmatch(r"[A-Z]{3}", what)):
            raise _wrong(f"{text!r} is not {_EXPECTED}")
        amount = Decimal(found["amount"]) * _UNITS[found["unit"]]
        if what.lower() in _FIELDS:
            _count(caps, text, what.lower(), amount)
        elif caps.cost:
            raise _wrong(f"{text!r}: a cost is given twice")
        else:
            caps.cost, caps.currency = f"{amount:f}", what
    if caps.ask and caps == pb.Budget(ask=True):
        raise _wrong(f"{_ASK!r} needs a cap beside it")
    return caps


def _count(caps: pb.Budget, text: str, what: str, amount: Decimal) -> None:
    for name in _FIELDS[what]:
        if amount != int(amount) or amount > _MOST.get(name, _MOST_OTHERS):
            raise _wrong(f"{text!r}: {what} must be a whole number, and not that large")
        if caps.HasField(name):  # type: ignore[arg-type]  # one of the names above
            raise _wrong(f"{text!r}: {name.replace('_', ' ')} are given twice")
        setattr(caps, name, int(amount))


def _wrong(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--budget")
