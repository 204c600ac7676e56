"""The systemd unit of deploy/examples, under a systemd that is the first process of a privileged pod."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pytest

from tests.cluster.conftest import ROOT, Measured
from tests.cluster.node import Failed, Node, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

UNIT: Final = ROOT / "deploy" / "examples" / "dragoman.service"
HOME: Final = "/home/dev"
START: Final = """
umount -R /sys/fs/cgroup
# Systemd finds control groups of version 2 alone, and the one of its container as if it were their root.
exec unshare --cgroup sh -euc '
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  exec env -i container=pod PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd'
"""
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "machine", "namespace": "default"},
    "spec": {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "machine",
                "image": "localhost/dragoman-systemd:dev",
                "imagePullPolicy": "Never",
                "command": ["sh", "-euc", START],
                "workingDir": "/",
                "securityContext": {"privileged": True, "runAsUser": 0, "runAsGroup": 0},
                "volumeMounts": [{"name": "run", "mountPath": "/run"}],
            }
        ],
        "volumes": [{"name": "run", "emptyDir": {"medium": "Memory"}}],
    },
}
SANDBOX: Final = """
cat /proc/self/cgroup /proc/self/status
cp /bin/true ./mine && chmod 4755 ./mine || echo no file for others to become this user
setarch -R true || echo no other personality
"""


class Machine:
    """A systemd in a pod, with one user."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def root(self, *command: str, stdin: str | None = None) -> str:
        """Run a command as root, and return what it prints.

        Raises:
            Failed: it failed.
        """
        clean = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
        return self._node.kubectl(
            "exec", "--stdin", "machine", "--namespace=default", "--", *clean, *command, stdin=stdin
        )

    def user(self, *command: str, stdin: str | None = None) -> str:
        """Run a command as the user who has the unit, and return what it prints.

        Raises:
            Failed: it failed.
        """
        variables = (f"HOME={HOME}", f"PATH={HOME}/.local/bin:/usr/bin:/bin", "XDG_RUNTIME_DIR=/run/user/1000")
        become = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--")
        return self.root(*variables, *become, "env", f"--chdir={HOME}", *command, stdin=stdin)

    def dragoman_run(self, script: str) -> str:
        """Make a run at the router of the unit, and return what the command prints."""
        arguments = json.dumps(["-c", script])
        return self.user("dragoman", "run", "process", "-", "--config=command=sh", f"--config=args={arguments}")

    def unit(self, name: str) -> str:
        """Return a property of the unit."""
        return self.user("systemctl", "--user", "show", f"--property={name}", "--value", "dragoman").strip()

    def logged(self, text: str) -> int:
        """Return how many lines of the unit's journal have a text."""
        lines = self.root("journalctl", "--no-pager", "--output=cat", "_SYSTEMD_USER_UNIT=dragoman.service")
        return sum(text in line for line in lines.splitlines())

    def live_runs(self) -> int:
        """Return how many runs the router has live."""
        return self.user("dragoman", "runs").count(" running ")


@pytest.fixture
def machine(node: Node, measured: Measured) -> Iterator[Machine]:
    """A machine whose user has Dragoman and the unit, as its first lines say, and does not run it yet."""
    archive = ROOT / "build" / "images" / "systemd.tar"
    node.load(archive)
    started = time.monotonic()
    node.apply(POD)
    one = Machine(node)

    wait_until("systemd answers", lambda: _succeeds(one, "loginctl", "list-users"))
    one.root("useradd", "--create-home", "--uid=1000", "--shell=/bin/sh", "dev")
    one.root("loginctl", "enable-linger", "dev")
    wait_until("the user's systemd is active", lambda: _succeeds(one, "systemctl", "is-active", "user@1000"))
    measured.note("a pod with systemd, until its user can start units", f"{time.monotonic() - started:.1f} s")
    one.user("mkdir", "-p", ".local/bin", ".config/systemd/user")
    one.user("ln", "-s", "/opt/dragoman/bin/dragoman", ".local/bin/dragoman")
    one.user("dd", "of=.config/systemd/user/dragoman.service", stdin=UNIT.read_text(encoding="utf-8"))
    yield one
    node.kubectl("delete", "pod/machine", "--namespace=default", "--timeout=120s")


