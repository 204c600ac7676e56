"""The process in which a router starts an installed adapter."""

import os
import subprocess
import sys
from pathlib import Path

from dragoman.router.adapters.launch_spec import SERVE


def test_garbage_is_collected_again_once_everything_is_imported() -> None:
    program = (
        "import gc, os, dragoman.sidecar as module\n"
        "def load(name):\n"
        "    print(name, gc.isenabled(), flush=True)\n"
        "    return name\n"
        "module.load_adapter = load\n"
        "module.serve = lambda name: print(name, gc.isenabled(), gc.get_freeze_count() > 0, flush=True)\n"
        "module.main()\n"
    )
    command = [sys.executable, "-c", program]
    environment = {"DRAGOMAN_ADAPTER": "mine"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "mine False\nmine True True\n"


def test_a_sidecar_does_not_look_for_garbage_while_it_imports(tmp_path: Path) -> None:
    """Python imports the package of a module that it runs first, so that such a module is in no large package."""
    count = "import gc; print(sum(generation['collections'] for generation in gc.get_stats()))"
    (tmp_path / "counting.py").write_text(f"{count}; raise SystemExit", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "DRAGOMAN_ADAPTER": "counting:adapter"}
    counts = [
        int(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=50).stdout)
        for command in ([sys.executable, "-c", count], SERVE)
    ]
    assert counts[1] <= counts[0] + 10  # 84 if it did
