"""How the guard starts a command where ``posix_spawn`` cannot make a session, as in interpreters of uv."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys
from dragoman.guard import spawn

def unable(*_arguments, **_options):
    raise NotImplementedError

os.posix_spawnp = unable
reader, writer = os.pipe()
pid = spawn.spawn(["sh", "-c", "cat; echo out; echo err >&2; exit 3"], output=writer)
assert os.getsid(pid) == pid != os.getsid(0)
os.close(writer)
with open(reader) as output:
    print(output.read().split(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
try:
    spawn.spawn(["/no/such/program"])
except spawn.SpawnError as error:
    print(error)
"""


def test_a_forked_command_has_its_output_session_and_errors_as_a_spawned_one() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input="not for it",
        capture_output=True,
        text=True,
        check=True,
    )
    out, error = done.stdout.splitlines()
    assert out == "['out', 'err'] 3"
    assert error == "No such file or directory: '/no/such/program'"
