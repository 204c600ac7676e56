"""The process in which a router starts an installed adapter."""

import subprocess
import sys


def test_garbage_is_collected_again_once_everything_is_imported() -> None:
    program = (
        "import gc, os, dragoman.sdk.__main__ as module\n"
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
