"""Each rule has a check, each check has a rule, and released sets of rules stay as they are."""

import json
import re
from pathlib import Path

import pytest
from dragoman.conformance import RULES, Level
from dragoman.conformance.check import CHECKS, STATUS_CHECKS, STREAM_CHECKS
from dragoman.protocol import REVISION
from dragoman.protocol.duties import duties, fields

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
