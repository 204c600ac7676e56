"""Whether a turn is known to have ended, by what its gateway says."""

from typing import Any

import pytest
from dragoman.adapters.openclaw.adapter import _stop

from tests.adapters.openclaw.planning import job_of, request


class Answering:
    """A gateway with scripted answers."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.waited_ms = 0

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.waited_ms = params.get("timeoutMs", 0)
        answer: dict[str, Any] = self._answers[method.partition(".")[2]]
        return answer


@pytest.mark.parametrize(
    ("abort", "wait", "has_ended"),
    [
        ({"status": "aborted"}, {"status": "timeout", "endedAt": 17}, True),
        ({"status": "aborted"}, {"status": "ok", "endedAt": 17}, True),
        ({"status": "aborted"}, {"status": "timeout"}, False),
        ({"status": "aborted"}, {}, False),
        ({"status": "no-active-run"}, {"status": "timeout"}, True),
        ({"status": "no-active-run"}, {"status": "error", "endedAt": 17}, True),
        ({}, {"status": "timeout"}, False),
        ({}, {"status": "ok", "endedAt": 17}, True),
        ({}, {}, False),
    ],
)
async def test_a_wait_that_was_in_vain_is_no_end(abort: Any, wait: Any, has_ended: bool) -> None:
    gateway: Any = Answering(abort=abort, wait=wait)
    assert await _stop(gateway, job_of(request())) is has_ended
    assert 0 < gateway.waited_ms < 10_000, "its own limit is over first"


async def test_a_turn_that_was_found_has_longer_to_end() -> None:
    waits_ms = []
    for status in ("aborted", "no-active-run"):
        gateway: Any = Answering(abort={"status": status}, wait={"status": "ok"})
        await _stop(gateway, job_of(request()))
        waits_ms.append(gateway.waited_ms)
    assert waits_ms[0] > waits_ms[1]
