"""The last line of a run and its exit code."""

import pytest
from dragoman.cli.display.summary import exit_code, last_line, processes
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2

FULL = pb.Result(
    outcome=pb.OUTCOME_SUCCEEDED,
    duration=duration_pb2.Duration(seconds=3, nanos=200_000_000),
    usage=pb.Usage(tokens=pb.TokenCounts(input=1234, output=56), cost=pb.Cost(amount="0.0026", currency="USD")),
)


def test_all_is_known() -> None:
    assert last_line(FULL, "run-1") == "succeeded in 3.2 s · 1,234 in / 56 out tokens · $0.0026 · run run-1"


def test_nothing_is_known() -> None:
    line = last_line(pb.Result(outcome=pb.OUTCOME_LOST), "run-1")
    assert line == "lost in unknown time · tokens unknown · cost unknown · run run-1"


def test_absent_is_not_zero_and_zero_is_zero() -> None:
    result = pb.Result(usage=pb.Usage(tokens=pb.TokenCounts(output=0), cost=pb.Cost(amount="0", currency="USD")))
    assert "unknown in / 0 out tokens · $0.00" in last_line(result, "r")


def test_cached_tokens_are_shown_apart() -> None:
    tokens = pb.TokenCounts(input=10, output=2, cache_read=3000, cache_write=400)
    assert "10 in + 3,400 cached / 2 out tokens" in last_line(pb.Result(usage=pb.Usage(tokens=tokens)), "r")


def test_models_are_summed_as_far_as_all_of_them_are_known() -> None:
    models = [
        pb.ModelUsage(model="a", tokens=pb.TokenCounts(input=1, output=10)),
        pb.ModelUsage(model="b", tokens=pb.TokenCounts(input=2)),
        pb.ModelUsage(model="c"),
    ]
    assert "3 in / unknown out tokens" in last_line(pb.Result(usage=pb.Usage(models=models)), "r")


def test_a_hostile_run_id_is_neutral() -> None:
    assert "\x1b" not in last_line(FULL, "run\x1b[2J")


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (pb.OUTCOME_SUCCEEDED, 0),
        (pb.OUTCOME_FAILED, 1),
        (pb.OUTCOME_TIMED_OUT, 1),
        (pb.OUTCOME_LOST, 1),
        (pb.OUTCOME_UNSPECIFIED, 1),
        (pb.OUTCOME_CANCELLED, 130),
    ],
)
def test_exit_codes(outcome: pb.Outcome.ValueType, code: int) -> None:
    assert exit_code(pb.Result(outcome=outcome)) == code


def test_an_outcome_of_a_later_revision_is_no_success() -> None:
    result = pb.Result.FromString(b"\x08\x63")
    assert exit_code(result) == 1
    assert last_line(result, "r").startswith("kind 99 in ")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (pb.Result(tree_confirmed_dead=True), "all processes of the run are confirmed dead"),
        (pb.Result(tree_confirmed_dead=False), "its processes are NOT confirmed dead; check for them"),
        (pb.Result(), "its adapter reports no processes"),
        (pb.Result(outcome=pb.OUTCOME_LOST), "its processes may still run; check for them"),
    ],
)
def test_processes(result: pb.Result, text: str) -> None:
    assert processes(result) == text
