"""What becomes of an input for an agent's present turn."""

import base64
import json
from typing import Any, ClassVar, Final

import pytest
from dragoman.client import RunStream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.choosing import INPUT_GATE
from tests.agents.filing import NOTES, PNG
from tests.agents.harness import Harness, Recipe, Seen, when

WORDS: Final = "Prefer the colour heliotrope from now on."
_ALLOWED: Final = pb.Permissions(auto_approve=True)


def _is_running(event: pb.AgentEvent) -> bool:
    return event.state.phase == pb.RUN_PHASE_RUNNING


async def steer(stream: RunStream) -> None:
    """Send an input for the present turn, twice: it is one."""
    sent = await stream.send(WORDS, mode=pb.INPUT_MODE_STEER, input_id="word")
    again = await stream.send(WORDS, mode=pb.INPUT_MODE_STEER, input_id="word")
    assert sent == again


def settled(seen: Seen) -> list[str]:
    """Return what the events say of the input, in order."""
    found = {"message": "taken", "input_accepted": "accepted", "input_dropped": "dropped"}
    kinds = ((event, event.WhichOneof("body") or "") for event in seen.events)
    return [found[kind] for event, kind in kinds if kind in found and getattr(event, kind).input_id == "word"]


class SteeringTests:
    """Tests that all adapters share whose agents take inputs in their present turn."""

    recipe: ClassVar[Recipe]

    @pytest.mark.proves("input in the present turn", features=(pb.FEATURE_STEER,), uses=("shell",))
    async def test_an_input_reaches_the_model_in_the_present_turn(self, harness: Harness) -> None:
        over = harness.workspace / "over"

        async def act(stream: RunStream) -> None:
            await steer(stream)
            over.touch()

        prompt = 'MOCK_ROUNDS command="until test -e over; do sleep 0.1; done"'
        react = when(lambda event: event.tool_call.status == pb.TOOL_STATUS_RUNNING, act)
        seen = await harness.run(prompt, react=react, permissions=_ALLOWED, leaves=["over"])
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert settled(seen) == ["accepted", "taken"]
        assert seen.text.count("Three rounds.") == 1, "it is one turn"
        (message,) = [message for message in seen.of("message") if message.input_id]
        assert (message.role, message.text) == (pb.MESSAGE_ROLE_USER, WORDS)
        assert heard(harness), "it did not reach the model"
        # Before the turn's last answer, so that the model could heed it.
        bodies = [(event.WhichOneof("body"), event) for event in seen.events]
        taken = next(at for at, (kind, event) in enumerate(bodies) if kind == "message" and event.message.input_id)
        assert taken < max(at for at, (kind, _) in enumerate(bodies) if kind == "text")

    async def test_files_of_an_input_reach_the_model_in_the_present_turn(self, harness: Harness) -> None:
        if not harness.has(pb.FEATURE_STEER) or harness.lacks("shell"):
            pytest.skip("it takes no input in its present turn, or has no commands")
        over = harness.workspace / "over"
        image = api.Attachment(name="a pixel.png", media_type="image/png", content=PNG)
        sees = harness.has(pb.FEATURE_IMAGES)

        async def act(stream: RunStream) -> None:
            files = [NOTES, image] if sees else [NOTES]
            await stream.send(WORDS, mode=pb.INPUT_MODE_STEER, attachments=files, input_id="word")
            over.touch()

        prompt = 'MOCK_ROUNDS command="until test -e over; do sleep 0.1; done"'
        react = when(lambda event: event.tool_call.status == pb.TOOL_STATUS_RUNNING, act)
        model = self.recipe.seeing_model if sees else ""
        seen = await harness.run(prompt, react=react, permissions=_ALLOWED, leaves=["over"], model=model)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert settled(seen) == ["accepted", "taken"]
        assert seen.text.count("Three rounds.") == 1, "it is one turn"
        (accepted,) = seen.of("input_accepted")
        assert list(accepted.attachments) == (["notes.txt", "a pixel.png"] if sees else ["notes.txt"])
        bodies = json.dumps([request.body for request in harness.model_requests])
        assert "- notes.txt (text/plain, 22 bytes)" in bodies
        if sees:
            assert base64.b64encode(PNG).decode() in bodies

    @pytest.mark.proves("input at the end of a turn", features=(pb.FEATURE_STEER,), uses=())
    async def test_an_input_for_a_turn_that_ends_is_not_lost(self, harness: Harness) -> None:
        async def act(stream: Any) -> None:
            await harness.model_waits(INPUT_GATE)
            await steer(stream)
            harness.model.release(INPUT_GATE)

        seen = await harness.run(
            "MOCK_WAIT_FOR_INPUT", react=when(lambda event: event.state.phase == pb.RUN_PHASE_RUNNING, act)
        )
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert settled(seen) == ["accepted", "taken"], "it is another turn, in the same session"
        assert heard(harness)

    @pytest.mark.proves("cancel with an input that waits", features=(pb.FEATURE_STEER,), uses=())
    async def test_an_input_of_a_cancelled_run_is_dropped(self, harness: Harness) -> None:
        async def act(stream: Any) -> None:
            await harness.model_waits()
            await steer(stream)
            await stream.cancel(grace_s=self.recipe.grace_s)

        seen = await harness.run(
            "MOCK_STALL", react=when(lambda event: event.state.phase == pb.RUN_PHASE_RUNNING, act)
        )
        assert seen.result.outcome == pb.OUTCOME_CANCELLED
        assert settled(seen) in (["accepted", "dropped"], ["accepted", "taken"])
        assert ("dropped" in settled(seen)) == bool(seen.of("input_dropped"))


def heard(harness: Harness) -> bool:
    """Return whether the words reached the model."""
    return any(WORDS in json.dumps(request.body) for request in harness.model_requests)
