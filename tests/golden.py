"""Golden files: long results that were read once and found right, and must stay as they are.

``GOLDEN=write pytest tests/...`` writes them anew: read the difference before you commit it.
"""

import difflib
import os
from pathlib import Path


def assert_golden(path: Path, text: str) -> None:
    """Compare a text with its golden file."""
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    golden = path.read_text(encoding="utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(golden, text.splitlines(), "golden", "now", n=0, lineterm=""))
    assert not difference, f"{path} differs; if that is meant, GOLDEN=write writes it anew:\n{difference}"
