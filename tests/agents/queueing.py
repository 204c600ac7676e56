"""What becomes of an input that is queued while an agent works."""

from decimal import Decimal
from typing import Any

import pytest
from dragoman.v1 import event_pb2 as pb

from tests.agents.filing import ALLOWED, NOTES
from tests.agents.harness import Harness, when


class QueueTests:
    """Tests that all adapters share whose agents keep a session."""

    async def test_a_tool_reads_a_file_of_a_queued_input(self, harness: Harness) -> None:
        needed = (pb.FEATURE_QUEUE, pb.FEATURE_ATTACHMENTS)
        if not all(map(harness.has, needed)) or harness.lacks("tools"):
            pytest.skip("it takes no queued input, no files, or has no tools")

        async def act(stream: Any) -> None:
            await stream.send("MOCK_READ_ATTACHED", attachments=[NOTES], input_id="more")

        running = when(lambda event: event.state.phase == pb.RUN_PHASE_RUNNING, act)
        seen = await harness.run("MOCK_TEXT word=plover", react=running, permissions=ALLOWED)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert [message.input_id for message in seen.of("message") if message.input_id] == ["more"]
        assert "The word is mulberry." in seen.text

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
