"""The sum of what a run used, from opencode's own store."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.opencode.usage import StoredMessage, database, last_answer, read_messages, sum_up, with_context
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

SESSION = "ses_1"


def answer(model: str = "m-1", cost: float = 0.5, **tokens: Any) -> dict[str, Any]:
    counts = {"input": 10, "output": 3, "reasoning": 2, "cache": {"read": 5, "write": 1}, **tokens}
    return {"role": "assistant", "providerID": "p", "modelID": model, "cost": cost, "tokens": counts}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "opencode.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE session (id TEXT, parent_id TEXT)")
        connection.execute("CREATE TABLE message (session_id TEXT, time_created INTEGER, data TEXT)")
        connection.executemany(
            "INSERT INTO session VALUES (?, ?)", [(SESSION, None), ("nested", SESSION), ("ses_2", None)]
        )
        rows = [
            (SESSION, 50, answer(cost=9)),  # of an earlier run
            (SESSION, 100, {"role": "user"}),
            (SESSION, 110, answer()),
            ("nested", 120, answer("m-2", cost=0.25)),
            ("ses_2", 130, answer(cost=9)),  # of another
            (SESSION, 140, answer(input=0, output=0, reasoning=0, cache={"read": 0, "write": 0})),  # broken off
        ]
        connection.executemany("INSERT INTO message VALUES (?, ?, ?)", [(a, b, json.dumps(c)) for a, b, c in rows])
    return path


def usage_of(path: Path, session_id: str, since_ms: int) -> pb.Usage | None:
    messages = read_messages(path, session_id, since_ms)
    return None if messages is None else sum_up(message.content for message in messages)


def test_this_runs_calls_and_those_of_nested_agents_are_summed(store: Path) -> None:
    usage = usage_of(store, SESSION, 100)
    assert usage is not None
    assert usage.scope == pb.USAGE_SCOPE_RUN
    assert usage.tokens == pb.TokenCounts(input=20, output=10, reasoning=4, cache_read=10, cache_write=2)
    assert (usage.cost.amount, usage.cost.currency) == ("0.75", "USD")
    assert [(model.model, model.cost.amount) for model in usage.models] == [("p/m-1", "0.5"), ("p/m-2", "0.25")]


def test_nothing_is_claimed_of_what_is_not_known(store: Path, tmp_path: Path) -> None:
    assert usage_of(store, SESSION, 200) is None
    assert usage_of(store, "ses_none", 0) is None
    assert usage_of(tmp_path / "gone.db", SESSION, 0) is None
    assert not (tmp_path / "gone.db").exists()
    (tmp_path / "other.db").write_text("no database")
    assert usage_of(tmp_path / "other.db", SESSION, 0) is None
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection, connection:
        connection.execute("CREATE TABLE message (id TEXT)")
    assert usage_of(tmp_path / "new.db", SESSION, 0) is None


def test_unknown_prices_are_not_free() -> None:
    usage = sum_up([answer(cost=0)])
    assert usage is not None
    assert not usage.HasField("cost")
    assert not usage.models[0].HasField("cost")
    assert sum_up([]) is None


def test_floating_noise_is_left_out() -> None:
    usage = sum_up([answer(cost=0.1), answer(cost=0.2)])
    assert usage is not None
    assert usage.cost.amount == "0.3"


def test_how_full_the_context_is_stays() -> None:
    reported = pb.Usage(context_used=7)
    assert with_context(pb.Usage(), reported) == reported
    assert with_context(pb.Usage(), None) == pb.Usage()


def test_where_the_store_is() -> None:
    assert database({"HOME": "/h"}) == Path("/h/.local/share/opencode/opencode.db")
    assert database({"HOME": "/h", "XDG_DATA_HOME": "/d", "OPENCODE_DB": "x.db"}) == Path("/d/opencode/x.db")


ODD = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just({"read": -1})


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(["role", "tokens", "cost", "modelID"]), ODD), ODD, ODD)
def test_odd_messages_do_not_raise(more: dict[str, Any], tokens: Any, cost: Any) -> None:
    sum_up([more, {**answer(), **more}, answer(input=tokens, cache=tokens), {**answer(), "cost": cost}])


def test_the_last_answer_is_the_sessions_own() -> None:
    own, nested = {"role": "assistant", "finish": "length"}, {"role": "assistant", "finish": "stop"}
    messages = [
        StoredMessage(SESSION, {"role": "assistant", "finish": "tool-calls"}),
        StoredMessage(SESSION, own),
        StoredMessage("ses_nested", nested),
        StoredMessage(SESSION, {"role": "user"}),
    ]
    assert last_answer(messages, SESSION) == own
    assert last_answer(messages, "ses_none") == {}
