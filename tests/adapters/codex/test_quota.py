"""How much of an account's rate limits is used, with programs that pretend to be Codex."""

import json
import os
from pathlib import Path

import pytest
from dragoman.adapters.codex import adapter
from dragoman.adapters.codex.quota import answered
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

SNAPSHOT = {
    "limitId": "codex",
    "primary": {"usedPercent": 42, "windowDurationMins": 300, "resetsAt": 1_893_456_000},
    "secondary": {"usedPercent": 5, "windowDurationMins": 10_080, "resetsAt": 1_893_556_000},
}
OTHER = {"limitId": "other", "limitName": "Other", "primary": {"usedPercent": 7}}
ANSWER = {"id": 2, "result": {"rateLimits": SNAPSHOT, "rateLimitsByLimitId": {"codex": SNAPSHOT, "other": OTHER}}}
PROGRAM = """#!/bin/sh
read hello; echo '{{"id": 1, "result": {{}}}}'
read initialized; echo '{{"method": "configWarning", "params": {{}}}}'
read asked; {answer}
while read more; do :; done
echo ended > ended
"""


def install(folder: Path, answer: str) -> api.GetQuotaRequest:
    """Put a Codex on PATH that answers by a command of the shell."""
    program = folder / "codex"
    program.write_text(PROGRAM.format(answer=answer).replace("> ended", f"> {folder}/ended"))
    program.chmod(0o755)
    return api.GetQuotaRequest(env={"PATH": f"{folder}:{os.defpath}", "HOME": str(folder)})


async def test_the_windows(tmp_path: Path) -> None:
    """The program gets time to end by itself, as it may have a login to write down."""
    response = await adapter().get_quota(install(tmp_path, f"echo '{json.dumps(ANSWER)}'"))
    assert not response.HasField("failure")
    shown = [(window.window, window.used_percent, window.resets_at.seconds) for window in response.windows]
    assert shown == [
        ("primary (300 min)", 42, 1_893_456_000),
        ("secondary (10080 min)", 5, 1_893_556_000),
        ("Other primary", 7, 0),
    ]
    assert (tmp_path / "ended").read_text() == "ended\n"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("codex account authentication required to read rate limits", pb.FAILURE_KIND_AUTH_REQUIRED),
        ("failed to fetch codex rate limits: GET /usage failed: 401 Unauthorized", pb.FAILURE_KIND_AUTH_REQUIRED),
        ("something new", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE),
    ],
)
async def test_an_error_is_a_failure(message: str, kind: int, tmp_path: Path) -> None:
    error = json.dumps({"id": 2, "error": {"code": -32600, "message": message}})
    response = await adapter().get_quota(install(tmp_path, f"echo '{error}'"))
    assert (response.failure.kind, message in response.failure.message) == (kind, True)


async def test_a_program_that_ends_without_an_answer(tmp_path: Path) -> None:
    response = await adapter().get_quota(install(tmp_path, "exit 0"))
    assert response.failure.code == "codex_no_answer"
    assert response.failure.message.startswith("Codex ended or did not")


async def test_no_program(tmp_path: Path) -> None:
    response = await adapter().get_quota(api.GetQuotaRequest(env={"PATH": str(tmp_path), "HOME": str(tmp_path)}))
    assert response.failure.kind == pb.FAILURE_KIND_NOT_INSTALLED


@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.dictionaries(
            st.sampled_from(("result", "error", "message", "rateLimits", "primary", "usedPercent", "resetsAt")), inner
        ),
    ).map(json.dumps)
)
def test_any_answer_is_windows_or_a_failure(line: str) -> None:
    response = answered(line)
    assert not (response.windows and response.HasField("failure"))
    assert not response.HasField("failure") or response.failure.message
