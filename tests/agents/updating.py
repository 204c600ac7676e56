"""What becomes of a change of an agent's model or permission mode while it works."""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

import pytest
from dragoman.client import DragomanError, Reason, RunStream
from dragoman.testkit.model_server.script import Scenario, Tool, call, say
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Harness, Recipe, Seen, answering, when

_ALLOWED: Final = pb.Permissions(auto_approve=True)
_ROUNDS: Final = 'MOCK_ROUNDS command="until test -e over; do sleep 0.1; done"'
_UNKNOWN_MODE: Final = "dragoman-no-such-mode"


TWO_FILES: Final = Scenario(
    "TWO_FILES",
    "makes a file, then another one",
    (
        call(Tool("shell", {"command": "touch a.txt"})),
        call(Tool("shell", {"command": "touch b.txt"})),
        say("Two files."),
    ),
)


def _calls_a_tool(event: pb.AgentEvent) -> bool:
    return bool(event.tool_call.input_json)  # not every agent reports that it runs


def changes(seen: Seen) -> list[tuple[str, str]]:
    """Return what the events say was changed, in order."""
    return [(updated.model, updated.permission_mode) for updated in seen.of("run_updated")]


async def decides_about_the_next_action(harness: Harness, mode: str) -> None:
    """Check that the agent asks about the first action, and not about the one after a change of its mode."""

    async def react(event: pb.AgentEvent, stream: RunStream) -> None:
        if event.HasField("input_request"):
            await stream.update(permission_mode=mode)
            await once(event, stream)

    once = answering("allow_once")
    seen = await harness.run(
        f"MOCK_{TWO_FILES.name}",
        react=react,
        permissions=pb.Permissions(interactive=True),
        leaves=["a.txt", "b.txt"],
    )
    assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
    assert len(seen.of("tool_result")) == 2
    assert len(seen.of("input_request")) == 1, "the second call is not asked about"


class UpdateTests:
    """Tests that all adapters share whose agents take another model or permission mode while they work."""

    recipe: ClassVar[Recipe]

    async def _run(self, harness: Harness, act: Callable[[RunStream], Awaitable[None]], **fields: Any) -> Seen:
        fields |= {"permissions": _ALLOWED, "config": dict(self.recipe.updating)}
        return await harness.run(_ROUNDS, react=when(_calls_a_tool, act), leaves=["over"], **fields)

    @pytest.mark.proves("another model in mid-run", features=(pb.FEATURE_UPDATE_MODEL,), uses=("shell",))
    async def test_the_next_call_of_the_model_names_another_one(self, harness: Harness) -> None:
        sequences: list[int] = []
        before: list[str] = []

        async def act(stream: Any) -> None:
            before.append(harness.conversation().model)
            sequences.append((await stream.update(model=self.recipe.other_model)).sequence)
            await stream.send("MOCK_TEXT", input_id="more")
            (harness.workspace / "over").touch()

        seen = await self._run(harness, act, model=self.recipe.first_model)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert changes(seen) == [(self.recipe.other_model, "")]
        assert [event.sequence for event in seen.events if event.HasField("run_updated")] == sequences
        asked = [harness.conversation(number).model for number in range(len(harness.model_requests))]
        named = [model.startswith(self.recipe.other_model) for model in asked]
        assert not before[0].startswith(self.recipe.other_model)
        assert True in named, asked
        later = named[named.index(True) :]
        assert len(later) > 1, "the queued turn has the model, too"
        assert all(later), asked

    @pytest.mark.proves(
        "another permission mode in mid-run", features=(pb.FEATURE_UPDATE_PERMISSION_MODE,), uses=("shell",)
    )
    async def test_the_agent_takes_another_mode_and_rejects_one_that_it_does_not_have(self, harness: Harness) -> None:
        sequences: list[int] = []
        refused: list[DragomanError] = []

        async def act(stream: Any) -> None:
            with pytest.raises(DragomanError) as caught:
                await stream.update(permission_mode=_UNKNOWN_MODE)
            refused.append(caught.value)
            sequences.append((await stream.update(permission_mode=self.recipe.other_mode)).sequence)
            (harness.workspace / "over").touch()

        seen = await self._run(harness, act)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        # By the agent, or by the adapter that knows its modes.
        assert refused[0].reason in {Reason.UPDATE_REFUSED, Reason.INVALID_REQUEST}
        assert changes(seen) == [("", self.recipe.other_mode)], "what was rejected is not recorded"
        assert [event.sequence for event in seen.events if event.HasField("run_updated")] == sequences
        modes = [session.mode for session in seen.of("session") if session.mode]
        assert modes[-1] == self.recipe.other_mode
        assert modes[0] != modes[-1]
