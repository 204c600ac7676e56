"""What a run changed, as lines for people: one per file, then the diffs if they are wanted."""

from collections.abc import Iterator
from typing import Final

from dragoman.cli.display.style import Segment, Style
from dragoman.cli.display.text import one_line, sanitize
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_MARKS: Final = {
    event_pb2.FILE_OPERATION_CREATE: ("A", Style.ASSISTANT),
    event_pb2.FILE_OPERATION_MODIFY: ("M", Style.PLAIN),
    event_pb2.FILE_OPERATION_DELETE: ("D", Style.ERROR),
    event_pb2.FILE_OPERATION_RENAME: ("R", Style.PLAIN),
}
_LINE_STYLES: Final = {"+": Style.ASSISTANT, "-": Style.ERROR, "@": Style.FAINT}


def change_lines(changes: pb.GetChangesResponse, *, with_diffs: bool) -> Iterator[list[Segment]]:
    """Yield the lines."""
    for file in changes.files:
        mark, style = _MARKS.get(file.operation, ("?", Style.PLAIN))
        name = f"{one_line(file.old_path)} -> {one_line(file.path)}" if file.old_path else one_line(file.path)
        yield [Segment(f"{mark} ", style), Segment(name), Segment(_counts(file), Style.FAINT)]
    added, deleted = (sum(getattr(file, f"{kind}_lines") for file in changes.files) for kind in ("added", "deleted"))
    count = len(changes.files)
    total = f"{count} file{'' if count == 1 else 's'} changed in {one_line(changes.root)}, +{added} -{deleted}"
    yield [Segment(total if changes.is_final else f"{total} so far", Style.FAINT)]
    for note in changes.notes:
        yield [Segment(one_line(note), Style.FAINT)]
    if changes.overlapping_run_ids:
        runs = ", ".join(map(one_line, changes.overlapping_run_ids))
        yield [Segment(f"These runs worked there meanwhile, and some of it may be theirs: {runs}", Style.FAINT)]
    if with_diffs:
        for file in changes.files:
            yield from _diff_lines(file)


def _counts(file: pb.ChangedFile) -> str:
    if file.is_binary:
        return "  binary"
    mode = f"  {file.old_mode:o} -> {file.new_mode:o}" if file.old_mode and file.old_mode != file.new_mode else ""
    counts = f"  +{file.added_lines} -{file.deleted_lines}" if file.HasField("added_lines") else ""
    return f"{counts}{mode}" if file.new_mode else counts


def _diff_lines(file: pb.ChangedFile) -> Iterator[list[Segment]]:
    if file.diff_left_out:
        yield [Segment(f"{one_line(file.path)}: the diff is left out", Style.FAINT)]
    for line in file.diff.splitlines():
        yield [Segment(sanitize(line), _LINE_STYLES.get(line[:1], Style.PLAIN))]
