"""What pi reports of a conversation that it makes shorter."""

from typing import Any

import pytest
from dragoman.adapters.pi.parse import compaction
from dragoman.v1 import event_pb2 as pb


def taken(**fields: Any) -> list[Any]:
    return list(compaction(fields))


def test_it_begins_and_ends() -> None:
    (begun,) = taken(type="compaction_start", reason="threshold")
    (ended,) = taken(type="compaction_end", reason="threshold", result={"summary": "Short.", "tokensBefore": 9})
    assert (begun.compaction.trigger, ended.compaction.trigger) == ("threshold", "threshold")
    assert (ended.compaction.summary, ended.compaction.tokens_before) == ("Short.", 9)
    assert (begun.compaction.finished, ended.compaction.finished) == (False, True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"errorMessage": "No key", "result": {"summary": "Short."}}, "No key"),
        ({"errorMessage": "No key"}, "No key"),
        ({"aborted": True}, "it was stopped"),
        ({"aborted": False}, "no reason was given"),
        ({}, "no reason was given"),
    ],
)
def test_one_without_a_result_has_failed(fields: dict[str, Any], why: str) -> None:
    ended, notice = taken(type="compaction_end", reason="overflow", **fields)
    assert ended.WhichOneof("body") == "compaction"
    assert isinstance(notice, pb.AgentEvent)
    assert (notice.notice.code, notice.notice.message) == (
        "compaction_failed",
        f"pi could not compact the conversation: {why}.",
    )
