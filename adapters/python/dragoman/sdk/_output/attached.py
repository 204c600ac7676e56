"""Files that an agent finds where its prompt, or an input, says."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct


class AttachedFile(Struct, frozen=True):
    """A file that goes with the prompt, where the agent can read it."""

    name: str
    media_type: str
    path: Path
    size: int
    image: bytes = b""
    """The file itself, if it goes to the model as an image."""

    @property
    def base64(self) -> str:
        """The image in base64, as it goes into JSON."""
        return b64encode(self.image).decode()


def attachments_section(files: Sequence[AttachedFile]) -> str:
    """Return the words that name the files in the prompt; empty without any."""
    if not files:
        return ""
    lines = [f"Attached files, in {files[0].path.parent}:"]
    for file in files:
        kind = f"{file.media_type}, " if file.media_type else ""
        lines.append(f"- {file.name} ({kind}{file.size:,} bytes{', given as an image too' if file.image else ''})")
    return "\n".join(lines)
