"""How the guard starts a command where ``posix_spawn`` cannot make a session, as in interpreters of uv."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, sys
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
    print(error.errno_name, error)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
inherited = os.open("/", os.O_RDONLY)
os.set_inheritable(inherited, True)
argv = [sys.executable, "-S", "-c", SEEN, str(inherited)]
pid = spawn.spawn(argv, environment=["A=1=2", "B=b"], variables={"B": "c"})
os.waitpid(pid, 0)
"""

SEEN = """
import os, signal, sys
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
print(os.environ["A"], os.environ["B"], "PATH" in os.environ)
try:
    os.fstat(int(sys.argv[1]))
except OSError:
    print("nothing else is open")
"""


def test_a_forked_command_has_its_output_session_and_errors_as_a_spawned_one() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"SEEN = {SEEN!r}\n{PROGRAM}"],
        input="not for it",
        capture_output=True,
        text=True,
        check=True,
    )
    out, error, signals, environment, files = done.stdout.splitlines()
    assert out == "['out', 'err'] 3"
    assert signals == "[] False", "none is blocked or ignored, whatever its parent does"
    assert environment == "1=2 c False"
    assert files == "nothing else is open"
    assert error == "ENOENT No such file or directory: '/no/such/program'"
