"""A conformance kit: examines an adapter or a router in any language against the rules of the contract.

`run_checks` runs it, `RULES` are the rules, ``dragoman conformance`` is the command.
"""

from dragoman.conformance import checks
from dragoman.conformance.check import RULES, Level, Rule
from dragoman.conformance.launch import LaunchError
from dragoman.conformance.runner import (
    Options,
    Outcome,
    Progress,
    Report,
    Verdict,
    read_expected_failures,
    run_checks,
)

__all__ = [
    "RULES",
    "LaunchError",
    "Level",
    "Options",
    "Outcome",
    "Progress",
    "Report",
    "Rule",
    "Verdict",
    "checks",
    "read_expected_failures",
    "run_checks",
]
