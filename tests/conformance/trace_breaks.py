"""Adapters that lose a caller's trace, or make one of what is none."""

from tests.conformance.proxy import Break, Call


def _lose(call: Call) -> None:
    call.trace = ""


def _repair(call: Call) -> None:
    """Make a trace of one that has no flags."""
    if call.trace.count("-") == 2:
        call.trace += "-01"


TRACE_BREAKS = {"environment.trace": Break(request=_lose), "environment.no-trace": Break(request=_repair)}
"""What breaks each rule of traces."""
