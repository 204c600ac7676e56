"""The tokens that a session's file keeps: its lines as they were seen."""

import json
from pathlib import Path
from typing import Any

from dragoman.adapters.gemini_cli.usage_file import better_usage, session_lines, stored_usage
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

SESSION = "43f61451-c68a-4b21-ad38-5f46efc688eb"
BEGAN = 1795325857.0  # 2026-11-22T05:37:37Z


def answer(number: int, time: str = "2026-11-22T05:37:38.054Z", **tokens: int) -> bytes:
    counted = {"input": 1200, "output": 35, "cached": 800, "thoughts": 7, "tool": 0, "total": 1242, **tokens}
    document = {
        "id": f"m{number}",
        "timestamp": time,
        "type": "gemini",
        "content": "",
        "tokens": counted,
        "model": "x",
    }
    return json.dumps(document).encode()


def reported(input_tokens: int, out: int) -> pb.Usage:
    return pb.Usage(tokens=pb.TokenCounts(input=input_tokens, output=out))


def test_calls_are_summed_and_each_message_counts_once() -> None:
    usage = stored_usage([answer(1), answer(2), answer(1), b'{"type":"user"}', b"no json"], BEGAN)
    assert usage is not None
    tokens = usage.tokens
    assert (tokens.input, tokens.cache_read, tokens.output, tokens.reasoning) == (800, 1600, 84, 14)
    assert [(model.model, model.tokens.output) for model in usage.models] == [("x", 84)]


def test_earlier_runs_of_the_session_are_not_this_ones() -> None:
    assert stored_usage([answer(1, "2026-11-22T05:37:36.999Z"), answer(2, "yesterday")], BEGAN) is None


def test_the_stored_usage_is_taken_where_it_says_more_of_the_same() -> None:
    kept = stored_usage([answer(1)], BEGAN)
    assert better_usage(reported(1200, 35), kept) is kept
    assert better_usage(None, kept) is kept
    other = reported(2400, 70)
    assert better_usage(other, kept) is other
    assert better_usage(other, None) is other
    assert better_usage(None, None) is None


def test_only_files_of_the_session_are_read(tmp_path: Path) -> None:
    chats = tmp_path / "tmp" / "ws" / "chats"
    chats.mkdir(parents=True)
    head = json.dumps({"sessionId": SESSION}).encode()
    (chats / "session-2026-11-22T05-37-43f61451.jsonl").write_bytes(head + b"\nmine")
    (chats / "session-2026-11-22T05-38-43f61451-c68a-7.jsonl").write_bytes(head + b"\nrenamed")
    (chats / "session-2026-11-22T05-39-43f61451.jsonl").write_bytes(b'{"sessionId":"43f61451-other"}\ntheirs')
    lines = list(session_lines(tmp_path, SESSION))
    assert b"mine" in lines
    assert b"renamed" in lines
    assert b"theirs" not in lines
    assert list(session_lines(tmp_path / "nowhere", SESSION)) == []


_VALUES: Any = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


@given(st.dictionaries(st.sampled_from(["id", "timestamp", "tokens", "model"]), _VALUES))
def test_whatever_was_stored_nothing_raises(document: dict[str, Any]) -> None:
    stored_usage([json.dumps({**document, "type": "gemini"}).encode(), b'{"tokens"'], BEGAN)
