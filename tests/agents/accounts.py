"""An agent's account: its login, and its rate limits."""

from contextlib import aclosing
from typing import ClassVar

import pytest
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Harness, Recipe


class AccountTests:
    """Tests that all adapters share whose agents log in, or report the rate limits of their account."""

    recipe: ClassVar[Recipe]

    @pytest.mark.proves("rate limits of the account", features=(pb.FEATURE_QUOTA,), uses=())
    async def test_the_rate_limits_of_its_account(self, harness: Harness) -> None:
        assert self.recipe.account is not None
        async with self.recipe.account(harness) as limits:
            response = await harness.client.get_quota(harness.adapter, env=harness.env)
        assert not response.HasField("failure")
        assert list(response.windows) == limits
        assert harness.model_requests == [], "it costs no tokens"

    @pytest.mark.proves("login by a page", features=(pb.FEATURE_LOGIN,), uses=())
    async def test_a_login_by_a_page(self, harness: Harness) -> None:
        assert self.recipe.issuer is not None
        async with (
            self.recipe.issuer(harness) as (env, visit),
            aclosing(harness.client.login(harness.adapter, env=env)) as steps,
        ):
            prompt = (await anext(steps)).prompt
            assert prompt.url
            await visit(prompt.url)
            rest = [step async for step in steps]
        assert rest == [api.LoginResponse(outcome=api.LoginOutcome())]
        assert harness.model_requests == [], "it costs no tokens"
