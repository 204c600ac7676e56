"""What a run used, summed over its calls of the model.

Over the Agent Client Protocol opencode tells only the last call's tokens. All of them are in its own store, a SQLite
database, which is read and never written; if it cannot be understood, nothing is claimed.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Final

from dragoman.sdk import JsonValue, as_int, as_number, as_object, as_string, parse_json_object
from dragoman.v1 import event_pb2 as pb

_WAIT_S: Final = 2.0
_MOST: Final = 2**53
_DIGITS: Final = Decimal("0.0000000001")
"""Costs come as binary floating point; beyond ten digits there is only noise."""
_MESSAGES: Final = """
    WITH RECURSIVE family(id) AS (
        SELECT ?1 UNION SELECT session.id FROM session JOIN family ON session.parent_id = family.id
    )
    SELECT data FROM message WHERE session_id IN family AND time_created >= ?2 ORDER BY time_created LIMIT 10000
"""


def database(env: Mapping[str, str]) -> Path:
    """Return where opencode keeps its sessions, with this environment."""
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    folder = Path(env["XDG_DATA_HOME"]) if env.get("XDG_DATA_HOME") else home / ".local/share"
    return folder / "opencode" / (env.get("OPENCODE_DB") or "opencode.db")


def read_usage(path: Path, session_id: str, since_ms: int) -> pb.Usage | None:
    """Return what a session and its nested ones used; None if that cannot be told.

    Args:
        path: opencode's database.
        session_id: the session.
        since_ms: Unix milliseconds; what was said before is left out.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S)) as store:
            rows = store.execute(_MESSAGES, (session_id, since_ms)).fetchall()
    except sqlite3.Error:
        return None
    said = (parse_json_object(row[0].encode("utf-8", "replace")) for row in rows if isinstance(row[0], str))
    return sum_up(message for message in said if message is not None)


def sum_up(messages: Iterable[Mapping[str, JsonValue]]) -> pb.Usage | None:
    """Sum up the answers of the model; None if there are none. Pure."""
    usage = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    models: dict[str, pb.ModelUsage] = {}
    costs: dict[str, Decimal] = {}
    for message in messages:
        tokens = as_object(message.get("tokens"), {})
        if message.get("role") != "assistant" or not _is_told(tokens):
            continue
        name = f"{as_string(message.get('providerID'), '')}/{as_string(message.get('modelID'), '')}"
        add_tokens(usage.tokens, tokens)
        add_tokens(models.setdefault(name, pb.ModelUsage(model=name)).tokens, tokens)
        costs[name] = costs.get(name, Decimal(0)) + cost_of(message)
    for name, model in models.items():
        if costs[name]:
            set_cost(model.cost, costs[name])
        usage.models.append(model)
    if total := sum(costs.values(), Decimal(0)):
        set_cost(usage.cost, total)
    return usage if models else None


def with_context(used: pb.Usage, told: pb.Usage | None) -> pb.Usage:
    """Return what was used, with what was told about how full the context is."""
    if told is not None and told.HasField("context_used"):
        used.context_used = told.context_used
    if told is not None and told.HasField("context_size"):
        used.context_size = told.context_size
    return used


def _is_told(tokens: Mapping[str, JsonValue]) -> bool:
    """Tell whether anything is known of a call: one that failed or was broken off has zeros."""
    cache = as_object(tokens.get("cache"), {})
    counts = [_count(tokens, name) for name in ("input", "output", "reasoning")]
    return any([*counts, _count(cache, "read"), _count(cache, "write")])


def add_tokens(counts: pb.TokenCounts, tokens: Mapping[str, JsonValue]) -> None:
    """Add what opencode says of one call; it counts reasoning beside the output."""
    cache = as_object(tokens.get("cache"), {})
    reasoning = _count(tokens, "reasoning")
    counts.input += _count(tokens, "input")
    counts.output += _count(tokens, "output") + reasoning
    counts.reasoning += reasoning
    counts.cache_read += _count(cache, "read")
    counts.cache_write += _count(cache, "write")


def cost_of(call: Mapping[str, JsonValue]) -> Decimal:
    """Return what a call cost; 0 if that is not known, which opencode does not set apart from free."""
    amount = as_number(call.get("cost"), 0)
    return Decimal(repr(amount)) if 0 < amount < _MOST else Decimal(0)


def set_cost(cost: pb.Cost, amount: Decimal) -> None:
    """Write an amount of dollars as a plain decimal number."""
    plain = f"{amount.quantize(_DIGITS):f}"
    cost.amount = plain.rstrip("0").rstrip(".") or "0"
    cost.currency = "USD"
    cost.basis = pb.COST_BASIS_REPORTED


def _count(fields: Mapping[str, JsonValue], key: str) -> int:
    value = as_int(fields.get(key), 0)
    return value if 0 <= value <= _MOST else 0
