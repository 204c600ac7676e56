"""What an operator's budgets cap, over many runs, and what is added up for them."""

from typing import Final, Literal

from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

Period = Literal["hour", "day", "month", "total"]
LABEL: Final = "label:"
"""What the field of a budget that goes by a label begins with."""
WARN_PERCENT: Final = 80
"""The share of a cap at which runs get a notice, unless the policy names another."""


class LabelBudget(Struct, frozen=True):
    """What the runs that have a value somewhere may use together in a period."""

    name: str
    caps: pb.Budget
    """Of these only the cost, tokens and calls."""
    period: Period
    runs: int | None = None
    """How many runs may start; ``None`` for any number."""
    field: str = ""
    """``company_id``, ``agent_id``, ``task_key``, or ``label:KEY``; empty: all runs share it."""
    value: str | None = None
    """The value of the runs that it is for; ``None``: each value has a budget of its own."""
    warn_percent: int = WARN_PERCENT

    @property
    def key(self) -> str:
        """What its accounts are kept under: amounts in different currencies cannot be added."""
        return f"{self.name} {self.caps.currency}" if self.caps.cost else self.name


class Account(Struct, frozen=True):
    """Where spending is added up: for one budget, one value and one period."""

    budget: str
    """The budget's key."""
    value: str
    since: int
    """When the period began, in seconds since the epoch; 0 for the one without an end."""
    until: int
    """When it ends; 0 for never."""


class Spent(Struct, frozen=True):
    """What runs have used."""

    cost: int = 0
    """In billionths of the currency, rounded up."""
    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    runs: int = 0


AMOUNTS: Final = Spent.__struct_fields__
"""The names of the amounts, in order."""
