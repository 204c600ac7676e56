"""The detection cache: one JSON file."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.detection import CachedDetection, FileMark
from dragoman.v1 import adapter_pb2 as pb
from google.protobuf.message import DecodeError
from msgspec import Struct

_FORMAT = 3
_DIRECTORIES = ("HOME", "_DIR")
"""How variables end that name a directory of an agent's, such as ``CODEX_HOME``."""
_SECRETS = ("_KEY", "_TOKEN")
"""How variables end that log an agent in, such as ``ANTHROPIC_API_KEY``."""
_log = Logger("dragoman.router")


class _Content(Struct):
    format: int
    entries: dict[str, CachedDetection]


class DetectionFile:
    """Caches detections across restarts. The file is replaced atomically, and readable by this user only.

    Args:
        path: the file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, CachedDetection]:
        """Return the cached detections; none if the file is missing, damaged, or of another format."""
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=_Content)
            for entry in content.entries.values():
                pb.Detection.FromString(entry.detection)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, DecodeError):  # msgspec's errors are ValueErrors
            _log.warning("detection cache not readable, ignoring it", file=self._path.name)
            return {}
        return content.entries if content.format == _FORMAT else {}

    def save(self, entries: Mapping[str, CachedDetection]) -> None:
        """Replace the cache. A failure is logged, not raised, as this is only a cache."""
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            # A new file every time, as an existing one would keep its mode.
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(_Content(_FORMAT, dict(entries))))
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

    def logins(self) -> str:
        """Return a digest that changes when the router's variables lead agents to other logins or programs.

        It covers the PATH, the directories that variables name, and the names of keys and tokens.
        """
        found = [("PATH", os.environ.get("PATH", ""))]
        found += sorted((name, value) for name, value in os.environ.items() if name.endswith(_DIRECTORIES))
        found += sorted((name, "") for name, value in os.environ.items() if value and name.endswith(_SECRETS))
        return hashlib.sha256(json.dumps(found).encode("utf-8", "surrogateescape")).hexdigest()

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
