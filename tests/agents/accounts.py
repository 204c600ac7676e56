"""What an agent reports of the rate limits of its account."""

from typing import ClassVar

import pytest
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Harness, Recipe


class AccountTests:
    """Tests that all adapters share whose agents can be asked for the rate limits of their account."""

    recipe: ClassVar[Recipe]

    @pytest.mark.proves("rate limits of the account", features=(pb.FEATURE_QUOTA,), uses=())
    async def test_the_rate_limits_of_its_account(self, harness: Harness) -> None:
        assert self.recipe.account is not None
        async with self.recipe.account(harness) as limits:
            response = await harness.client.get_quota(harness.adapter, env=harness.env)
        assert not response.HasField("failure")
        assert list(response.windows) == limits
        assert harness.model_requests == [], "it costs no tokens"
