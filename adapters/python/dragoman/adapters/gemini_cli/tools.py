"""Gemini CLI's tools: kinds, titles and parameters. Pure."""

from typing import Final

from dragoman.sdk import fields
from dragoman.sdk.fields import Fields, JsonValue
from dragoman.v1 import event_pb2 as pb

KINDS: Final = {
    "read_file": pb.TOOL_KIND_READ,
    "read_many_files": pb.TOOL_KIND_READ,
    "list_directory": pb.TOOL_KIND_READ,
    "glob": pb.TOOL_KIND_SEARCH,
    "grep_search": pb.TOOL_KIND_SEARCH,
    "search_file_content": pb.TOOL_KIND_SEARCH,
    "google_web_search": pb.TOOL_KIND_SEARCH,
    "write_file": pb.TOOL_KIND_EDIT,
    "replace": pb.TOOL_KIND_EDIT,
    "run_shell_command": pb.TOOL_KIND_EXECUTE,
    "web_fetch": pb.TOOL_KIND_FETCH,
    "update_topic": pb.TOOL_KIND_THINK,
    "enter_plan_mode": pb.TOOL_KIND_SWITCH_MODE,
    "exit_plan_mode": pb.TOOL_KIND_SWITCH_MODE,
    "activate_skill": pb.TOOL_KIND_SKILL,
}
WITHHELD: Final = frozenset({"write_file", "replace", "run_shell_command", "web_fetch"})
"""Tools that are not offered without questions and without rules that allow them."""


def tool_name(call_id: str) -> str:
    """Return the name in a call's ID, which Gemini CLI puts before the model's own ID."""
    return call_id.partition("__")[0] if "__" in call_id else ""


def tool_title(name: str, parameters: Fields) -> str:
    """Return a short title of a call."""
    keys = ("command", "file_path", "dir_path", "pattern", "query", "prompt", "name")
    return next(
        (f"{name}: {fields.text(parameters, key)}"[:200] for key in keys if fields.text(parameters, key)), name
    )


def raw_input(name: str, update: Fields) -> dict[str, JsonValue]:
    """Return the parameters of a call that follow from its title and diff; the protocol does not have them."""
    if name == "run_shell_command":
        title = fields.text(update, "title")
        return {"command": title} if title else {}
    diff = next((item for item in fields.objects(update, "content") if fields.text(item, "type") == "diff"), None)
    if name == "write_file" and diff is not None:
        return {"file_path": fields.text(diff, "path"), "content": fields.text(diff, "newText")}
    return {}