def _succeeds(machine: Machine, *command: str) -> bool:
    try:
        machine.root(*command)
    except Failed:
        return False
    return True


def counting(last: int) -> str:
    """Return a script that writes numbers, ten a second."""
    return f"for number in $(seq {last}); do echo $number; sleep 0.1; done"


def numbers_in(printed: str) -> list[int]:
    return [int(line) for line in printed.split("\n") if line.isdigit()]


def test_the_unit_runs_reloads_recovers_and_drains(machine: Machine) -> None:
    """As its comments say."""
    machine.user("systemd-analyze", "--user", "--man=no", "verify", f"{HOME}/.config/systemd/user/dragoman.service")
    machine.user("systemctl", "--user", "daemon-reload")
    machine.user("systemctl", "--user", "enable", "--now", "dragoman")
    # Not asked by the command, which is a router itself where there is none.
    wait_until("the router is ready", lambda: machine.logged('"router ready"') == 1)
    assert "process" in machine.user("dragoman", "adapters")
    assert "process" in machine.user("dragoman", "detect")

    printed = machine.dragoman_run(SANDBOX)
    assert "/app.slice/dragoman.service" in printed, "it is the router of the unit"
    status = dict(line.split(":\t", 1) for line in printed.splitlines() if ":\t" in line)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "no file for others to become this user" in printed
    assert "no other personality" in printed

    first = machine.unit("MainPID")
    detected = machine.logged('"detection refreshed"')
    machine.user("systemctl", "--user", "reload", "dragoman")
    wait_until("it has looked for agents again", lambda: machine.logged('"detection refreshed"') > detected)
    assert machine.unit("MainPID") == first

    with ThreadPoolExecutor() as pool:
        # After a crash the next router continues the run, whose adapter systemd has left alone.
        run = pool.submit(machine.dragoman_run, counting(100))
        wait_until("the run is live", lambda: machine.live_runs() == 1)
        machine.user("systemctl", "--user", "kill", "--kill-whom=main", "--signal=KILL", "dragoman")
        assert numbers_in(run.result()) == list(range(1, 101))
        assert machine.unit("MainPID") not in {first, "0"}
        assert machine.unit("NRestarts") == "1"

        # A restart waits for live runs.
        second = machine.unit("MainPID")
        run = pool.submit(machine.dragoman_run, counting(60))
        wait_until("the run is live", lambda: machine.live_runs() == 1)
        ready = machine.logged('"router ready"')
        machine.user("systemctl", "--user", "restart", "dragoman")
        assert numbers_in(run.result()) == list(range(1, 61))
        assert machine.unit("MainPID") not in {second, "0"}
        wait_until("the router is ready again", lambda: machine.logged('"router ready"') > ready)

        stop_under_runs(machine, pool)
    assert (machine.unit("ActiveState"), machine.unit("Result")) == ("inactive", "success")
    left = machine.root("ps", "--user=1000", "--format=args=")
    assert "dragoman" not in left, left


def stop_under_runs(machine: Machine, pool: ThreadPoolExecutor) -> None:
    """Stop the unit: a run that ends in time does, one that does not is cancelled, and a new one is refused."""
    short: Future[str] = pool.submit(machine.dragoman_run, counting(100))
    long = pool.submit(machine.dragoman_run, counting(100_000))
    wait_until("both runs are live", lambda: machine.live_runs() == 2)
    stopped = pool.submit(machine.user, "systemctl", "--user", "stop", "dragoman")
    wait_until("it drains", lambda: machine.logged('"router draining"') > 1)
    with pytest.raises(Failed, match="shutting down"):
        machine.dragoman_run("echo too late")
    assert numbers_in(short.result()) == list(range(1, 101))
    with pytest.raises(Failed, match=r"exit 130\n(?s:.)*cancelled"):
        long.result()
    stopped.result()
