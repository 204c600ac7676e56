"""The skills of a run, and the ways in which they reach an agent."""

from dragoman.sdk._skills.source import SkillSource, skill_prompt
from dragoman.sdk._skills.strategy import SkillStrategy

__all__ = [
    "SkillSource",
    "SkillStrategy",
    "skill_prompt",
]
