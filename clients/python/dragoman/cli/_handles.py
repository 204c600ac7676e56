"""The session handle in a file, so that the next run goes on with the conversation."""

import os
import tempfile
from pathlib import Path

import click
from dragoman.v1 import event_pb2 as pb
from google.protobuf import json_format


def load(path: Path) -> pb.SessionHandle | None:
    """Return the stored handle; ``None`` if there is none yet.

    Raises:
        click.BadParameter: the file holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} cannot be read: {error}", param_hint="--session") from error
    if not text.strip():
        return None
    try:
        handle = json_format.Parse(text, pb.SessionHandle(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise click.BadParameter(f"{path} holds no session handle: {error}", param_hint="--session") from error
    if not handle.ListFields():
        raise click.BadParameter(f"{path} holds no session handle", param_hint="--session")
    return handle


def check_writable(path: Path) -> None:
    """Refuse a file that `store` could not write, before there is something to lose.

    Raises:
        click.BadParameter: there is no such folder, or nothing can be written there.
    """
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        told = f"nothing can be kept in {path.parent}: {error.strerror}"
        raise click.BadParameter(told, param_hint="--session") from error


def store(path: Path, update: pb.SessionUpdate) -> None:
    """Do with the file what a run's result says: replace it, remove it, or leave it alone.

    Raises:
        OSError: it cannot be written.
    """
    if update.change == pb.SESSION_CHANGE_CLEAR:
        path.unlink(missing_ok=True)
    elif update.change == pb.SESSION_CHANGE_SET:
        text = json_format.MessageToJson(update.handle) + "\n"
        # Written beside and moved over, so that a crash leaves the old one or the new one.
        beside = path.with_name(f"{path.name}.new")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        beside.replace(path)
