"""What a run changed, at the command line: after a run of one's own, and asked of a router that keeps running."""

import json
from pathlib import Path

from dragoman.cli.display.changes import change_lines
from dragoman.cli.display.style import plain
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.cli.program import dragoman

WRITE = ("run", "process", "", "--changes", "--config", "command=sh")
SCRIPT = 'args=["-c", "echo new > new.txt; rm old.txt"]'


async def test_a_run_lists_what_it_changed(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("1\n2\n")
    done = await dragoman(*WRITE, "--config", SCRIPT, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-3:] == [
        "A new.txt  +1 -0",
        "D old.txt  +0 -2",
        f"2 files changed in {tmp_path}, +1 -2",
    ]


async def test_a_run_shows_the_diffs_on_request(tmp_path: Path) -> None:
    run = [argument if argument != "--changes" else "--diff" for argument in WRITE]
    done = await dragoman(*run, "--config", SCRIPT.replace("; rm old.txt", ""), cwd=tmp_path)
    lines = done.out.splitlines()
    assert (done.code, lines[-1]) == (0, "+new"), done.err
    assert lines[lines.index("A new.txt  +1 -0") + 1] == f"1 file changed in {tmp_path}, +1 -0"


async def test_a_program_gets_it_as_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("1\n")
    done = await dragoman(*WRITE, "--config", SCRIPT, "--json", cwd=tmp_path)
    last = json.loads(done.last_line)
    assert [file["path"] for file in last["files"]] == ["new.txt", "old.txt"]
    assert last["files"][0]["diff"].endswith("+new\n")


async def test_a_run_of_a_router_that_is_not_there() -> None:
    done = await dragoman("changes", "r", "--router", "unix:/nonexistent/socket")
    assert done.code == 1
    assert done.err.startswith("error: ")


def test_all_that_a_file_can_be() -> None:
    response = api.GetChangesResponse(root="/w", overlapping_run_ids=["other"], notes=["Something was left out."])
    add = response.files.add
    add(path="a", operation=pb.FILE_OPERATION_MODIFY, old_mode=0o100644, new_mode=0o100755, added_lines=1)
    add(path="b", operation=pb.FILE_OPERATION_RENAME, old_path="old", new_mode=0o100644, old_mode=0o100644)
    add(path="c\x1b[2J", operation=pb.FILE_OPERATION_CREATE, is_binary=True, diff_left_out=True)
    response.files[0].deleted_lines = 2
    response.files[0].diff = "@@ -1 +1 @@\n-\x1b[2J\n+b\n"
    assert [plain(line) for line in change_lines(response, with_diffs=True)] == [
        "M a  +1 -2  100644 -> 100755",
        "R old -> b",
        "A c␛[2J  binary",
        "3 files changed in /w, +1 -2 so far",
        "Something was left out.",
        "These runs worked there meanwhile, and some of it may be theirs: other",
        "@@ -1 +1 @@",
        "-␛[2J",
        "+b",
        "c␛[2J: the diff is left out",
    ]
