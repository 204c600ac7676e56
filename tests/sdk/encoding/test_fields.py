"""Numbers of untrusted frames: what the contract's fields cannot hold reads as absent."""

import pytest
from dragoman.sdk import fields
from dragoman.sdk.fields import JsonValue
from dragoman.v1 import event_pb2 as pb

NEITHER: list[JsonValue] = [-1, 2**63, 2**64, 1e300, 0.5, True, "7", None, [], float("nan"), float("inf")]


@pytest.mark.parametrize("value", NEITHER)
def test_what_is_no_count_is_absent(value: JsonValue) -> None:
    assert fields.count({"n": value}, "n") is None


@pytest.mark.parametrize("value", [0, 7, 2**63 - 1])
def test_a_count_fits_into_the_contract(value: int) -> None:
    assert pb.TokenCounts(input=fields.count({"n": value}, "n")).input == value
