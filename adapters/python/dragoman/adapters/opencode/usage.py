"""What a run used, summed over its calls of the model.

Over the Agent Client Protocol opencode reports only the last call's tokens. All of them are in its own store, a
SQLite database, which is read and never written; without a readable store, the usage stays unknown.
"""

import sqlite3
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from dragoman.adapters.opencode.login import data_dir
from dragoman.sdk.fields import Fields, count, inner, number, parse_json_object, text
from dragoman.sdk.parsing import UsageTotals, call_usage
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_WAIT_S: Final = 2.0
_MOST: Final = 2**53
_MESSAGES: Final = """
    WITH RECURSIVE family(id) AS (
        SELECT :session UNION SELECT session.id FROM session JOIN family ON session.parent_id = family.id
    )
    SELECT session_id, data FROM message WHERE session_id IN family AND time_created >= :since
    ORDER BY time_created LIMIT 10000
"""


def database(env: Mapping[str, str]) -> Path:
    """Return where opencode keeps its sessions, with this environment."""
    return data_dir(env) / (env.get("OPENCODE_DB") or "opencode.db")


class StoredMessage(Struct, frozen=True):
    """A message as opencode stores it."""

    session_id: str
    content: Fields


def read_messages(path: Path, session_id: str, since_ms: int) -> list[StoredMessage] | None:
    """Return the messages of a session and its nested ones, oldest first; None if they cannot be read.

    Args:
        path: opencode's database.
        session_id: the session.
        since_ms: Unix milliseconds; earlier messages are left out.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S)) as store:
            rows = store.execute(_MESSAGES, {"session": session_id, "since": since_ms}).fetchall()
    except sqlite3.Error:
        return None
    return [StoredMessage(str(owner), content) for owner, data in rows if (content := _content(data)) is not None]


def _content(data: object) -> Fields | None:
    return parse_json_object(data.encode("utf-8", "replace")) if isinstance(data, str) else None


def last_answer(messages: Iterable[StoredMessage], session_id: str) -> Fields:
    """Return the session's own last answer of its model; empty if there is none. Pure."""
    own = (one.content for one in messages if one.session_id == session_id and one.content.get("role") == "assistant")
    return next(iter(deque(own, maxlen=1)), {})


def sum_up(messages: Iterable[Fields]) -> pb.Usage | None:
    """Sum up the answers of the model; None if there are none. Pure."""
    totals, by_model = UsageTotals(), dict[str, UsageTotals]()
    for message in messages:
        tokens = inner(message, "tokens")
        if message.get("role") != "assistant" or not _is_known(tokens):
            continue
        call, name = call_usage(tokens_of(tokens)), f"{text(message, 'providerID')}/{text(message, 'modelID')}"
        totals.add(call, cost_of(message))
        by_model.setdefault(name, UsageTotals()).add(call, cost_of(message))
    usage = totals.total
    for name, model in by_model.items():
        if usage is not None and model.total is not None:
            cost = model.total.cost if model.total.HasField("cost") else None
            usage.models.append(pb.ModelUsage(model=name, tokens=model.total.tokens, cost=cost))
    return usage


def with_context(used: pb.Usage, reported: pb.Usage | None) -> pb.Usage:
    """Return the sums, with the size and the use of the context that opencode reported."""
    if reported is not None and reported.HasField("context_used"):
        used.context_used = reported.context_used
    if reported is not None and reported.HasField("context_size"):
        used.context_size = reported.context_size
    return used


def _is_known(tokens: Fields) -> bool:
    """Return whether the usage of a call is known: one that failed or was cut has zeros."""
    return any(number for _, number in tokens_of(tokens).ListFields())


def tokens_of(tokens: Fields) -> pb.TokenCounts:
    """Return the tokens of one call; opencode counts reasoning beside the output."""
    cache, reasoning = inner(tokens, "cache"), _count(tokens, "reasoning")
    return pb.TokenCounts(
        input=_count(tokens, "input"),
        output=_count(tokens, "output") + reasoning,
        reasoning=reasoning,
        cache_read=_count(cache, "read"),
        cache_write=_count(cache, "write"),
    )


def cost_of(call: Fields) -> float:
    """Return what a call cost; 0 if that is unknown, which opencode does not distinguish from free."""
    amount = number(call, "cost") or 0.0
    return amount if amount < _MOST else 0.0


def _count(tokens: Fields, key: str) -> int:
    found = count(tokens, key) or 0
    return found if found <= _MOST else 0
