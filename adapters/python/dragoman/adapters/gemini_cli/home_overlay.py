"""A home for one run: links to the user's own files, with the run's settings and skills.

Gemini CLI reads its settings from its home; only root could set others. So each run gets a home in its private
directory: links to everything in the user's ``.gemini`` but the settings, which are the user's with the run's merged
into them. Sessions and logins stay where they are; no file of the user's is changed, and concurrent runs do not meet.
"""

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dragoman.adapters.gemini_cli.plan import INSTRUCTIONS_FILE, SETTINGS_FILE, auth_type_of
from dragoman.sdk import FailureError, FailureInfo, fields
from dragoman.sdk.fields import JsonValue, as_object, as_string, compact
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb

HOME_VARIABLE: Final = "GEMINI_CLI_HOME"
CONFIG_DIR: Final = agent_spec(__package__).config_dir_name

DEFAULTS: Final[Mapping[str, JsonValue]] = {"general": {"maxAttempts": 4}}
"""Settings unless the user or the run has others: its own ten attempts are minutes of silence."""

_CREATED_FIRST: Final = ("tmp", "history")
"""Directories of sessions, created before they are linked to, or a first run's would be lost."""
_COMMENT: Final = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_MOST_BYTES: Final = 1024 * 1024


def user_home(env: Mapping[str, str]) -> Path:
    """Return the home that Gemini CLI would use with these variables."""
    return Path(env.get(HOME_VARIABLE) or env.get("HOME") or Path.home())


def make_home(run_dir: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Create the run's home from the plan's files in ``run_dir``, and return its variables.

    Raises:
        FailureError: the user's settings cannot be read.
    """
    users, home = user_home(env), run_dir / "skills"  # which has the skills already, if there are any
    theirs, ours = users / CONFIG_DIR, home / CONFIG_DIR
    ours.mkdir(mode=0o700, parents=True)
    for name in _CREATED_FIRST:
        (theirs / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    _link_all(theirs, ours, but=SETTINGS_FILE)
    _link_all(users / ".agents" / "skills", home / ".agents" / "skills")
    settings = merged(DEFAULTS, read_settings(theirs / SETTINGS_FILE))
    settings = merged(settings, json.loads((run_dir / SETTINGS_FILE).read_bytes()))
    instructions = run_dir / INSTRUCTIONS_FILE
    if instructions.is_file():
        (ours / INSTRUCTIONS_FILE).symlink_to(instructions)
        settings = with_context_file(settings)
    settings = with_auth_type(settings, env)
    (ours / SETTINGS_FILE).write_text(compact(settings), encoding="utf-8")
    return {HOME_VARIABLE: str(home)}


def _link_all(source: Path, target: Path, but: str = "") -> None:
    """Link to each entry of ``source`` that is not in ``target``."""
    if not source.is_dir():
        return
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in source.iterdir():
        link = target / entry.name
        if entry.name != but and not os.path.lexists(link):
            link.symlink_to(entry.resolve())


def read_settings(path: Path) -> dict[str, JsonValue]:
    """Return the user's settings; empty if there are none.

    Raises:
        FailureError: they are no JSON object.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path) from error
    try:
        value = json.loads(_COMMENT.sub(lambda found: found[1] or "", content[:_MOST_BYTES]) or "{}")
    except (ValueError, RecursionError) as error:
        raise _unreadable(path) from error
    if not isinstance(value, dict):
        raise _unreadable(path)
    return value


def _unreadable(path: Path) -> FailureError:
    message = f"{path} is not readable as JSON; Gemini CLI would not start with it. Correct it."
    return FailureError(FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="gemini_settings"))


def merged(below: Mapping[str, JsonValue], above: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return settings with those of ``above`` over those of ``below``, object by object."""
    result = dict(below)
    for key, value in above.items():
        known = result.get(key)
        result[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result


def with_context_file(settings: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return settings by which the run's instructions are read beside the user's own context files."""
    named = as_object(settings.get("context"), {}).get("fileName")
    names: list[JsonValue] = list(named) if isinstance(named, list) else [named or "GEMINI.md"]
    return merged(settings, {"context": {"fileName": [*names, INSTRUCTIONS_FILE]}})


def with_auth_type(settings: Mapping[str, JsonValue], env: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return settings with the login method; with a base URL and an API key alone Gemini CLI has none."""
    auth = fields.inner(fields.inner(settings, "security"), "auth")
    known = as_string(auth.get("selectedType"), "") or auth_type_of(env)
    return merged(settings, {"security": {"auth": {"selectedType": known}}} if known else {})


def protect_session(env: Mapping[str, str], session_id: str, now: datetime | None = None) -> None:
    """Rename a session's file if it was begun within this minute.

    On ``session/load`` Gemini CLI begins a file named by the minute and the id, before it looks for the session to
    load: it would overwrite a session that is younger than that. It identifies sessions by their content.
    """
    minute = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H-%M")
    name = f"session-{minute}-{session_id[:8]}"
    for path in (user_home(env) / CONFIG_DIR / "tmp").glob(f"*/chats/{name}.jsonl"):
        path.rename(path.with_name(f"{name}-{session_id[9:13]}-{path.stat().st_ino}.jsonl"))
