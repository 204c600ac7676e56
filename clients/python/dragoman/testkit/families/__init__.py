"""The agent programs that the test kit knows: one module each."""

from collections.abc import Mapping
from typing import Final

from dragoman.testkit.families.claude import CLAUDE
from dragoman.testkit.families.codex import CODEX
from dragoman.testkit.families.copilot import COPILOT
from dragoman.testkit.families.gemini import GEMINI
from dragoman.testkit.families.openclaw import OPENCLAW
from dragoman.testkit.families.opencode import OPENCODE
from dragoman.testkit.families.pi import PI
from dragoman.testkit.families.qwen import QWEN
from dragoman.testkit.family import AgentFamily

FAMILIES: Final[Mapping[str, AgentFamily]] = {
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
