"""Files that go with the prompt of a real agent, and files that it leaves."""

import base64
import hashlib

import pytest
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Harness

ALLOWED = pb.Permissions(auto_approve=True)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One pixel."""


class FilingTests:
    """Tests that all adapters share."""

    async def test_the_model_sees_the_names_of_attachments(self, harness: Harness) -> None:
        if not harness.has(pb.FEATURE_ATTACHMENTS):
            pytest.skip("it takes none")
        attachment = api.Attachment(name="notes.txt", media_type="text/plain", content=b"The word is mulberry.\n")
        seen = await harness.run("MOCK_TEXT", attachments=[attachment])
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert "/attachments:\n- notes.txt (text/plain, 22 bytes)" in harness.conversation_text()

    async def test_the_model_sees_images(self, harness: Harness) -> None:
        if not harness.has(pb.FEATURE_IMAGES):
            pytest.skip("it takes none")
        attachment = api.Attachment(name="pixel.png", media_type="image/png", content=PNG)
        seen = await harness.run("MOCK_TEXT", attachments=[attachment])
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        bodies = str([request.body for request in harness.model_requests])
        assert base64.b64encode(PNG).decode() in bodies

    async def test_what_a_tool_leaves_is_an_artifact(self, harness: Harness) -> None:
        if harness.lacks("shell") or not harness.has(pb.FEATURE_ARTIFACTS):
            pytest.skip("it leaves none")
        prompt = 'MOCK_SHELL command="printf done > $DRAGOMAN_ARTIFACTS/report.txt"'
        seen = await harness.run(prompt, permissions=ALLOWED)
        (artifact,) = seen.of("artifact")
        assert (artifact.name, artifact.size) == ("report.txt", 4)
        assert artifact.sha256 == hashlib.sha256(b"done").hexdigest()
        run_id = seen.events[0].run_id
        assert [piece async for piece in harness.client.read_artifact(run_id, "report.txt")] == [b"done"]
