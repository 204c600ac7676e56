"""The private directory of one attempt, and what is laid out in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.sdk._request.job import Job, Plan
from dragoman.sdk._run.files import remove_tree
from dragoman.sdk._skills.source import lay_out, plan_skill_directory

_PREFIX = "dragoman-run-"
_LONGEST = 60
"""Bytes. Agents put sockets below their TMPDIR, and a socket's path has at most 103 on some systems."""


@contextmanager
def run_directory() -> Iterator[Path]:
    """Make a directory for one attempt, and remove it whatever happens."""
    import tempfile  # noqa: PLC0415 - an adapter serves sooner without it

    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(os.fsencode(path)) > _LONGEST:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
    try:
        yield path
    finally:
        remove_tree(path)


def renew(path: Path) -> None:
    """Make the directory anew for another turn of its run: at the same place, as the agent knows the paths in it.

    A program's directory is gone with the program, as it may contain secrets.

    Raises:
        OSError: it cannot be made, or another user has made it.
    """
    remove_tree(path)
    path.mkdir(mode=0o700)


def lay_out_files(job: Job, plan: Plan, skill_layout: str) -> None:
    """Write what the agent reads there: skills, and the plan's files."""
    (job.run_dir / "tmp").mkdir(mode=0o700)
    if job.skills_dir is not None:
        job.skills_dir.mkdir(mode=0o700)
        lay_out(job.skills_dir, plan_skill_directory(job.skills, skill_layout))
    for relative, content in plan.files.items():
        path = job.run_dir / relative
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
