"""The conversations that can be resumed: one private file each in the adapter's state directory.

Bounded in size and number. Secrets of the run are redacted before a conversation is written.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dragoman.adapters.model_api.reply import Message
from dragoman.sdk import fields as read
from dragoman.sdk.fields import JsonValue, parse_json_object
from dragoman.sdk.run import is_uuid

MOST_BYTES: Final = 8 * 1024 * 1024
"""Of one conversation; a longer one loses its oldest images, then its oldest prompts."""
MOST_SESSIONS: Final = 500
"""Conversations that are stored, the newest ones."""

_VERSION: Final = 1
_NO_TEXT: Final = ("redacted_thinking", "image")
"""Blocks that hold nothing to read."""


def state_directory(env: Mapping[str, str]) -> Path:
    """Return their directory: ``$XDG_STATE_HOME/dragoman/model_api``, by default below the home."""
    state = env.get("XDG_STATE_HOME", "")
    home = env.get("HOME", "") or "~"
    base = Path(state) if Path(state).is_absolute() else Path(home).expanduser() / ".local" / "state"
    return base / "dragoman" / "model_api"


class Transcripts:
    """The conversations in a directory, which is created when first needed."""

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
        stored = parse_json_object(data) if len(data) <= MOST_BYTES else None
        if stored is None or stored.get("version") != _VERSION:
            return None
        return [dict(message) for message in read.objects(stored, "messages")] or None

    def save(self, session_id: str, messages: Sequence[Message], redact: Callable[[str], str]) -> None:
        """Store a conversation, in place of its former state.

        Raises:
            OSError: it cannot be written.
        """
        stored = [redacted(message, redact) for message in messages]
        data = _encoded(stored)
        while len(data) > MOST_BYTES and (stored := _without_first(stored)):
            data = _encoded(stored)
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
        self._remove_old()

    def _path(self, session_id: str) -> Path:
        if not is_uuid(session_id, lower_case=True):  # it could be a path
            raise FileNotFoundError(session_id[:80])
        return self._directory / f"{session_id}.json"

    def _remove_old(self) -> None:
        with contextlib.suppress(OSError):  # another run may do the same
            found = sorted(self._directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in found[:-MOST_SESSIONS]:
                path.unlink(missing_ok=True)


def redacted(message: Message, redact: Callable[[str], str]) -> Message:
    """Return a message without secrets. Thinking that had one is left out: its signature would no longer fit."""
    content: list[JsonValue] = []
    for block in read.objects(message, "content"):
        clean = dict(block) if block.get("type") in _NO_TEXT else _redacted(dict(block), redact)
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
    """Return whether a message is a prompt, and no result of a tool."""
    blocks = read.objects(message, "content")
    return message.get("role") == "user" and any(block.get("type") == "text" for block in blocks)


def settled(messages: Sequence[Message]) -> list[Message]:
    """Return an interrupted conversation so that it can be continued: calls without a result get one."""
    copies = [dict(message) for message in messages]
    if not copies or copies[-1].get("role") != "assistant":
        return copies
    calls = [block for block in read.objects(copies[-1], "content") if block.get("type") == "tool_use"]
    results: list[JsonValue] = [
        result_block(read.text(block, "id"), "The run was stopped before this was done.", failed=True)
        for block in calls
    ]
    return [*copies, {"role": "user", "content": results}] if results else copies


def result_block(call_id: str, content: str, *, failed: bool) -> dict[str, JsonValue]:
    """Return the result of a call as a block of the conversation."""
    block: dict[str, JsonValue] = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    return {**block, "is_error": True} if failed else block


def image_block(media_type: str, base64: str) -> dict[str, JsonValue]:
    """Return an image as a block of the conversation."""
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": base64}}


def _without_first(messages: list[Message]) -> list[Message]:
    """Return the messages without the images of the first one that has any; without, without the first prompt."""
    for index, message in enumerate(messages):
        blocks = read.objects(message, "content")
        content: list[JsonValue] = [dict(block) for block in blocks if block.get("type") != "image"]
        if len(content) < len(blocks):
            return [*messages[:index], {**message, "content": content}, *messages[index + 1 :]]
    return _without_first_prompt(messages)


def _without_first_prompt(messages: list[Message]) -> list[Message]:
    """Return the messages without the oldest prompt and its answer."""
    starts = [index for index, message in enumerate(messages) if is_prompt(message)]
    return messages[starts[1] :] if len(starts) > 1 else []


def _encoded(messages: Sequence[Message]) -> bytes:
    return json.dumps({"version": _VERSION, "messages": list(messages)}, ensure_ascii=True).encode()
