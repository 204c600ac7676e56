"""The programs of the development environments; where one is missing that is an error, never a skip."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(sys.executable).parent


def program(path: Path) -> str:
    """Return the path of a program.

    Raises:
        FileNotFoundError: it is not installed; the text says what installs it.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; `make test` makes both environments")
    return str(path)


def run(*command: str, timeout_s: float = 50, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a program at the top of the repository; its exit status is the caller's to judge."""
    env = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
