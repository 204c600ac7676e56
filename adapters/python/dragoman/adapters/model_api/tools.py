"""The model's three tools: Read, Write, Edit. No shell, no network.

What they are offered as, what a call means for permissions and people, and how it is done.
"""

import re
from collections.abc import Mapping
from typing import Final

from dragoman.adapters.model_api.workspace import MOST_WRITTEN_BYTES, RefusedError, Workspace
from dragoman.sdk.fields import Fields, JsonValue, as_bool, as_int, compact, text
from dragoman.sdk.parsing import unified_diff
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

READ: Final = "Read"
WRITE: Final = "Write"
EDIT: Final = "Edit"

_KINDS: Final = {READ: pb.TOOL_KIND_READ, WRITE: pb.TOOL_KIND_EDIT, EDIT: pb.TOOL_KIND_EDIT}
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MOST_LINES: Final = 2000
_MOST_CHARACTERS: Final = 200_000
_PATH: Final = {
    "type": "string",
    "description": "The file, below the working directory: absolute, or relative to it.",
}


class Tool(Struct, frozen=True):
    """A tool as it is offered to the model."""

    name: str
    description: str
    properties: Mapping[str, Mapping[str, JsonValue]]
    required: tuple[str, ...]

    @property
    def schema(self) -> dict[str, JsonValue]:
        """The JSON Schema of its input."""
        properties: dict[str, JsonValue] = {name: dict(item) for name, item in self.properties.items()}
        required: list[JsonValue] = list(self.required)
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_TOOLS: Final = (
    Tool(
        READ,
        f"Reads a text file, at most {_MOST_LINES} lines at a time. Binary files and links are refused.",
        {
            "file_path": _PATH,
            "offset": {"type": "integer", "minimum": 1, "description": "The first line selected, counted from 1."},
            "limit": {"type": "integer", "minimum": 1, "description": "How many lines are selected."},
        },
        ("file_path",),
    ),
    Tool(
        WRITE,
        "Writes a whole file. Missing directories are made; an existing file is replaced.",
        {"file_path": _PATH, "content": {"type": "string", "description": "The whole text of the file."}},
        ("file_path", "content"),
    ),
    Tool(
        EDIT,
        "Replaces a text in a file. It must be there exactly once, unless replace_all is true.",
        {
            "file_path": _PATH,
            "old_string": {"type": "string", "description": "The text to replace, exactly as it is in the file."},
            "new_string": {"type": "string", "description": "What takes its place."},
            "replace_all": {"type": "boolean", "description": "Whether to replace it wherever it is."},
        },
        ("file_path", "old_string", "new_string"),
    ),
)


def offered(*, whole_files_only: bool) -> tuple[Tool, ...]:
    """Return the tools that a run offers.

    Args:
        whole_files_only: whether files may only be written as a whole.
    """
    return tuple(tool for tool in _TOOLS if not (whole_files_only and tool.name == EDIT))


class Done(Struct, frozen=True):
    """How a call ended."""

    content: str
    """For the model."""
    failed: bool = False
    change: pb.FileChange | None = None
    """What it did to a file."""


def tool_kind(name: str) -> pb.ToolKind.ValueType:
    """Return what sort of tool it is."""
    return _KINDS.get(name, pb.TOOL_KIND_OTHER)


def tool_call(call_id: str, name: str, fields: Fields, status: pb.ToolStatus.ValueType) -> pb.ToolCall:
    """Return a call whose input is known."""
    path = text(fields, "file_path")
    first = path.split("\n", 1)[0][:200]
    title = f"{name} {first}" if first else name
    return pb.ToolCall(
        id=call_id, name=name, kind=tool_kind(name), title=title, input_json=compact(dict(fields)), status=status
    )


def subject(call_id: str, name: str, fields: Fields, workspace: Workspace) -> pb.InputSubject:
    """Return what a permission is about, with the path of the file.

    Raises:
        RefusedError: the path is missing or not allowed; no permission is needed then.
    """
    path = workspace.absolute(text(fields, "file_path"))
    return pb.InputSubject(tool_call_id=call_id, tool_name=name, tool_kind=tool_kind(name), paths=[path])


def run_tool(call_id: str, name: str, fields: Fields, workspace: Workspace) -> Done:
    """Run a call. Errors are returned to the model, not raised."""
    try:
        match name:
            case "Read":
                return Done(_read(fields, workspace))
            case "Write":
                return _write(call_id, fields, workspace, _required_text(fields, "content"))
            case "Edit":
                return _write(call_id, fields, workspace, _edited(fields, workspace))
            case _:
                return Done(f"There is no tool {name!r}; there are {', '.join(_KINDS)}.", failed=True)
    except RefusedError as error:
        return Done(str(error), failed=True)


def _read(fields: Fields, workspace: Workspace) -> str:
    content = workspace.read(text(fields, "file_path"))
    if not content:
        return "(The file is empty.)"
    all_lines = _LINE.findall(content)
    first = max(1, as_int(fields.get("offset"), 1))
    limit = max(1, min(_MOST_LINES, as_int(fields.get("limit"), _MOST_LINES)))
    selected = all_lines[first - 1 : first - 1 + limit]
    if not selected:
        raise RefusedError(f"The file has only {len(all_lines)} lines.")
    shown = "".join(selected)
    cut = shown[:_MOST_CHARACTERS]
    if len(cut) < len(shown):
        return f"{cut}\n[... cut here; ask for fewer lines with offset and limit ...]"
    left = len(all_lines) - (first - 1 + len(selected))
    return f"{shown}[... {left} more lines; ask with offset {first + len(selected)} ...]" if left > 0 else shown


def _write(call_id: str, fields: Fields, workspace: Workspace, content: str) -> Done:
    path = text(fields, "file_path")
    written = workspace.write(path, content)
    absolute = workspace.absolute(path)
    knows_before = written.created or written.before is not None
    change = pb.FileChange(
        path=absolute,
        operation=pb.FILE_OPERATION_CREATE if written.created else pb.FILE_OPERATION_MODIFY,
        diff=unified_diff(absolute, written.before or "", content, created=written.created) if knows_before else "",
        provenance=pb.PROVENANCE_NATIVE,
        tool_call_id=call_id,
    )
    word = "Created" if written.created else "Wrote"
    return Done(f"{word} {absolute} ({len(content.encode('utf-8', 'replace'))} bytes).", change=change)


def _edited(fields: Fields, workspace: Workspace) -> str:
    content = workspace.read(text(fields, "file_path"))
    old, new = _required_text(fields, "old_string"), _required_text(fields, "new_string")
    if not old:
        raise RefusedError("old_string is empty; use Write to write a whole file.")
    if old == new:
        raise RefusedError("old_string and new_string are the same.")
    count = content.count(old)
    if count == 0:
        raise RefusedError("old_string is not in the file; read it again.")
    if count > 1 and not as_bool(fields.get("replace_all"), False):
        raise RefusedError(f"old_string is in the file {count} times; give more of the text around it.")
    if len(content) + count * (len(new) - len(old)) > MOST_WRITTEN_BYTES:
        raise RefusedError(f"The file would have more than {MOST_WRITTEN_BYTES} bytes.")
    return content.replace(old, new)


def _required_text(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise RefusedError(f"{name} is missing, or no text.")
    return value
