"""Where an agent works: a directory that is named, absolute, and there. Never the server's own."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CwdProblem:
    """Why a working directory cannot be used."""

    code: str
    """Stable, e.g. ``cwd_missing``."""
    message: str
    hint: str


def check_cwd(path: str | None) -> CwdProblem | None:
    """Return what is wrong with a working directory; None if nothing is.

    Refusals and TestEnvironment's checks both come from here, so they agree.
    """
    if not path:
        return CwdProblem(
            "cwd_missing", "a working directory is required", "Give its absolute path; there is no default."
        )
    if "\0" in path or not Path(path).is_absolute():
        return CwdProblem("cwd_relative", f"{path!r} is not an absolute path", "Give the path from / on.")
    if not Path(path).exists():
        return CwdProblem(
            "cwd_absent", f"{path!r} does not exist on the adapter's machine", "Create it, or correct it."
        )
    if not Path(path).is_dir():
        return CwdProblem("cwd_no_directory", f"{path!r} is no directory", "Give the directory that holds it.")
    if not os.access(path, os.R_OK | os.X_OK):
        return CwdProblem("cwd_forbidden", f"{path!r} may not be entered", "Give the adapter's user access to it.")
    return None
