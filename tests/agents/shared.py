"""The tests that all adapters share and that have modules of their own."""

from tests.agents.accounts import AccountTests
from tests.agents.budgeting import BudgetTests
from tests.agents.conforming import ConformanceTests
from tests.agents.filing import FilingTests
from tests.agents.queueing import QueueTests
from tests.agents.reading import ReadingTests
from tests.agents.sleepers import SleeperTests
from tests.agents.steering import SteeringTests
from tests.agents.updating import UpdateTests


class SharedTests(
    ConformanceTests,
    FilingTests,
    QueueTests,
    ReadingTests,
    SleeperTests,
    BudgetTests,
    SteeringTests,
    UpdateTests,
    AccountTests,
):
    """All of them."""
