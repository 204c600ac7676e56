"""Reports that say nothing of how busy this machine is."""

from dragoman.conformance import Options, Report, Verdict, run_checks
from dragoman.conformance.check import CHECKS
from msgspec.structs import replace

PATIENT_S = 100.0
"""As long as a check may take on a busy machine; other waits of the kit are longer in proportion."""
WRONG = frozenset({Verdict.FAILED, Verdict.ERROR})


async def examined(options: Options, broken: str = "") -> Report:
    """Examine a target; rules that it fails, perhaps by time alone, are examined once more, alone and with patience.

    Args:
        options: which, and how.
        broken: the rule that it does break, which only costs time.
    """
    report = await run_checks(options)
    failed = [item.rule.id for item in report.outcomes if item.verdict in WRONG]
    late = tuple(name for name in failed if name in CHECKS and name != broken)
    if not late:
        return report
    again = await run_checks(replace(options, only=late, at_once=1, check_s=PATIENT_S))
    found = {item.rule.id: item for item in again.outcomes if item.rule.id in late}
    return replace(report, outcomes=tuple(found.get(item.rule.id, item) for item in report.outcomes))
