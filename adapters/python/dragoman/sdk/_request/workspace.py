"""Where an agent works: a directory that is named, absolute, there, and open to us. Never the server's own."""

import os
import stat
from pathlib import Path
from typing import Final

from msgspec import Struct

_LONGEST_SHOWN: Final = 300  # characters of a path in a message


class CwdProblem(Struct, frozen=True):
    """Why an agent cannot work in a directory."""

    code: str
    """Stable."""

    message: str
    """What is wrong: a sentence without its full stop, so that the hint may follow."""

    hint: str
    """How to fix it, as a sentence."""


def check_cwd(path: str | None) -> CwdProblem | None:
    """Return what keeps an agent from working in ``path``; None if nothing does.

    Refusals and TestEnvironment's checks both come from here, so they agree. There is no default: an
    agent that quietly works in its server's directory does its damage there.
    """
    if not path:
        return CwdProblem(
            "cwd_missing", "A working directory is required", "Give the absolute path of an existing directory."
        )
    shown = repr(path[:_LONGEST_SHOWN])
    if "\0" in path:
        return CwdProblem("cwd_invalid", f"{shown} contains a zero byte", "No path does; correct it.")
    if not Path(path).is_absolute():
        hint = "Nothing expands ~ here; give the path from / on." if path[0] == "~" else "Give the path from / on."
        return CwdProblem("cwd_relative", f"{shown} is not an absolute path", hint)
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return _unreachable(shown, error)
    if not stat.S_ISDIR(mode):
        return CwdProblem("cwd_no_directory", f"{shown} is no directory", "Give the directory that holds it.")
    if not os.access(path, os.R_OK | os.X_OK):
        return CwdProblem("cwd_forbidden", f"{shown} may not be entered", "Give the adapter's user access to it.")
    return None


def _unreachable(shown: str, error: OSError) -> CwdProblem:
    match error:
        case FileNotFoundError():
            return CwdProblem(
                "cwd_absent", f"{shown} does not exist on the adapter's machine", "Create it, or correct the path."
            )
        case NotADirectoryError():
            return CwdProblem("cwd_no_directory", f"A part of {shown} is no directory", "Correct the path.")
        case PermissionError():
            return CwdProblem(
                "cwd_forbidden", f"A part of {shown} may not be entered", "Give the adapter's user access to it."
            )
        case _:  # too long, or links in a circle
            return CwdProblem("cwd_invalid", f"{shown} cannot be used: {error.strerror}", "Correct the path.")
