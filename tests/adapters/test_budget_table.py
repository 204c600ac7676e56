"""The guide's table of what each agent reports for budgets is what the adapters declare."""

from pathlib import Path

import pytest
from dragoman.protocol.budgets import at_end_message, never_reported
from dragoman.v1 import event_pb2 as pb

from tests.adapters.golden_plans import ADAPTERS

GUIDE = Path(__file__).parents[2] / "docs/guides/budgets.md"
COLUMNS = {
    "tokens": (pb.Budget(input_tokens=1, output_tokens=1), "per call"),
    "model calls": (pb.Budget(model_calls=1), "per call"),
    "cost": (pb.Budget(cost="1"), "per call"),
    "tool calls, repeats": (pb.Budget(tool_calls=1, repeats=1), "as they happen"),
}


def shown(budget: pb.Budget, capabilities: pb.Capabilities, otherwise: str) -> str:
    """Return what the table has for such caps."""
    if never_reported(budget, capabilities):
        return "refused"
    return "at the end" if at_end_message(budget, capabilities) else otherwise


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_table_has_what_the_adapter_declares(name: str) -> None:
    declared = ADAPTERS[name].spec.capabilities
    cells = [f"`{name}`", *(shown(budget, declared, otherwise) for budget, otherwise in COLUMNS.values())]
    assert f"| {' | '.join(cells)} |" in GUIDE.read_text(encoding="utf-8").splitlines()
