"""The files of runs: those that come with a prompt, and those that an agent leaves; each run has a directory.

All directories of one server are below one of its own, which it holds a lock on. What a server that was killed left
behind is removed by the next one.
"""

import asyncio
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import near_names
from dragoman.protocol.logs import Logger
from dragoman.protocol.order import OrderError
from dragoman.sdk._artifacts.collecting import Collected, KeptFile, collect, shown_name
from dragoman.sdk._output.attached import AttachedFile
from dragoman.sdk._request.attachments import AttachmentError, bytes_of, lay_out_attachments
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_PREFIX: Final = "dragoman-files-"
_YOUNG_S: Final = 60.0
"""Seconds in which a directory may have no lock yet."""
_LEFT_OUT: Final = "artifacts_left_out"
MOST_SENT_BYTES: Final = 256 * 1024 * 1024
"""Bytes of the files that come with the inputs of a run."""

Notify = Callable[[pb.Severity.ValueType, str, str], None]

_log = Logger("dragoman.sdk")


class FileStore:
    """Where the files of a server's runs are."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._lock = -1

    def files_of_run(self) -> "RunFiles":
        """Make the directory of a run.

        Raises:
            OSError: it cannot be made.
        """
        import tempfile  # noqa: PLC0415 - an adapter serves sooner without it

        if self._root is None:
            root = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._root = root
            _in_thread(remove_leftovers, root.parent)
        return RunFiles(Path(tempfile.mkdtemp(dir=self._root, prefix="")))

    def close(self) -> None:
        """Remove everything."""
        if self._root is not None:
            remove_tree(self._root)
            os.close(self._lock)
            self._root = None


def remove_leftovers(folder: Path) -> None:
    """Remove the directories of servers of this user that live no more."""
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if not is_ours or time.time() - status.st_mtime < _YOUNG_S:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
                _log.info("files of an ended server removed", path=str(path))
            finally:
                os.close(lock)


class RunFiles:
    """The files of one run.

    Args:
        directory: its own.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.artifacts = directory / "artifacts"
        """Where its agent leaves files for the caller."""
        self.artifacts.mkdir(mode=0o700)
        self.attached: tuple[AttachedFile, ...] = ()
        """What came with its prompt."""
        self.directories: list[str] = []
        """Where its agent finds them, and those that came with inputs."""
        self._sent = self._sent_bytes = 0
        self._kept: dict[str, KeptFile] = {}
        self._is_dropped = False
        self.kept_bytes = 0
        """How much room its artifacts take."""

    async def lay_out(self, request: adapter_pb2.ExecuteRequest) -> None:
        """Write the files that come with the prompt.

        Raises:
            AttachmentError: one is not what it was when the request was checked.
            OSError: one cannot be written.
        """
        if request.attachments:
            self.attached = await self._written("attachments", list(request.attachments))

    async def lay_out_sent(self, attachments: Sequence[adapter_pb2.Attachment]) -> tuple[AttachedFile, ...]:
        """Write the files that come with an input, into a directory of their own. Cancelled, leave none.

        Raises:
            AttachmentError: one is not what it was when the request was checked, or the run has got too much.
            OSError: one cannot be written.
        """
        # A thread cannot be cancelled: what it writes is removed once it has ended.
        writing = asyncio.create_task(self._write_sent(list(attachments)))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(self._remove_unwanted)
            raise

    async def _write_sent(self, attachments: list[adapter_pb2.Attachment]) -> tuple[AttachedFile, ...]:
        reserved = await asyncio.to_thread(bytes_of, attachments)
        room = MOST_SENT_BYTES - self._sent_bytes
        if reserved > room:
            raise _too_much()
        self._sent += 1
        self._sent_bytes += reserved
        try:
            files = await self._written(f"sent-{self._sent}", attachments, room)
        finally:
            self._sent_bytes -= reserved
        self._sent_bytes += sum(file.size for file in files)
        if self._sent_bytes > MOST_SENT_BYTES:  # as the files of another input had more than the system said
            self.remove(files)
            raise _too_much()
        return files

    async def _written(
        self, name: str, attachments: list[adapter_pb2.Attachment], most: int | None = None
    ) -> tuple[AttachedFile, ...]:
        directory = self._directory / name
        directory.mkdir(mode=0o700)
        try:
            files = await asyncio.to_thread(lay_out_attachments, attachments, directory, most)
        except (AttachmentError, OSError):
            _in_thread(remove_tree, directory)
            raise
        self.directories.append(str(directory))
        return files

    def _remove_unwanted(self, writing: "asyncio.Task[tuple[AttachedFile, ...]]") -> None:
        if not writing.cancelled() and writing.exception() is None:
            self.remove(writing.result())

    def remove(self, files: Sequence[AttachedFile]) -> None:
        """Remove files that came with an input which was not accepted."""
        if files:
            self.directories.remove(str(files[0].path.parent))
            self._sent_bytes -= sum(file.size for file in files)
            _in_thread(remove_tree, files[0].path.parent)

    async def conclude(
        self, emit: Callable[[pb.AgentEvent], None], notice: Notify, redact: Callable[[str], str]
    ) -> None:
        """Report and keep what the agent left, and remove the rest. Its processes have ended.

        Args:
            emit: writes an event of the run.
            notice: writes a notice: severity, code and message.
            redact: hides the secrets in a name, as in events.
        """
        for directory in self.directories:
            await asyncio.to_thread(remove_tree, Path(directory))
        self.attached = ()
        if _is_empty(self.artifacts):
            self._remove_all()
            return
        kept = self._directory / "kept"
        try:
            kept.mkdir(mode=0o700)
            found = await asyncio.to_thread(collect, self.artifacts, kept)
        except OSError as error:
            found = Collected()
            found.leave_out("the directory", f"cannot be read: {error.strerror}")
        with suppress(OSError):
            await asyncio.to_thread(self._remove_but, kept)
        self.kept_bytes = found.size
        with suppress(OrderError):  # the run ended before an attempt; then no agent left anything
            self._report(found, emit, notice, redact)

    def _report(
        self, found: Collected, emit: Callable[[pb.AgentEvent], None], notice: Notify, redact: Callable[[str], str]
    ) -> None:
        for file in found.kept:
            if redact(file.artifact.name) in self._kept:
                found.leave_out(file.artifact.name, "has the name of another one, with the secret in it hidden")
                continue
            event = pb.AgentEvent(artifact=file.artifact, origin=pb.EVENT_ORIGIN_ADAPTER)
            emit(event)
            self._kept[event.artifact.name] = file  # a secret in the name is hidden
        if found.left_out:
            reasons = "; ".join(found.reasons)
            message = f"{found.left_out} of the files that the agent left are not kept: {reasons}."
            notice(pb.SEVERITY_WARNING, _LEFT_OUT, message)

    def find(self, run_id: str, name: str) -> KeptFile:
        """Return an artifact.

        Raises:
            DragomanError: ARTIFACT_NOT_FOUND, or ARTIFACTS_GONE.
        """
        if self._is_dropped:
            raise gone(run_id)
        kept = self._kept.get(name)
        if kept is None:
            raise unknown_artifact(run_id, name, self._kept)
        return kept

    def drop(self) -> None:
        """Remove what is kept, as the run is forgotten or there is no more room."""
        self._is_dropped = True
        self.kept_bytes = 0
        self.attached = ()
        self._remove_all()

    def _remove_all(self) -> None:
        with suppress(OSError):  # mostly there is nothing
            self.artifacts.rmdir()
            self._directory.rmdir()
            return
        _in_thread(remove_tree, self._directory)

    def _remove_but(self, kept: Path) -> None:
        for path in self._directory.iterdir():
            if path != kept:
                remove_tree(path)


