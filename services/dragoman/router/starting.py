"""What the first adapter of a command needs to be started, before there is an event loop or a router.

It imports little, and nothing that looks for adapters: what opens it names the one to start.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.router.adapters.starting import GuardStarter
from dragoman.router.runtime_dirs import RuntimeDirs, open_runtime_dirs


class Starting(NamedTuple):
    """The directories of a router, and what starts its adapters."""

    dirs: RuntimeDirs
    starter: GuardStarter


@contextlib.contextmanager
def open_starting(state_dir: Path | None, *, orphan_after_s: float) -> Iterator[Starting]:
    """Create the directories; at the end of the block end what was prepared and not used.

    Args:
        state_dir: the state directory; ``None`` for the user's default.
        orphan_after_s: how long an adapter outlives this process if it crashes.

    Raises:
        AddressError: the directories are not safe.
        OSError: they cannot be created.
    """
    with open_runtime_dirs(state_dir) as dirs:
        starter = GuardStarter(dirs.runtime, dirs.logs, orphan_after_s=orphan_after_s)
        with contextlib.closing(starter):
            yield Starting(dirs, starter)
