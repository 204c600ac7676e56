"""What one run changes in its workspace: recorded before its agent starts, compared when asked, kept at its end."""

import asyncio
import os.path
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.sdk._changes.errors import GitError, TooLargeError
from dragoman.sdk._run.waiting import wait_first
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

if TYPE_CHECKING:
    from dragoman.sdk._changes.tracking import Workspace

_MOST_REPORTED: Final = 10_000
"""Paths of the run's own ``file_change`` events that are remembered."""
_NO_ANSWER: Final = (TooLargeError, GitError, OSError, ValueError)
"""What keeps a workspace from being compared; a ValueError is an output of git's that is not understood."""


class RunChanges:
    """What a run changes. Use ``record``, then ``conclude`` once.

    Args:
        directory: where the run works; absolute.
        redactor: returns what hides the secrets of the run.
    """

    def __init__(self, directory: str, redactor: Callable[[], Redactor]) -> None:
        self._directory = directory
        self._redactor = redactor
        self._workspace: Workspace | None = None
        self._final: adapter_pb2.GetChangesResponse | None = None
        self._comparing = asyncio.Lock()
        self._reported: set[str] = set()
        self.problem = "the run has not begun yet"
        """Why there is no answer; empty if there is one."""
        self.kept_bytes = 0
        """How much memory the answer takes that is kept."""

    async def record(self, cancelled: asyncio.Event) -> None:
        """Record the workspace, unless the run is cancelled meanwhile."""
        recording = asyncio.create_task(asyncio.to_thread(_recorded, self._directory))
        await wait_first(recording, cancelled)
        if not recording.done():
            self.problem = "the run was cancelled before its workspace was recorded"
            recording.add_done_callback(_discard)
            return
        try:
            self._workspace = recording.result()
            self.problem = ""
        except _NO_ANSWER as error:
            self.problem = str(error)

    def observe(self, event: pb.AgentEvent) -> None:
        """Note which files the agent's own events are about."""
        if event.HasField("file_change") and len(self._reported) < _MOST_REPORTED:
            self._reported.update(path for path in (event.file_change.path, event.file_change.old_path) if path)

    async def conclude(self) -> None:
        """Keep what there is to say, and remove what was recorded."""
        with suppress(DragomanError):  # self.problem has it
            self._final = await self.present()
            self.kept_bytes = self._final.ByteSize()
        if self._workspace is not None:
            await asyncio.to_thread(self._workspace.close)

    async def present(self) -> adapter_pb2.GetChangesResponse:
        """Return what has changed by now, or by the end of the run; a message of the caller's own.

        Raises:
            DragomanError: CHANGES_UNKNOWN.
        """
        response = adapter_pb2.GetChangesResponse()
        async with self._comparing:
            if self._final is not None:
                response.CopyFrom(self._final)
                return response
            if self._workspace is None or self.problem:
                raise unknown_changes(self.problem)
            try:
                response = await asyncio.to_thread(self._compare, self._workspace)
            except _NO_ANSWER as error:
                self.problem = str(error)
                raise unknown_changes(self.problem) from error
        return response

    def _compare(self, workspace: "Workspace") -> adapter_pb2.GetChangesResponse:
        response = workspace.changes()
        redactor = self._redactor()
        reported = {os.path.realpath(path) for path in self._reported.copy()}
        for file in response.files:
            file.is_reported = os.path.realpath(os.path.join(workspace.root, file.path)) in reported  # noqa: PTH118
            file.path, file.old_path = redactor.text(file.path), redactor.text(file.old_path)
            file.diff = redactor.text(file.diff)
        return response


def _recorded(directory: str) -> "Workspace":
    from dragoman.sdk._changes.tracking import Workspace  # noqa: PLC0415 - few runs need it

    return Workspace(directory)


def unknown_changes(why: str) -> DragomanError:
    """Return the error where nothing is known of a run's changes."""
    return DragomanError(Reason.CHANGES_UNKNOWN, f"nothing is known of what the run changed: {why}")


def _discard(recording: "asyncio.Task[Workspace]") -> None:
    if not recording.cancelled() and recording.exception() is None:
        recording.result().close()
