"""What Gemini CLI keeps of a run in its session's file: the tokens of each call, caches and thoughts apart."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dragoman.sdk import fields, parse_json_object
from dragoman.sdk.fields import Fields
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
            continue  # what cannot be found out is left as it is
    return lines


def kept_usage(lines: Iterable[bytes], began_at: float) -> pb.Usage | None:
    """Return what was used since ``began_at``, in Unix seconds; None if nothing was kept. Pure."""
    calls: dict[str, tuple[str, Fields]] = {}
    for line in lines:
        said = parse_json_object(line) if b'"tokens"' in line else None
        if said is not None and fields.text(said, "type") == "gemini" and _time(said) >= began_at:
            # A message is written again whenever it changes.
            calls[fields.text(said, "id")] = (fields.text(said, "model"), fields.inner(said, "tokens"))
    if not calls:
        return None
    usage = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    models: dict[str, pb.TokenCounts] = {}
    for model, counted in calls.values():
        _add(usage.tokens, counted)
        _add(models.setdefault(model, pb.TokenCounts()), counted)
    for model, tokens in models.items():
        usage.models.add(model=model).tokens.CopyFrom(tokens)
    return usage


def better_usage(told: pb.Usage | None, kept: pb.Usage | None) -> pb.Usage | None:
    """Return what was kept where it tells more of the same, or where nothing was told; else what was told."""
    if kept is None or told is None:
        return kept or told
    given = kept.tokens.input + kept.tokens.cache_read
    answer = kept.tokens.output - kept.tokens.reasoning
    return kept if (given, answer) == (told.tokens.input, told.tokens.output) else told


def _add(tokens: pb.TokenCounts, counted: Fields) -> None:
    names = ("input", "output", "cached", "thoughts")
    given, answer, cached, thoughts = (min(fields.count(counted, name) or 0, _MOST_TOKENS) for name in names)
    tokens.input += max(0, given - cached)
    tokens.output += answer + thoughts
    tokens.cache_read += cached
    tokens.reasoning += thoughts


def _time(said: Fields) -> float:
    try:
        moment = datetime.fromisoformat(fields.text(said, "timestamp"))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
