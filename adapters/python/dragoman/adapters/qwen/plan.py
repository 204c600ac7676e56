"""From a job to Qwen Code's command line and ways. Pure."""

import re
from typing import Final

from dragoman.sdk import Job
from dragoman.sdk.acp import AcpOptions, Fields, read_tokens
from dragoman.sdk.fields import as_bool, inner, text
from dragoman.v1 import event_pb2 as pb

STRICTEST_MODE: Final = "default"
"""It asks before it edits or runs anything."""
BYPASS_MODE: Final = "yolo"

ENVIRONMENT: Final = {
    # Else it starts itself a second time, and a signal reaches only the first.
    "QWEN_CODE_NO_RELAUNCH": "true",
    "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
    # Else it asks its model before the tools of slower MCP servers are there, which the model then does without.
    "QWEN_CODE_LEGACY_MCP_BLOCKING": "1",
}
DEFAULTS_FILE: Final = "defaults.json"
DEFAULTS: Final = {
    # Below the settings of its user. Without these, calls of the model that no run asked for are paid by each.
    "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
    # Nor suggest what its user might say next, or find names for what it did: no user would see them.
    "ui": {"enableFollowupSuggestions": False},
    "experimental": {"emitToolUseSummaries": False},
    # It tries seven times in a minute and a half; by its own defaults, all of that again ten times, minutes apart.
    "model": {"generationConfig": {"maxRetries": 0}},
    # A program must not change while runs use it.
    "general": {"enableAutoUpdate": False},
}

KINDS: Final = {
    "read_file": pb.TOOL_KIND_READ,
    "glob": pb.TOOL_KIND_SEARCH,
    "grep_search": pb.TOOL_KIND_SEARCH,
    "write_file": pb.TOOL_KIND_EDIT,
    "edit": pb.TOOL_KIND_EDIT,
    "notebook_edit": pb.TOOL_KIND_EDIT,
    "run_shell_command": pb.TOOL_KIND_EXECUTE,
    "web_fetch": pb.TOOL_KIND_FETCH,
    "skill": pb.TOOL_KIND_SKILL,
    "agent": pb.TOOL_KIND_SUBAGENT,
}
"""Its own tools, by name."""
_MODEL: Final = re.compile(r"\A(?:\$runtime\|[^|]*\|)?(.+?)(?:\([\w-]+\))?\Z")


def arguments(job: Job) -> list[str]:
    """Return the arguments behind the executable."""
    argv = ["--acp", "--approval-mode", _mode(job)]
    if job.settings.model:
        argv += ["--model", job.settings.model]
    for directory in job.settings.additional_directories:
        argv += ["--add-dir", directory]
    return argv


def tool_name(update: Fields) -> str:
    """Return a tool's own name."""
    return text(inner(update, "_meta"), "toolName")


def call_tokens(update: Fields) -> pb.TokenCounts | None:
    """Return the tokens of a call of the model, which stand in an empty piece of text after it."""
    return read_tokens(inner(inner(update, "_meta"), "usage"))


def model_name(model: str) -> str:
    """Return a model's name from Qwen Code's id of it, e.g. ``$runtime|openai|qwen3-coder(openai)``."""
    return _MODEL.sub(r"\1", model)


def options(job: Job) -> AcpOptions:
    """Return Qwen Code's ways with the protocol in a run."""
    # The command line has set mode and model; a session in any other mode would not be the one asked for.
    return AcpOptions(
        mode=_mode(job),
        sets_model=False,
        call_tokens=call_tokens,
        tool_name=tool_name,
        tool_kinds=KINDS,
        model_name=model_name,
    )


def _mode(job: Job) -> str:
    skips = as_bool(job.config.get("dangerouslySkipPermissions"), False)
    return job.permissions.native_mode or (BYPASS_MODE if skips else STRICTEST_MODE)
