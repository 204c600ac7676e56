"""What an agent's account is asked for outside of runs: how an error is reported."""

import pytest
from dragoman.sdk.account import quota_refused
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb

CODEX = agent_spec("dragoman.adapters.codex")


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
