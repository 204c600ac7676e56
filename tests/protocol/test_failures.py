"""Which failures may go away by themselves: the code says what the contract's comments say."""

import re
from pathlib import Path

import pytest
from dragoman.protocol.failures import is_retryable
from dragoman.v1 import event_pb2 as pb

PROTO = Path(__file__).parents[2] / "proto/dragoman/v1/event.proto"


def commented() -> dict[str, str]:
    """Return what stands in brackets in the comment above each failure kind."""
    text = PROTO.read_text(encoding="utf-8")
    body = text[text.index("enum FailureKind {") :]
    body = body[: body.index("\n}")]
    return {name: retryable for retryable, name in re.findall(r"// [^\n]*\[([^\]]+)\]\.\n  (FAILURE_KIND_\w+)", body)}


def test_every_kind_says_whether_trying_again_may_help() -> None:
    assert set(commented()) == set(pb.FailureKind.keys()) - {"FAILURE_KIND_UNSPECIFIED"}


@pytest.mark.parametrize("name", pb.FailureKind.keys())
def test_retryability_is_what_the_comment_says(name: str) -> None:
    retryable = commented().get(name, "no")
    assert retryable in {"yes", "no", "yes, with a fresh session", "after retry_not_before"}
    assert is_retryable(pb.FailureKind.Value(name)) is (retryable != "no")
