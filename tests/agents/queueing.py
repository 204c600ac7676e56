"""What becomes of an input that is queued while an agent works."""

from decimal import Decimal
from typing import Any

import pytest
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Harness, when


class QueueTests:
    """Tests that all adapters share whose agents keep a session."""

    @pytest.mark.proves("queued input", features=(pb.FEATURE_QUEUE,), uses=())
    async def test_a_queued_input_is_another_turn_of_the_run(self, harness: Harness) -> None:
        async def act(stream: Any) -> None:
            first = await stream.send("MOCK_RECALL", input_id="more")
            assert await stream.send("MOCK_RECALL", input_id="more") == first

        alone = await harness.run("MOCK_TEXT word=plover")
        running = when(lambda event: event.state.phase == pb.RUN_PHASE_RUNNING, act)
        seen = await harness.run("MOCK_TEXT word=plover", react=running)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        (accepted,) = seen.of("input_accepted")
        assert accepted.mode == pb.INPUT_MODE_QUEUE
        taken = [message for message in seen.of("message") if message.input_id]
        assert [(message.input_id, message.role) for message in taken] == [("more", pb.MESSAGE_ROLE_USER)]
        assert seen.of("input_dropped") == []
        assert len(seen.of("started")) == len(seen.of("result")) == 1
        assert "word=plover" in seen.text, "its session does not go on"
        assert seen.result.session.change == pb.SESSION_CHANGE_SET
        if not harness.lacks("usage"):
            assert seen.result.usage.tokens.input == 2 * alone.result.usage.tokens.input
        if alone.result.usage.HasField("cost"):
            assert Decimal(seen.result.usage.cost.amount) == 2 * Decimal(alone.result.usage.cost.amount)
