"""By which way an agent is given a run's skills. Pure, but for the reading of skills that are copied."""

import enum
from collections.abc import Mapping, Sequence
from typing import Final

from dragoman.sdk._encoding.config import as_bool
from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._skills.source import SkillSource, all_files, plan_skill_directory, skill_prompt

PLACE_KEY: Final = "placeInWorkspace"
"""The key of ``config`` by which a caller allows files in the workspace."""


class SkillStrategy(enum.Enum):
    """A way to give skills to an agent; the first that it can follow is the best."""

    PRIVATE_DIRECTORY = "private directory"
    """In a directory of the run's own, as ``skill_layout`` says; the plan passes ``job.skills_dir`` to the agent."""
    WORKSPACE = "workspace"
    """In the workspace, as ``skill_layout`` says, if the caller allows it: else as text in the prompt."""
    PROMPT = "prompt"
    """As text in the prompt: for agents without skills of their own."""
    PLAN = "plan"
    """The adapter's plan does it all: ``job.skills``."""


def strategy_in_force(declared: SkillStrategy | None, layout: str, config: Mapping[str, JsonValue]) -> SkillStrategy:
    """Return the way that a run's skills go.

    Args:
        declared: the adapter's; None for the one that its ``skill_layout`` means.
        layout: its ``skill_layout``.
        config: the run's.
    """
    if declared is None:
        return SkillStrategy.PRIVATE_DIRECTORY if layout else SkillStrategy.PLAN
    if declared is SkillStrategy.WORKSPACE and not may_place(config):
        return SkillStrategy.PROMPT
    return declared


def may_place(config: Mapping[str, JsonValue]) -> bool:
    """Return whether the caller allows files in the workspace."""
    return as_bool(config.get(PLACE_KEY), False)


def prompt_section(strategy: SkillStrategy, skills: Sequence[SkillSource]) -> str:
    """Return the skills as a section of the prompt; empty if they go another way."""
    if strategy is not SkillStrategy.PROMPT or not skills:
        return ""
    head = "These skills are procedures for you to follow where they apply.\n"
    return "\n".join([head, *(skill_prompt(skill) for skill in skills)]).rstrip("\n")


def workspace_skills(strategy: SkillStrategy, skills: Sequence[SkillSource], layout: str) -> dict[str, bytes]:
    """Return the skills as files of the workspace; none if they go another way.

    Raises:
        SkillError: one cannot be read.
    """
    if strategy is not SkillStrategy.WORKSPACE:
        return {}
    copies = [SkillSource(skill.name, files=all_files(skill)) for skill in skills]
    return {item.relative_path: item.content or b"" for item in plan_skill_directory(copies, layout)}


_WORDS: Final = {
    SkillStrategy.PRIVATE_DIRECTORY: "in a directory of this run's own",
    SkillStrategy.WORKSPACE: "in the workspace, for the time of the run",
    SkillStrategy.PROMPT: "as text in the prompt",
}


def skill_note(strategy: SkillStrategy, skills: Sequence[SkillSource]) -> tuple[str, ...]:
    """Return the chosen way as text, for ``started.notes``."""
    if not skills or strategy not in _WORDS:
        return ()
    return (f"skills {_WORDS[strategy]}: {', '.join(skill.name for skill in skills)}",)


def placing_note(files: Mapping[str, bytes], config: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return a note on the files that are, or would be, placed in the workspace."""
    if not files:
        return ()
    names = ", ".join(sorted(files)[:10]) + (f" and {len(files) - 10} more" if len(files) > 10 else "")
    if may_place(config):
        return (f"placed in the workspace for the time of the run: {names}",)
    return (f"not placed in the workspace, as config.{PLACE_KEY} is not set: {names}",)
