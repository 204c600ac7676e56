"""Where a process ID of this process means something, for callers that would look at the process."""

import re
import socket
from pathlib import Path
from typing import Final, TypedDict

_NAMESPACE: Final = re.compile(r"pid:\[(\d+)\]")


class Place(TypedDict, total=False):
    """The fields of ``State`` beside a process ID."""

    host: str
    pid_namespace: int


def place_of_processes() -> Place:
    """Return the machine's name and the PID namespace of this process; the latter is absent where there is none."""
    place = Place(host=socket.gethostname())
    try:
        found = _NAMESPACE.fullmatch(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        return place  # another system than Linux
    if found is not None:
        place["pid_namespace"] = int(found[1])
    return place
