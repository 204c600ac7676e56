"""The agent programs that the test kit knows: one module each."""

from collections.abc import Mapping
from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile
from dragoman.testkit.profiles.claude import CLAUDE
from dragoman.testkit.profiles.codex import CODEX
from dragoman.testkit.profiles.copilot import COPILOT
from dragoman.testkit.profiles.gemini import GEMINI
from dragoman.testkit.profiles.openclaw import OPENCLAW
from dragoman.testkit.profiles.opencode import OPENCODE
from dragoman.testkit.profiles.pi import PI
from dragoman.testkit.profiles.qwen import QWEN

PROFILES: Final[Mapping[str, AgentProfile]] = {
    "claude": CLAUDE,
    "codex": CODEX,
    "copilot": COPILOT,
    "gemini": GEMINI,
    "openclaw": OPENCLAW,
    "opencode": OPENCODE,
    "pi": PI,
    "qwen": QWEN,
}
"""By name."""
