"""What an agent's account is asked for outside of runs: how an error is reported."""

import pytest
from dragoman.adapters.codex.adapter import CodexAdapter
from dragoman.sdk.account import quota_refused
from dragoman.v1 import event_pb2 as pb

CODEX = CodexAdapter.spec


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ("Invalid API key", pb.FAILURE_KIND_AUTH_REQUIRED, f"Codex: Invalid API key. {CODEX.login_hint}"),
        ("something new", pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "Codex: something new."),
    ],
)
def test_a_refused_quota_says_what_to_do_about_a_missing_login(error: str, kind: int, message: str) -> None:
    failure = quota_refused(CODEX, error).failure
    assert (failure.kind, failure.message, failure.code) == (kind, message, "codex_quota")
