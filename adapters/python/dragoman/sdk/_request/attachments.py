"""Files that go with a prompt or an input: checked, laid out in a directory of the run, and named in the prompt."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dragoman.protocol.errors import DragomanError, FieldViolation, not_supported
from dragoman.protocol.images import HEAD_BYTES, image_type, is_image
from dragoman.sdk._output.attached import AttachedFile
from dragoman.sdk.spec import AdapterInfo
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

MOST_CONTENT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of all that a request holds itself, and of all images."""
LARGEST_FILE: Final = 64 * 1024 * 1024
"""Bytes of a file that is given by its path."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]*")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*")
_PIECE: Final = 1024 * 1024


class AttachmentError(Exception):
    """A file cannot be given to the agent; the text says which and why."""


def refuse_images(attachments: Sequence[adapter_pb2.Attachment], info: AdapterInfo) -> None:
    """Refuse images that this adapter's agent cannot take.

    Raises:
        DragomanError: NOT_SUPPORTED.
    """
    if info.has(pb.FEATURE_IMAGES):
        return
    for index, attachment in enumerate(attachments):
        if is_image(attachment.media_type):
            raise _no_images(index, info)


def _no_images(index: int, info: AdapterInfo) -> DragomanError:
    hint = "leave media_type empty, so that the agent gets it as a file"
    return not_supported(f"attachments[{index}].media_type", f"{info.label} takes no images; {hint}")


def wrong_attachments(attachments: Sequence[adapter_pb2.Attachment]) -> Iterator[FieldViolation]:
    """Yield what is wrong with the files of a request."""
    names: set[str] = set()
    content_bytes = image_bytes = 0
    for index, attachment in enumerate(attachments):
        path = f"attachments[{index}]"
        if not _NAME.fullmatch(attachment.name):
            message = "must be a letter or digit, then letters, digits, blanks and any of . _ -"
            yield FieldViolation(f"{path}.name", message)
        elif attachment.name.casefold() in names:
            yield FieldViolation(f"{path}.name", "must differ from those before, in more than upper and lower case")
        names.add(attachment.name.casefold())
        if attachment.media_type and not _MEDIA_TYPE.fullmatch(attachment.media_type):
            yield FieldViolation(f"{path}.media_type", "must be a media type without parameters, such as text/plain")
        content_bytes += len(attachment.content)
        size, problem = _examined(attachment)
        image_bytes += size if is_image(attachment.media_type) else 0
        if problem is not None:
            yield FieldViolation(f"{path}.{problem[0]}", problem[1])
    for size, what in ((content_bytes, "content"), (image_bytes, "images")):
        if size > MOST_CONTENT_BYTES:
            message = f"must not have more than {MOST_CONTENT_BYTES >> 20} MiB of {what} together"
            yield FieldViolation("attachments", message)


def _examined(attachment: adapter_pb2.Attachment) -> tuple[int, tuple[str, str] | None]:
    """Return the size of a file, and what is wrong with it: the field and why."""
    match attachment.WhichOneof("source"):
        case "content":
            head = attachment.content[:HEAD_BYTES]
            problem = _wrong_image(attachment.media_type, head)
            return len(attachment.content), ("content", problem) if problem else None
        case "path":
            problem, size = _wrong_path(attachment.path)
            return size, ("path", problem) if problem else None
        case _:
            return 0, ("content", "must be given, or path")


def _wrong_image(media_type: str, head: bytes) -> str:
    return f"is no {media_type}" if is_image(media_type) and image_type(head) != media_type.lower() else ""


def _wrong_path(path: str) -> tuple[str, int]:
    if "\0" in path or not Path(path).is_absolute():
        return "must be an absolute path", 0
    try:
        status = Path(path).lstat()
    except OSError as error:
        return f"cannot be used: {error.strerror}", 0
    if not stat.S_ISREG(status.st_mode):
        return "must be a regular file, and no link", 0
    if status.st_size > LARGEST_FILE:
        return f"must not have more than {LARGEST_FILE >> 20} MiB", 0
    if not os.access(path, os.R_OK):
        return "may not be read by the adapter", 0
    return "", status.st_size


def bytes_of(attachments: Sequence[adapter_pb2.Attachment]) -> int:
    """Return how many bytes checked files have now; looks at files, so call it in a thread."""
    return sum(_examined(attachment)[0] for attachment in attachments)


def lay_out_attachments(
    attachments: Sequence[adapter_pb2.Attachment], directory: Path, most: int | None = None
) -> tuple[AttachedFile, ...]:
    """Write checked files into an empty directory; reads and writes files, so call it in a thread.

    Args:
        attachments: the files.
        directory: where they go.
        most: bytes that they may have together; None for no such bound.

    Raises:
        AttachmentError: a file is not what it was when the request was checked, or together they have too much.
        OSError: one cannot be written.
    """
    files: list[AttachedFile] = []
    for attachment in attachments:
        room = None if most is None else most - sum(file.size for file in files)
        files.append(_laid_out(attachment, directory / attachment.name, room))
    return tuple(files)


def _laid_out(attachment: adapter_pb2.Attachment, path: Path, room: int | None) -> AttachedFile:
    kept = is_image(attachment.media_type)
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        if attachment.WhichOneof("source") == "content":
            file.write(attachment.content)
            image = attachment.content if kept else b""
            return AttachedFile(attachment.name, attachment.media_type, path, len(attachment.content), image)
        pieces = []
        size, most = 0, MOST_CONTENT_BYTES if kept else LARGEST_FILE
        for piece in _pieces(attachment):
            size += len(piece)
            if size > most:
                raise AttachmentError(f"{attachment.name}: {attachment.path} has more than {most >> 20} MiB.")
            if room is not None and size > room:  # some files have more than the system says: those of /proc do
                raise AttachmentError(f"{attachment.name}: there is no room for all of {attachment.path}.")
            file.write(piece)
            if kept:
                pieces.append(piece)
    image = b"".join(pieces)
    if problem := _wrong_image(attachment.media_type, image):
        raise AttachmentError(f"{attachment.name}: {attachment.path} {problem}.")
    return AttachedFile(attachment.name, attachment.media_type, path, size, image)


def _pieces(attachment: adapter_pb2.Attachment) -> Iterator[bytes]:
    """Yield the content of a regular file, which must be no link now either."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(attachment.path, flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise AttachmentError(f"{attachment.name}: {attachment.path} is no regular file any more.")
        with open(descriptor, "rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                yield piece
    except OSError as error:
        message = f"{attachment.name}: {attachment.path} cannot be read any more: {error.strerror}."
        raise AttachmentError(message) from error
