"""The detection cache: one JSON file."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import structlog
from dragoman.router.adapters.detection import CachedDetection, FileMark

_FORMAT = 2
_log = structlog.get_logger("dragoman.router")


class DetectionFile:
    """A ``DetectionStore``. The file is replaced atomically, and readable by this user only.

    Args:
        path: the file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, CachedDetection]:
        """Return the cached detections; none if the file is missing, truncated, or of another format."""
        try:
            content = json.loads(self._path.read_bytes())
            if content["format"] != _FORMAT:
                return {}
            entries = dict(content["entries"])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError):
            _log.warning("detection cache not readable, ignoring it", file=self._path.name)
            return {}
        return {str(name): entry for name, value in entries.items() if (entry := _entry(value)) is not None}

    def save(self, entries: Mapping[str, CachedDetection]) -> None:
        """Replace the cache."""
        content = {"format": _FORMAT, "entries": {name: entry.to_json() for name, entry in entries.items()}}
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            # A new file every time, as an existing one would keep its mode.
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(json.dumps(content, indent=1).encode())
            fresh.replace(self._path)
        except OSError as error:
            _log.warning("detection cache not writable", errno=error.errno)

    def mark(self, path: str) -> FileMark | None:
        """Return the mark of a file, following links; ``None`` if it does not exist."""
        try:
            status = Path(path).stat()
        except (OSError, ValueError):
            return None
        return FileMark(status.st_mtime_ns, status.st_size)

    def environment(self, config_dir: str) -> str:
        """Return a digest that changes when an agent is installed or logged in, or a variable is set.

        It covers the modification times of the PATH folders, the home and the agent's config directory, and the names
        of all variables.
        """
        path = os.environ.get("PATH", "")
        folders = [*path.split(os.pathsep), os.path.expanduser("~"), config_dir]  # noqa: PTH111 - a string will do
        times = [mark.mtime_ns if (mark := self.mark(folder)) else None for folder in folders if folder]
        text = json.dumps([path, times, sorted(os.environ)])
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _entry(value: object) -> CachedDetection | None:
    if not isinstance(value, dict):
        return None
    try:
        return CachedDetection.from_json(value)
    except ValueError:
        return None
