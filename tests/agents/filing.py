"""Files that go with the prompt of a real agent, files that it leaves, and what it changed."""

import base64
import hashlib
from typing import ClassVar, Final

import pytest
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Harness, Recipe

ALLOWED: Final = pb.Permissions(auto_approve=True)
PNG: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One pixel."""
NOTES: Final = api.Attachment(name="notes.txt", media_type="text/plain", content=b"The word is mulberry.\n")


class FilingTests:
    """Tests that all adapters share."""

    recipe: ClassVar[Recipe]

    @pytest.mark.proves("attachment, named", features=(pb.FEATURE_ATTACHMENTS,), uses=())
    async def test_the_model_sees_the_names_of_attachments(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", attachments=[NOTES])
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert "/attachments:\n- notes.txt (text/plain, 22 bytes)" in harness.conversation_text()

    @pytest.mark.proves("attachment, read by its tool", features=(pb.FEATURE_ATTACHMENTS,), uses=("tools",))
    async def test_a_tool_reads_an_attachment(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_READ_ATTACHED", attachments=[NOTES], permissions=ALLOWED)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert "The word is mulberry." in seen.text

    @pytest.mark.proves("image", features=(pb.FEATURE_IMAGES,), uses=())
    async def test_the_model_sees_images(self, harness: Harness) -> None:
        attachment = api.Attachment(name="a pixel.png", media_type="image/png", content=PNG)
        seen = await harness.run("MOCK_TEXT", attachments=[attachment], model=self.recipe.seeing_model)
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        bodies = str([request.body for request in harness.model_requests])
        assert base64.b64encode(PNG).decode() in bodies

    @pytest.mark.proves("artifact, left by its tool", features=(pb.FEATURE_ARTIFACTS,), uses=("shell",))
    async def test_what_a_tool_leaves_is_an_artifact(self, harness: Harness) -> None:
        prompt = 'MOCK_SHELL command="printf done > $DRAGOMAN_ARTIFACTS/report.txt"'
        seen = await harness.run(prompt, permissions=ALLOWED)
        (artifact,) = seen.of("artifact")
        assert (artifact.name, artifact.size) == ("report.txt", 4)
        assert artifact.sha256 == hashlib.sha256(b"done").hexdigest()
        run_id = seen.events[0].run_id
        assert [piece async for piece in harness.client.read_artifact(run_id, "report.txt")] == [b"done"]

    @pytest.mark.proves("changes", features=(pb.FEATURE_CHANGES,), uses=("tools",))
    async def test_what_a_tool_writes_is_a_change(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_WRITE path=notes.txt", permissions=ALLOWED, leaves=["notes.txt"])
        changes = await harness.client.get_changes(seen.events[0].run_id)
        (file,) = changes.files
        assert (file.path, file.operation) == ("notes.txt", pb.FILE_OPERATION_CREATE)
        assert "+hello from the scripted model" in file.diff
