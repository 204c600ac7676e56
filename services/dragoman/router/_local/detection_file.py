"""Detections kept in one JSON file."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import structlog
from dragoman.router._domain.detection import CachedDetection, FileMark

_FORMAT = 1
_log = structlog.get_logger("dragoman.router")


class DetectionFile:
    """A ``DetectionStore``. The file is replaced whole, and readable by this user only.

    Args:
        path: the file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, CachedDetection]:
        """Return what is kept; nothing if the file is missing, cut, or of another format."""
        try:
            content = json.loads(self._path.read_bytes())
            if content["format"] != _FORMAT:
                return {}
            entries = dict(content["entries"])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError):
            _log.warning("the cache of detections cannot be read and is ignored", file=self._path.name)
            return {}
        return {str(name): entry for name, value in entries.items() if (entry := _entry(value)) is not None}

    def save(self, entries: Mapping[str, CachedDetection]) -> None:
        """Keep this and nothing else."""
        content = {"format": _FORMAT, "entries": {name: entry.to_json() for name, entry in entries.items()}}
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            # Made anew every time: the mode of a file that is there would stay as it is.
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(json.dumps(content, indent=1).encode())
            fresh.replace(self._path)
        except OSError as error:
            _log.warning("the cache of detections cannot be written", errno=error.errno)

    def mark(self, path: str) -> FileMark | None:
        """Look at a file, through links; ``None`` if it is not there."""
        try:
            status = Path(path).stat()
        except (OSError, ValueError):
            return None
        return FileMark(status.st_mtime_ns, status.st_size)

    def surroundings(self, config_dir: str) -> str:
        """Return what changes when somebody installs an agent, logs in, or sets a variable.

        The times of the folders on PATH, of the home, and of the agent's own; and the names of all variables.
        """
        path = os.environ.get("PATH", "")
        folders = [*path.split(os.pathsep), os.path.expanduser("~"), config_dir]  # noqa: PTH111 - a string will do
        times = [mark.mtime_ns if (mark := self.mark(folder)) else None for folder in folders if folder]
        told = json.dumps([path, times, sorted(os.environ)])
        return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()


def _entry(value: object) -> CachedDetection | None:
    if not isinstance(value, dict):
        return None
    try:
        return CachedDetection.from_json(value)
    except ValueError:
        return None
