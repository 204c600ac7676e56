"""``dragoman budgets``: what the budgets of a router's operator have left."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from dragoman.cli.commands._options import json_option, router_option
from dragoman.cli.connection.connect import run_connected
from dragoman.cli.display.printing import print_list
from dragoman.cli.display.style import Segment
from dragoman.cli.display.table import table
from dragoman.cli.display.text import enum_label, moment, one_line
from dragoman.v1 import router_pb2

if TYPE_CHECKING:
    from dragoman.client import Client

_COUNTS = ("input_tokens", "output_tokens", "model_calls", "tool_calls", "runs")


@click.command("budgets")
@click.argument("name", required=False, default="")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum number.")
@json_option("Print one line of JSON per budget, a BudgetStatus.")
@router_option()
def budgets_command(name: str, limit: int, as_json: bool, router: str | None) -> int:
    """List what the budgets of the router's operator have left in the present period, or only those of NAME.

    The operator sets them in the policy: see 'dragoman serve --policy'.
    """

    async def work(client: "Client") -> None:
        budgets = await client.list_budgets(name, limit=limit)
        print_list(budgets, _table(budgets), as_json=as_json)

    return run_connected(router, work)


def _table(budgets: Sequence[router_pb2.BudgetStatus]) -> list[list[Segment]]:
    head = ("BUDGET", "OF", "PERIOD", "SPENT", "LIMIT", "LEFT", "RESETS (UTC)")
    rows = [row for budget in budgets for row in _rows(budget)]
    return table(head, rows, empty="no budgets of which runs have used anything")


def _rows(budget: router_pb2.BudgetStatus) -> list[tuple[str, ...]]:
    """Return a row for each cap."""
    value = one_line(budget.value, 40) or "(none)"
    whose = f"{one_line(budget.field, 40)} {value}" if budget.field else "all runs"
    period = enum_label(router_pb2.BudgetPeriod.DESCRIPTOR, budget.period, "BUDGET_PERIOD_")
    resets = moment(budget.resets_at, "%Y-%m-%d %H:%M") or "-"
    rows = []
    if budget.limit.cost:
        amounts = (budget.spent, budget.limit, budget.left)
        costs = tuple(f"{one_line(one.cost, 30)} {one_line(one.currency, 8)}" for one in amounts)
        rows.append((one_line(budget.name, 64), whose, period, *costs, resets))
    for cap in _COUNTS:
        if budget.limit.HasField(cap):  # type: ignore[arg-type] # a cap
            spent, limit, left = (getattr(one, cap) for one in (budget.spent, budget.limit, budget.left))
            noun = cap.replace("_", " ")
            text = f"{limit:,} {noun.removesuffix('s') if limit == 1 else noun}"
            rows.append((one_line(budget.name, 64), whose, period, f"{spent:,}", text, f"{left:,}", resets))
    return rows
