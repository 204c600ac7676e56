"""Each rule has a check, each check has a rule, and released sets of rules stay as they are."""

import json
import re
from pathlib import Path

import pytest
from dragoman.conformance import RULES, Level
from dragoman.conformance.check import CHECKS, STATUS_CHECKS, STREAM_CHECKS, UNEXAMINED
from dragoman.protocol import REVISION
from dragoman.protocol.duties import duties, fields
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2

ROOT = Path(__file__).parents[2]
FROZEN = json.loads(Path(__file__).with_name("requirements.json").read_text())
"""By revision: the level of each rule. To change a set, the contract needs a new revision."""


def test_each_rule_has_one_check() -> None:
    kinds = [CHECKS.keys(), STREAM_CHECKS.keys(), STATUS_CHECKS.keys()]
    checked = [name for kind in kinds for name in kind]
    assert sorted(checked) == sorted(RULES)


def test_the_sets_of_rules_are_frozen() -> None:
    for revision in range(1, REVISION + 1):
        found = {rule.id: rule.level.value for rule in RULES.values() if rule.revision == revision}
        assert found == FROZEN[str(revision)]
    assert max(rule.revision for rule in RULES.values()) <= REVISION


@pytest.mark.parametrize("rule_id", RULES)
def test_a_rule_is_a_sentence_with_its_place(rule_id: str) -> None:
    rule = RULES[rule_id]
    assert re.fullmatch(r"[a-z]+\.[a-z0-9-]+", rule_id)
    assert rule.text.endswith(".")
    assert rule.level in Level
    protos = "".join(path.read_text() for path in (ROOT / "proto/dragoman/v1").glob("*.proto"))
    name, _, field = re.split(r", | \(", rule.place)[0].partition(".")
    if rule.place.startswith("duties.json: "):
        assert set(rule.place.removeprefix("duties.json: ").split(", ")) <= {
            row.name for row in (*fields(), *duties())
        }
    elif rule.place.startswith("docs/"):
        assert (ROOT / rule.place).exists()
    elif not rule.place.endswith(("head", "readers")):
        assert re.search(rf"(message|service|enum) {name} ", protos), rule.place
        assert not field or re.search(rf"\b{field} = \d|rpc {field}\(", protos), rule.place


def test_each_feature_is_examined_or_there_is_a_reason() -> None:
    modes = {"PERMISSION_MODE_STRICT", "PERMISSION_MODE_PERMISSIVE"}
    features = {name for name, value in event_pb2.Feature.items() if value} | modes
    examined = {name for rule in RULES.values() for name in rule.declared_by}
    assert examined | UNEXAMINED.keys() == features
    assert not examined & UNEXAMINED.keys()
    page = (ROOT / "docs/guides/conformance.md").read_text()
    assert [name for name, why in UNEXAMINED.items() if f"| `{name}` | {why} |" not in page] == []


def test_each_rpc_is_the_place_of_a_rule() -> None:
    files = (adapter_pb2.DESCRIPTOR, router_pb2.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    rpcs = {f"{service.name}.{method.name}" for service in services for method in service.methods}
    places = {place for rule in RULES.values() for place in _rpcs(rule.place)}
    unruled = {"AdapterService.Describe": "its response has rules of its own"}
    unruled["RouterService.ListBudgets"] = "the router's own tests examine what it counts"
    assert rpcs - places == unruled.keys()


def _rpcs(place: str) -> list[str]:
    service, _, names = place.partition(".")
    return [f"{service}.{name}" for name in names.split(", ")]
