"""Files of the command line that go with a prompt."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
from dragoman.protocol.images import HEAD_BYTES, image_type, is_image
from dragoman.v1 import adapter_pb2 as pb

_OPTION: Final = "--attach"
_MOST_BYTES: Final = 8 * 1024 * 1024
_MOST_FILES: Final = 32
_LONGEST_NAME: Final = 100
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._ -]")


def attachments(paths: Sequence[str], *, images: bool) -> Iterator[pb.Attachment]:
    """Yield what a request has of these files.

    Args:
        paths: the files.
        images: whether the adapter takes images; if not, they are just files.

    Raises:
        click.BadParameter: a path is no regular file that can be read, or the files are too many or too large.
    """
    if len(paths) > _MOST_FILES:
        raise click.BadParameter(f"at most {_MOST_FILES} files are taken", param_hint=_OPTION)
    left, names = _MOST_BYTES, set[str]()
    for path in paths:
        content = _content(path, left)
        left -= len(content)
        name = _name(path, names)
        media_type = image_type(content[:HEAD_BYTES]) or _by_name(name)
        yield pb.Attachment(
            name=name, media_type=media_type if images or not is_image(media_type) else "", content=content
        )


def _content(path: str, most: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise click.BadParameter(f"{path} is no regular file", param_hint=_OPTION)
        with open(descriptor, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint=_OPTION) from error
    if len(content) > most:
        message = f"{path} makes more than {_MOST_BYTES >> 20} MiB of files; put large ones into the workspace"
        raise click.BadParameter(message, param_hint=_OPTION)
    return content


def _name(path: str, names: set[str]) -> str:
    """Return a name that the contract allows and no other file has."""
    own = _NOT_IN_NAMES.sub("_", Path(path).name).lstrip("._ -")[-_LONGEST_NAME:].lstrip("._ -") or "file"
    name, number = own, 1
    while name.casefold() in names:
        number += 1
        name = f"{number}-{own}"
    names.add(name.casefold())
    return name


def _by_name(name: str) -> str:
    import mimetypes  # noqa: PLC0415 - few runs have attachments

    found = mimetypes.MimeTypes().guess_type(name)[0] or ""
    return "" if is_image(found) else found  # its content is none
