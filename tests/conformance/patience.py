"""Reports that say nothing of how busy this machine is."""

from dragoman.conformance import Options, Report, Verdict, run_checks
from dragoman.conformance.check import CHECKS
from msgspec.structs import replace

PATIENT_S = 100.0
"""As long as a check may take on a busy machine; other waits of the kit are longer in proportion."""
WRONG = frozenset({Verdict.FAILED, Verdict.ERROR})


async def examined(options: Options, broken: str = "") -> Report:
    """Examine a target; what may be a matter of time is examined once more, with patience and nothing beside it.

    Args:
        options: which, and how.
        broken: the rule that it does break, which only costs time; one that is kept after all is examined again.
    """
    report = await run_checks(options)
    unexpected = [item for item in report.outcomes if (item.verdict in WRONG) is not (item.rule.id == broken)]
    late = tuple(item.rule.id for item in unexpected if item.rule.id in CHECKS)
    if not late:
        return report
    again = await run_checks(replace(options, only=late, at_once=1, check_s=PATIENT_S))
    found = {item.rule.id: item for item in again.outcomes if item.rule.id in late}
    return replace(report, outcomes=tuple(found.get(item.rule.id, item) for item in report.outcomes))
