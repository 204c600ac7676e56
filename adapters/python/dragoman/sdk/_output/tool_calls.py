"""Tool calls that an agent announces and ends, and the files that they change. Pure, but that files are looked at."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from dragoman.sdk._encoding.fields import Fields, objects, text
from dragoman.sdk._encoding.json_text import compact
from dragoman.sdk._output.changes import Changes
from dragoman.sdk._output.mcp_names import mcp_server_of
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

Kinds: TypeAlias = Mapping[str, "pb.ToolKind.ValueType"]
"""What an agent's own tools do, by name."""
_LONGEST_TITLE: Final = 120
"""Characters."""


class FileTool(Struct, frozen=True, forbid_unknown_fields=True):
    """Which arguments of a tool that changes one file say what it does.

    A tool that writes whole files: ``FileTool(path="file", content="text")``. One that edits:
    ``FileTool(replaces=("old", "new"))``. One that deletes: ``FileTool(deletes=True)``.
    """

    path: str = "path"
    """The argument with the file's path."""
    content: str = ""
    """The argument with the whole new content, for a tool that writes files."""
    replaces: tuple[str, str] = ("", "")
    """The arguments with the old and the new text, for a tool that edits files; they are beside the path, or in each
    object of the list ``edits``."""
    deletes: bool = False
    """Whether the tool deletes the file."""

    def change(self, changes: Changes, call_id: str, arguments: Fields) -> pb.FileChange | None:
        """Return what a completed call has changed; None if it names no file."""
        path, (old, new) = text(arguments, self.path), self.replaces
        if not path:
            return None
        if self.deletes:
            return changes.deleted(call_id, path)
        if self.content:
            content = arguments.get(self.content)
            return changes.written(call_id, path, content if isinstance(content, str) else None)
        each = [*objects(arguments, "edits"), *([arguments] if old in arguments else [])]
        pairs = [(text(edit, old), text(edit, new)) for edit in each]
        if len(pairs) == 1 and not pairs[0][0]:  # a replacement of nothing makes a new file
            return changes.written(call_id, path, pairs[0][1])
        return changes.edited(call_id, path, pairs)


class ToolCalls:
    """The calls of one attempt.

    Args:
        kinds: what the agent's own tools do.
        files: its tools that change files.
        roots: the workspace, its working directory first; see ``Changes``.
        servers: names of the run's MCP servers.
    """

    def __init__(
        self,
        kinds: Kinds,
        files: Mapping[str, FileTool] | None = None,
        roots: Sequence[str] = (),
        servers: Collection[str] = (),
    ) -> None:
        self._kinds = kinds
        self._files = files or {}
        self._servers = servers
        self._changes = Changes(roots)
        self._open: dict[str, tuple[str, Fields]] = {}
        self._announced: set[str] = set()

    def name(self, call_id: str) -> str:
        """Return the tool of a call that has not ended; empty if there is no such call."""
        return self._open.get(call_id, ("", {}))[0]

    def pending(self, call_id: str, name: str) -> Iterator[pb.AgentEvent]:
        """Emit that the model begins to write a call; once for each."""
        if call_id and call_id not in self._announced:
            self._announced.add(call_id)
            yield self._event(call_id, name, pb.TOOL_STATUS_PENDING)

    def note(self, call_id: str, name: str, arguments: Fields) -> None:
        """Note a call before it runs: what was in the file that it is about to change."""
        self._open[call_id] = (name, arguments)
        if name in self._files and call_id:
            self._changes.begin(call_id, text(arguments, self._files[name].path))

    def running(
        self, call_id: str, name: str, arguments: Fields, *, title: str = "", input_json: str | None = None
    ) -> Iterator[pb.AgentEvent]:
        """Emit that a call runs; ``input_json`` is emitted in place of the arguments."""
        if call_id:
            self.note(call_id, name, arguments)
            event = self._event(call_id, name, pb.TOOL_STATUS_RUNNING)
            event.tool_call.title = title
            event.tool_call.input_json = compact(arguments) if input_json is None else input_json
            yield event

    def result(
        self, call_id: str, content: str, *, is_error: bool, exit_code: int | None = None
    ) -> Iterator[pb.AgentEvent]:
        """Emit the result of a call that was completed or failed, and what it has changed."""
        status = pb.TOOL_STATUS_FAILED if is_error else pb.TOOL_STATUS_COMPLETED
        result = pb.ToolResult(tool_call_id=call_id, status=status, content=content, is_error=is_error)
        if exit_code is not None:
            result.exit_code = exit_code
        return self.ended(result)

    def ended(self, result: pb.ToolResult) -> Iterator[pb.AgentEvent]:
        """Emit a call's result, and what it has changed."""
        name, arguments = self._open.pop(result.tool_call_id, ("", {}))
        yield pb.AgentEvent(tool_result=result)
        tool = self._files.get(name) if result.status == pb.TOOL_STATUS_COMPLETED else None
        change = tool.change(self._changes, result.tool_call_id, arguments) if tool is not None else None
        if change is not None:
            yield pb.AgentEvent(file_change=change)
        self._changes.drop(result.tool_call_id)

    def _event(self, call_id: str, name: str, status: pb.ToolStatus.ValueType) -> pb.AgentEvent:
        server = None if name in self._kinds else mcp_server_of(name, self._servers, unprefixed=False)
        kind = self._kinds.get(name, pb.TOOL_KIND_OTHER if server is None else pb.TOOL_KIND_MCP)
        call = pb.ToolCall(id=call_id, name=name, kind=kind, status=status, mcp_server=server or "")
        return pb.AgentEvent(tool_call=call)


def one_line(words: str) -> str:
    """Return the first line of a text, cut to the length of a title."""
    first = words.strip().split("\n", 1)[0]
    return first if len(first) <= _LONGEST_TITLE else f"{first[: _LONGEST_TITLE - 1]}…"


def host_of(url: str) -> str:
    """Return the host in a URL; empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
