"""The real pi through its adapter: what all agents must stand, and what only it does."""

import hashlib
from typing import ClassVar

import pytest
from dragoman.adapters.pi import adapter
from dragoman.sdk._detection.programs import script_version
from dragoman.testkit.profiles.pi import PI
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import BIN, TEST_S, Failing, Harness, Recipe
from tests.agents.suite import AgentSuite, proves

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]


class TestPi(AgentSuite):
    """Everything that all agents must stand."""

    recipe: ClassVar[Recipe] = Recipe(
        make=adapter,
        billing=pb.BILLING_TYPE_UNSPECIFIED,
        family=PI,
        executable="pi",
        unknown_session="00000000-0000-4000-8000-000000000000",
        failures={
            "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "pi_error", 400),
            "CUT_END": Failing(pb.FAILURE_KIND_NETWORK, "pi_error", retries=True),
            "MAX_TOKENS": Failing(pb.FAILURE_KIND_OUTPUT_LIMIT, "pi_length"),
            "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "pi_error", 401),
            "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "pi_error", 429, retries=True, first_unseen=True),
            "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "pi_error", 500, retries=True),
            "CUT": Failing(pb.FAILURE_KIND_NETWORK, "pi_error", retries=True),
        },
        auth=api.AUTH_STATE_UNKNOWN,
        tested=api.TEST_STATUS_PASS,
        lacks=["usage_when_cancelled"],
        other_model="scripted-2",
        unset=adapter().spec.inherit,
    )

    def test_its_package_says_its_version(self) -> None:
        program = BIN.parent / "pi/node_modules/.bin/pi"
        assert script_version(program, adapter().spec.npm_package, str(BIN)) == self.recipe.tested_version

    @proves("300 KB prompt")
    async def test_a_prompt_of_300_kb(self, harness: Harness) -> None:
        prompt = "MOCK_ECHO " + "Grüße\u2028" * 34_000 + "."  # pi trims what it reads
        seen = await harness.run(prompt)
        assert f"sha256={hashlib.sha256(prompt.encode()).hexdigest()}" in seen.text

    async def test_a_rule_for_a_tool_gives_it_and_no_other(self, harness: Harness) -> None:
        allow = pb.PermissionRule(decision=pb.PERMISSION_DECISION_ALLOW, tool_name="write")
        rules = pb.Permissions(rules=[allow])
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=rules, leaves=["notes.txt"])
        assert set(harness.conversation().tools) == {"read", "grep", "find", "ls", "write"}
        assert seen.notices == ["tools_withheld"]

    async def test_nothing_is_unparsed(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", permissions=pb.Permissions(auto_approve=True))
        assert seen.of("log") == []
        assert seen.notices == []
