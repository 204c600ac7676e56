"""The tokens of a run's calls in its session's file, where caches and thoughts are counted apart."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dragoman.sdk import fields
from dragoman.sdk.fields import Fields, parse_json_object
from dragoman.sdk.parsing import add_call, call_usage
from dragoman.v1 import event_pb2 as pb

_MOST_BYTES: Final = 64 * 1024 * 1024
_HEAD_BYTES: Final = 4096
_MOST_TOKENS: Final = 10**12  # of one call; sums of more would not fit


def session_lines(config: Path, session_id: str) -> list[bytes]:
    """Return the lines of all files of a session; it has one for each time that it was begun or loaded.

    Args:
        config: the user's ``.gemini``.
        session_id: which session.
    """
    lines: list[bytes] = []
    marked = json.dumps(session_id).encode()
    for path in sorted((config / "tmp").glob(f"*/chats/session-*-{session_id[:8]}*.jsonl")):
        try:
            if path.stat().st_size <= _MOST_BYTES:
                data = path.read_bytes()
                if marked in data[:_HEAD_BYTES]:
                    lines += data.split(b"\n")
        except OSError:
            continue  # the usage stays as reported
    return lines


def stored_usage(lines: Iterable[bytes], began_at: float) -> pb.Usage | None:
    """Return what was used since ``began_at``, in Unix seconds; None if the lines have no calls. Pure."""
    calls: dict[str, tuple[str, Fields]] = {}
    for line in lines:
        message = parse_json_object(line) if b'"tokens"' in line else None
        if message is not None and fields.text(message, "type") == "gemini" and _time(message) >= began_at:
            # A message is written again whenever it changes.
            calls[fields.text(message, "id")] = (fields.text(message, "model"), fields.inner(message, "tokens"))
    usage: pb.Usage | None = None
    for model, counts in calls.values():
        call = call_usage(_tokens(counts))
        call.models.add(model=model, tokens=call.tokens)
        usage = add_call(usage, call)
    return usage


def better_usage(reported: pb.Usage | None, stored: pb.Usage | None) -> pb.Usage | None:
    """Return the stored usage if it is a more detailed account of what was reported, or the only one."""
    if stored is None or reported is None:
        return stored or reported
    taken = stored.tokens.input + stored.tokens.cache_read
    answer = stored.tokens.output - stored.tokens.reasoning
    return stored if (taken, answer) == (reported.tokens.input, reported.tokens.output) else reported


def _tokens(counts: Fields) -> pb.TokenCounts:
    names = ("input", "output", "cached", "thoughts")
    taken, answer, cached, thoughts = (min(fields.count(counts, name) or 0, _MOST_TOKENS) for name in names)
    return pb.TokenCounts(
        input=max(0, taken - cached), output=answer + thoughts, cache_read=cached, reasoning=thoughts
    )


def _time(message: Fields) -> float:
    try:
        moment = datetime.fromisoformat(fields.text(message, "timestamp"))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
