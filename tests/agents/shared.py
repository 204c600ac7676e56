"""The tests that all adapters share and that have modules of their own."""

from tests.agents.budgeting import BudgetTests
from tests.agents.conforming import ConformanceTests
from tests.agents.filing import FilingTests
from tests.agents.queueing import QueueTests
from tests.agents.reading import ReadingTests
from tests.agents.sleepers import SleeperTests
from tests.agents.steering import SteeringTests


class SharedTests(ConformanceTests, FilingTests, QueueTests, ReadingTests, SleeperTests, BudgetTests, SteeringTests):
    """All of them."""
