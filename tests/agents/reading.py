"""What an agent can read beside its workspace: the files that its instructions and its skills come with."""

import pytest
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Harness


class ReadingTests:
    """Tests that all adapters share."""

    async def test_files_beside_the_instructions_can_be_read_unattended(self, harness: Harness) -> None:
        if harness.lacks("tools") or not harness.has(pb.FEATURE_INSTRUCTIONS):
            pytest.skip("there is nothing to read them with")
        bundle = harness.root / "bundle"
        bundle.mkdir()
        (bundle / "AGENTS.md").write_text("See NOTES.md.", encoding="utf-8")
        (bundle / "NOTES.md").write_text("The word is mulberry.\n", encoding="utf-8")
        file = api.Instructions(file=str(bundle / "AGENTS.md"))
        seen = await harness.run("MOCK_READ_BESIDE_INSTRUCTIONS path=NOTES.md", instructions=file)
        assert "The word is mulberry." in seen.text
        assert seen.of("input_request") == []

    async def test_files_of_a_skill_that_goes_by_prompt_can_be_read_unattended(self, harness: Harness) -> None:
        if harness.lacks("tools") or not harness.has(pb.FEATURE_SKILLS) or harness.has(pb.FEATURE_NATIVE_SKILLS):
            pytest.skip("its skills do not go by prompt")
        content = {"SKILL.md": b"Use assets/word.txt.", "assets/word.txt": b"The word is mulberry.\n"}
        skill = api.Skill(name="demo", files=api.SkillFiles(content=content))
        seen = await harness.run("MOCK_READ_BESIDE_SKILL", skills=[skill])
        assert "The word is mulberry." in seen.text
        assert seen.of("input_request") == []
