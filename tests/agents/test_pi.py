"""The real pi through its adapter: what all agents must stand, and what only it does."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import ClassVar, Final

import pytest
from dragoman.adapters.pi import adapter
from dragoman.client import RunStream
from dragoman.sdk._detection.programs import script_version
from dragoman.testkit.profiles.pi import PI
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import BIN, TEST_S, Failing, Harness, Recipe, when
from tests.agents.steering import settled
from tests.agents.suite import ALLOWED, AgentSuite, proves

ROUNDS: Final = 'MOCK_ROUNDS command="until test -e over; do sleep 0.1; done"'
EXTENSION: Final = """
export default function (pi) {
  pi.on("input", async (event) => {
    if (event.text.startsWith("Change: ")) return { action: "transform", text: "[note] " + event.text };
    return { action: event.text.startsWith("Keep: ") ? "handled" : "continue" };
  });
}
"""

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

    async def test_another_provider_and_an_id_with_a_slash_hold_for_the_queued_turn(self, harness: Harness) -> None:
        own = own_directory(harness)
        models = json.loads((own / "models.json").read_text())
        scripted = models["providers"]["scripted"]
        ids = ("m-one", "acme/m-two")
        others = [{**scripted["models"][0], "id": model} for model in ids]
        models["providers"]["other"] = {**scripted, "models": others}
        (own / "models.json").write_text(json.dumps(models))

        async def act(stream: RunStream) -> None:
            await stream.update(model="other/m-one")
            await stream.update(model="acme/m-two")
            await stream.send("MOCK_TEXT", input_id="more")
            (harness.workspace / "over").touch()

        seen = await harness.run(
            ROUNDS,
            react=when(_runs_a_tool, act),
            permissions=ALLOWED,
            config={"provider": "scripted"},
            env={"PI_CODING_AGENT_DIR": str(own)},
            leaves=["over"],
        )
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        asked = [harness.conversation(number).model for number in range(len(harness.model_requests))]
        assert asked[0] == "scripted-1"
        assert asked[-2:] == ["acme/m-two"] * 2, "the end of the turn, and the queued one"

    @pytest.mark.parametrize("words", ["Change: use blue.", "Keep: use blue."])
    async def test_an_input_that_an_extension_changes_or_keeps_is_taken(self, harness: Harness, words: str) -> None:
        own = own_directory(harness)
        (own / "extensions").mkdir(exist_ok=True)
        (own / "extensions" / "note.ts").write_text(EXTENSION)

        async def act(stream: RunStream) -> None:
            await stream.send(words, mode=pb.INPUT_MODE_STEER, input_id="word")
            (harness.workspace / "over").touch()

        seen = await harness.run(
            ROUNDS,
            react=when(_runs_a_tool, act),
            permissions=ALLOWED,
            env={"PI_CODING_AGENT_DIR": str(own)},
            leaves=["over"],
        )
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert settled(seen) == ["accepted", "taken"]
        reached = any(f"[note] {words}" in json.dumps(request.body) for request in harness.model_requests)
        assert reached is words.startswith("Change")

    async def test_a_file_among_its_arguments_goes_to_the_model(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", config={"extraArgs": ["@README.md"]})
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert "A workspace." in harness.conversation_text()

    async def test_nothing_is_unparsed(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", permissions=pb.Permissions(auto_approve=True))
        assert seen.of("log") == []
        assert seen.notices == []


def own_directory(harness: Harness) -> Path:
    """Return a copy of pi's own directory, for one test alone."""
    own = harness.root / "pi"
    shutil.copytree(harness.isolation.config, own)
    return own


def _runs_a_tool(event: pb.AgentEvent) -> bool:
    return event.tool_call.status == pb.TOOL_STATUS_RUNNING