def _too_much() -> AttachmentError:
    return AttachmentError(f"the files of all inputs of a run have at most {MOST_SENT_BYTES >> 20} MiB")


def unknown_artifact(run_id: str, name: str, known: Iterable[str] = ()) -> DragomanError:
    """Return the error for a name that no event of the run reported."""
    near = near_names(name, known)
    hint = f"; did you mean {', '.join(repr(shown_name(one)) for one in near)}?" if near else ""
    metadata = {"did_you_mean": ",".join(near)} if near else {}
    message = f"run {run_id!r} has no artifact {shown_name(name)!r}{hint}"
    return DragomanError(Reason.ARTIFACT_NOT_FOUND, message, metadata)


def gone(run_id: str) -> DragomanError:
    """Return the error where the files of a run are not kept any more."""
    message = f"the artifacts of run {run_id!r} are not kept any more; read them sooner after the run's end"
    return DragomanError(Reason.ARTIFACTS_GONE, message)


def _is_empty(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    except OSError:
        return not os.path.lexists(directory)


def remove_tree(path: Path) -> None:
    """Remove whatever is there: an agent may leave directories that even their owner cannot enter."""
    import shutil  # noqa: PLC0415 - an adapter serves sooner without it

    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for folder, inner, _ in os.walk(path):
            for entry in (Path(folder, name) for name in inner):
                if not entry.is_symlink():
                    entry.chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)


def _in_thread(remove: Callable[[Path], None], path: Path) -> None:
    asyncio.get_running_loop().run_in_executor(None, remove, path)
