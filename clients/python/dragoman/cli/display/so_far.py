"""What a run has used so far, in words."""

from typing import Final

from dragoman.cli.display.text import UNKNOWN, count, money
from dragoman.protocol.budgets import MOST_TOKENS, BudgetMeter, amount_text
from dragoman.v1 import event_pb2 as pb

_CAPS: Final = pb.Budget(cost="999999999999", input_tokens=MOST_TOKENS, output_tokens=MOST_TOKENS)
"""More than any run uses: the meter counts what it has caps for."""


class SoFar:
    """Adds up what a run's events report."""

    def __init__(self) -> None:
        self._meter = BudgetMeter(_CAPS)

    def take(self, event: pb.AgentEvent) -> None:
        """Count an event."""
        self._meter.take(event)

    @property
    def text(self) -> str:
        """Cost and tokens, e.g. ``$0.0026 · 1,234 in / 56 out tokens so far``; empty while none are reported."""
        used, unknown = self._meter.used, self._meter.unreported
        parts = []
        if "cost" not in unknown:
            parts.append(money(pb.Cost(amount=amount_text(used.cost), currency="USD")))
        if not {"input_tokens", "output_tokens"} <= set(unknown):
            into = UNKNOWN if "input_tokens" in unknown else count(used.input_tokens)
            out = UNKNOWN if "output_tokens" in unknown else count(used.output_tokens)
            parts.append(f"{into} in / {out} out tokens")
        return f"{' · '.join(parts)} so far" if parts else ""
