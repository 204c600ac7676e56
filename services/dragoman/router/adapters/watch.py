"""Adapters whose files come and go while the router runs: manifests and sockets.

The files are looked at every second. What has changed counts once it is the same at two looks: a file that is being
written, or replaced, is not read halfway.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dragoman.router.adapters.adapter_set import AdapterSet
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.discovery import FileSource, FileState
from dragoman.router.adapters.specs import AdapterSpec

_LOOK_S: Final = 1.0


class FileWatch:
    """Adds, replaces and removes adapters as their files change.

    Args:
        source: the files.
        adapters: the adapters; those whose files were read before are among them.
    """

    def __init__(self, source: FileSource, adapters: AdapterSet) -> None:
        self._source = source
        self._adapters = adapters
        self._known: dict[Path, AdapterBackend] = {
            Path(backend.record.spec.file): backend
            for backend in adapters
            if backend.record.spec.file and backend.record.spec.source == source.kind
        }
        self._read: dict[Path, FileState] = {}
        """How the files were when they were read."""
        self._before: Mapping[Path, FileState] = {}
        """How they were at the last look."""

    async def run(self) -> None:
        """Look at the files, without end."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Look at the files once."""
        before, now = self._before, self._source.files()
        self._before = now
        gone = [path for path in self._known if path not in before and path not in now]
        settled = [path for path, mark in now.items() if before.get(path) == mark != self._read.get(path)]
        self._read = {path: mark for path, mark in self._read.items() if path not in gone}
        self._read.update((path, now[path]) for path in settled)
        specs = {path: self._source.spec(path) for path in settled}
        changed = {path: spec for path, spec in specs.items() if not self._is_known(path, spec)}
        # The old ones go first, as two files may have exchanged their adapters.
        for path in (*gone, *changed):
            self._remove(path)
        for path, spec in changed.items():
            self._known[path] = self._adapters.add(spec)

    def _is_known(self, path: Path, spec: AdapterSpec) -> bool:
        return path in self._known and self._known[path].record.spec == spec

    def _remove(self, path: Path) -> None:
        backend = self._known.pop(path, None)
        if backend is not None:
            self._adapters.remove(backend)
