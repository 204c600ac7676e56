"""By which way an agent is given a run's skills. Pure."""

import enum
from collections.abc import Sequence
from typing import Final

from dragoman.sdk._skills.source import SkillSource, skill_prompt


class SkillStrategy(enum.Enum):
    """A way to give skills to an agent; the first that it can follow is the best."""

    PRIVATE_DIRECTORY = "private directory"
    """In a directory of the run's own, as ``skill_layout`` says; the plan passes ``job.skills_dir`` to the agent."""
    PROMPT = "prompt"
    """As text in the prompt: for agents without skills of their own."""
    PLAN = "plan"
    """The adapter's plan does it all: ``job.skills``."""


def strategy_in_force(declared: SkillStrategy | None, layout: str) -> SkillStrategy:
    """Return the way that a run's skills go.

    Args:
        declared: the adapter's; None for the one that its ``skill_layout`` means.
        layout: its ``skill_layout``.
    """
    return declared or (SkillStrategy.PRIVATE_DIRECTORY if layout else SkillStrategy.PLAN)


def prompt_section(strategy: SkillStrategy, skills: Sequence[SkillSource]) -> str:
    """Return the skills as a section of the prompt; empty if they go another way."""
    if strategy is not SkillStrategy.PROMPT or not skills:
        return ""
    head = "These skills are procedures for you to follow where they apply.\n"
    return "\n".join([head, *(skill_prompt(skill) for skill in skills)]).rstrip("\n")


_WORDS: Final = {
    SkillStrategy.PRIVATE_DIRECTORY: "in a directory of this run's own",
    SkillStrategy.PROMPT: "as text in the prompt",
}


def skill_note(strategy: SkillStrategy, skills: Sequence[SkillSource]) -> tuple[str, ...]:
    """Return the chosen way as text, for ``started.notes``."""
    if not skills or strategy not in _WORDS:
        return ()
    return (f"skills {_WORDS[strategy]}: {', '.join(skill.name for skill in skills)}",)
