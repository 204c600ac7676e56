"""The clients in TypeScript and Go know each reason of the contract, with its status."""

import re
from pathlib import Path

from dragoman.protocol.errors import Reason

CLIENTS = Path(__file__).parents[2] / "clients"
STATUSES = {reason.value: reason.status.name for reason in Reason}


def test_the_typescript_client_knows_each_reason() -> None:
    text = (CLIENTS / "typescript" / "src" / "errors.ts").read_text(encoding="utf-8")
    assert dict(re.findall(r"^  ([A-Z_]+): status\.([A-Z_]+),$", text, re.MULTILINE)) == STATUSES


def test_the_go_client_knows_each_reason() -> None:
    text = (CLIENTS / "go" / "errors.go").read_text(encoding="utf-8")
    values = dict(re.findall(r'^\t(\w+) +Reason = "([A-Z_]+)"$', text, re.MULTILINE))
    found = {}
    for names, status in re.findall(r"^\tcase ([\w,\s]+):\n\t\treturn codes\.(\w+)$", text, re.MULTILINE):
        code = re.sub(r"(?<!^)(?=[A-Z])", "_", status).upper()
        found.update(dict.fromkeys((values[name] for name in re.findall(r"\w+", names)), code))
    assert sorted(values.values()) == sorted(STATUSES)
    assert found == STATUSES
