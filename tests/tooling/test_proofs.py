"""The tables of docs/proofs.md: what makes a cell, and which features have a row."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

import pytest
from dragoman.v1 import event_pb2 as pb

from .programs import ROOT


@pytest.fixture(scope="module")
def proofs() -> Any:
    """The script as a module."""
    spec = spec_from_loader("proofs", SourceFileLoader("proofs", str(ROOT / "scripts" / "proofs")))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("feature", "statuses", "cell"),
    [
        ("STEER", {"a": "passed"}, "✓"),
        ("STEER", {"a": "passed", "b": "failed"}, "✗"),
        ("STEER", {"a": "passed", "b": "not supported by the agent"}, "✓"),
        ("STEER", {}, "·"),
        ("STEER", {"a": "not testable offline"}, "·"),
        ("QUEUE", {"a": "passed"}, "SDK"),
        ("ARTIFACTS", {"a": "passed"}, "\N{EN DASH}"),
    ],
)
def test_a_cell_is_what_is_declared_and_what_was_seen(
    proofs: Any, feature: str, statuses: dict[str, str], cell: str
) -> None:
    declared = {"FEATURE_STEER", "FEATURE_QUEUE"}
    rows = {name: {"status": status} for name, status in statuses.items()}
    assert proofs.offer(f"FEATURE_{feature}", "codex", declared, {"a", "b"}, rows) == cell


def test_features_have_the_words_of_the_contract(proofs: Any) -> None:
    found = proofs.features()
    assert next(iter(found)) == proofs.FIRST
    assert list(found) == [name for name, value in pb.Feature.items() if value >= pb.FEATURE_CHANGES], (
        "a later one is missing"
    )
    assert found["FEATURE_STEER"] == "The agent takes inputs in its present turn"


def test_scenarios_say_which_feature_they_need(proofs: Any) -> None:
    found = proofs.proved_by()
    assert "queued input" in found["FEATURE_QUEUE"]
    assert "image" in found["FEATURE_IMAGES"]
