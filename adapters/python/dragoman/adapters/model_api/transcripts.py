"""The conversations that can be gone on with: one file each in the adapter's state directory, nobody else's to read.

Bounded in size and number. Secrets of the run are taken out before anything is written.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dragoman.adapters.model_api.reply import Message
from dragoman.sdk import JsonValue, is_uuid, parse_json_object
from dragoman.sdk import fields as read

MOST_BYTES: Final = 8 * 1024 * 1024
"""Of one conversation; of a longer one, the oldest prompts are forgotten."""
MOST_SESSIONS: Final = 500
"""Conversations that are kept, the newest ones."""

_VERSION: Final = 1


def is_session_id(text: str) -> bool:
    """Tell whether ``text`` has the shape of a session's id: a UUID, so no path."""
    return is_uuid(text, lower_case=True)


def state_directory(env: Mapping[str, str]) -> Path:
    """Return where conversations are kept: ``$XDG_STATE_HOME/dragoman/model_api``, below the home by default."""
    state = env.get("XDG_STATE_HOME", "")
    home = env.get("HOME", "") or "~"
    base = Path(state) if Path(state).is_absolute() else Path(home).expanduser() / ".local" / "state"
    return base / "dragoman" / "model_api"


class Transcripts:
    """The conversations in a directory, which is made when first needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, session_id: str) -> list[Message] | None:
        """Return a conversation; None if there is none, or none that can be read."""
        try:
            descriptor = os.open(self._path(session_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError:
            return None
        kept = parse_json_object(data) if len(data) <= MOST_BYTES else None
        if kept is None or kept.get("version") != _VERSION:
            return None
        return [dict(message) for message in read.objects(kept, "messages")] or None

    def save(self, session_id: str, messages: Sequence[Message], redact: Callable[[str], str]) -> None:
        """Keep a conversation, in place of what was kept of it before.

        Raises:
            OSError: it cannot be written.
        """
        kept = [redacted(message, redact) for message in messages]
        data = _encoded(kept)
        while len(data) > MOST_BYTES and (kept := _without_first_prompt(kept)):
            data = _encoded(kept)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self._directory / f".{session_id}.{secrets.token_hex(6)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(beside, flags, 0o600), "wb") as file:
                file.write(data)
            beside.replace(self._path(session_id))
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        self._forget_old()

    def _path(self, session_id: str) -> Path:
        if not is_session_id(session_id):
            raise FileNotFoundError(session_id[:80])
        return self._directory / f"{session_id}.json"

    def _forget_old(self) -> None:
        with contextlib.suppress(OSError):  # another run may do the same
            found = sorted(self._directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in found[:-MOST_SESSIONS]:
                path.unlink(missing_ok=True)


def redacted(message: Message, redact: Callable[[str], str]) -> Message:
    """Return a message without secrets. Thinking that had one is left out: its signature would no longer fit."""
    content: list[JsonValue] = []
    for block in read.objects(message, "content"):
        clean = _redacted(dict(block), redact) if block.get("type") != "redacted_thinking" else dict(block)
        if block.get("type") != "thinking" or clean == block:
            content.append(clean)
    return {**message, "content": content}


def _redacted(value: JsonValue, redact: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _redacted(item, redact) for key, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item, redact) for item in value]
    return value


def is_prompt(message: Message) -> bool:
    """Tell whether a message is what somebody typed, and no result of a tool."""
    blocks = read.objects(message, "content")
    return message.get("role") == "user" and any(block.get("type") == "text" for block in blocks)


def settled(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation that was broken off as one that can go on: calls without a result get one."""
    made = [dict(message) for message in messages]
    if not made or made[-1].get("role") != "assistant":
        return made
    calls = [block for block in read.objects(made[-1], "content") if block.get("type") == "tool_use"]
    results: list[JsonValue] = [
        result_block(read.text(block, "id"), "The run was stopped before this was done.", failed=True)
        for block in calls
    ]
    return [*made, {"role": "user", "content": results}] if results else made


def result_block(call_id: str, content: str, *, failed: bool) -> dict[str, JsonValue]:
    """Return what a call comes to, as it stands in the conversation."""
    made: dict[str, JsonValue] = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    return {**made, "is_error": True} if failed else made


def _without_first_prompt(messages: list[Message]) -> list[Message]:
    """Forget the oldest prompt and what came of it."""
    starts = [index for index, message in enumerate(messages) if is_prompt(message)]
    return messages[starts[1] :] if len(starts) > 1 else []


def _encoded(messages: Sequence[Message]) -> bytes:
    return json.dumps({"version": _VERSION, "messages": list(messages)}, ensure_ascii=True).encode()
