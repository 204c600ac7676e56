"""Every adapter makes of each field of a request and each of its settings what was found right."""

import pytest

from tests.adapters.golden_plans import ADAPTERS, GOLDEN, shown
from tests.golden import assert_golden


@pytest.mark.parametrize("name", ADAPTERS)
def test_requests_come_to_their_golden_plans(name: str) -> None:
    assert_golden(GOLDEN / f"{name}.txt", shown(name))
