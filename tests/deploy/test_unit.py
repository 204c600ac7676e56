"""The systemd unit of deploy/examples, as a file; tests/cluster/test_unit.py runs it."""

import re
from pathlib import Path

UNIT = Path(__file__).parents[2] / "deploy" / "examples" / "dragoman.service"
IN_A_NAMESPACE = re.compile(r"(Private|Protect|ReadOnly|ReadWrite|Inaccessible|Bind|Root|Temporary|Mount)\w*=")
"""Settings for which systemd makes a mount namespace, and so to a user's unit a user namespace since version 254."""


def test_no_setting_hides_who_has_the_directories_above_those_of_dragoman() -> None:
    """In a user namespace /home belongs to no known user, and Dragoman refuses to begin below it."""
    assert not [line for line in UNIT.read_text(encoding="utf-8").splitlines() if IN_A_NAMESPACE.match(line)]
