"""A Kubernetes of one node in namespaces of its own: its programs, and how to talk to it.

The flags are those that were seen to work without systemd, and with cgroups of version 1. All that a node
starts is in one process namespace, all that it mounts in one mount namespace: both end with their first process, and
that one when this process closes a pipe or ends.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.certificates import Authority, issue

ADDRESS: Final = "10.123.0.1"
"""Of the node; the tests are at the other end of a cable, in a network namespace of their own."""
OUTSIDE: Final = "10.123.0.2"
PODS: Final = "10.124.0"
SERVICES: Final = "10.96.0"
NAME: Final = "node1"
_START_S = 240
"""How long a part may take to start where the machine is busy."""
_COMMAND_S = 300

_SET_UP = f"""
set -eu
for hidden in /run /var/lib/cni /var/lib/kubelet /var/log; do
  mkdir -p $hidden; mount -t tmpfs -o mode=755 tmpfs $hidden
done
mkdir -p /run/lock /var/log/pods
# In memory, too: to remove the files of images one by one would take a minute.
mkdir -p "$FOLDER/containerd"; mount -t tmpfs tmpfs "$FOLDER/containerd"
mount --bind "$FOLDER/hosts" /etc/hosts
ip link set lo up
ip link set node0 up
ip address add {ADDRESS}/24 dev node0
ip route add default via {OUTSIDE}
echo 1 >/proc/sys/net/ipv4/ip_forward
"""
_CONTAINERD = """version = 2
root = "{folder}/containerd/root"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""
_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "type": "ptp",
    "ipam": {"type": "host-local", "subnet": f"{PODS}.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
}
_NAMES = """.:53 {
  errors
  kubernetes cluster.local {
    kubeconfig {folder}/kubeconfig node
  }
}
"""


class Failed(Exception):  # noqa: N818 - what a program did
    """A program failed; the text is what it printed."""


def wait_until(what: str, condition: Any, seconds: float = _START_S) -> float:
    """Wait until ``condition()`` is true, and return how many seconds that took.

    Raises:
        Failed: it did not come.
    """
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        if condition():
            return time.monotonic() - started
        time.sleep(0.2)  # others' programs: there is nothing to wait for but their answers
    raise Failed(f"not within {seconds:.0f} s: {what}")


class Node:
    """A running node.

    Args:
        programs: the folder that scripts/install-cluster prints.
        folder: where its files are to be.
        holder: the first process of its namespaces.
    """

    def __init__(self, programs: Path, folder: Path, holder: int) -> None:
        self.programs = programs
        self.folder = folder
        self._holder = holder
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def inside(self, *command: str) -> list[str]:
        """Return the command that does one in the namespaces of the node."""
        return ["nsenter", "--target", str(self._holder), "--net", "--mount", "--pid", "--", *command]

    def run(self, *command: str, **variables: str) -> str:
        """Run a command on the node, and return what it prints.

        Raises:
            Failed: it failed.
        """
        return _run(self.inside(*command), {**os.environ, **variables})

    def start(self, name: str, *command: str) -> None:
        """Start a program that stays, with its output in NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                self.inside(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def stop(self, name: str) -> None:
        """End a program that `start` started, and wait until it has ended."""
        process = self._started.pop(name)
        # nsenter waits for the program, which is its only child, and passes no signals on.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), 15)
        process.wait(_COMMAND_S)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl where the tests are, and return what it prints.

        Raises:
            Failed: it failed.
        """
        return _run([str(self.programs / "kubectl"), *arguments], self._outside, stdin)

    def helm(self, *arguments: str) -> str:
        """Run helm where the tests are, and return what it prints.

        Raises:
            Failed: it failed.
        """
        program = shutil.which("helm")
        assert program is not None, "run these by make test-cluster, which builds helm"
        return _run([program, *arguments], self._outside)

    def get(self, *arguments: str) -> Any:
        """Return what ``kubectl get`` finds, as JSON."""
        return json.loads(self.kubectl("get", "--output=json", *arguments))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change objects."""
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(listed))

    def load(self, archive: Path) -> None:
        """Import the images of an archive."""
        self.run(
            "ctr", "--address=/run/containerd/containerd.sock", "--namespace=k8s.io", "images", "import", str(archive)
        )

    def is_ready(self) -> bool:
        """Whether the API server answers that it is ready."""
        with contextlib.suppress(Failed):
            return self.kubectl("get", "--raw=/readyz") == "ok"
        return False

    def start_api(self) -> None:
        """Start the API server, and wait until it is ready."""
        folder = self.folder
        self.start(
            "kube-apiserver",
            str(self.programs / "kube-apiserver"),
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            f"--advertise-address={ADDRESS}",
            f"--cert-dir={folder}/api",
            f"--tls-cert-file={folder}/api.crt",
            f"--tls-private-key-file={folder}/api.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/accounts.key",
            f"--service-account-signing-key-file={folder}/accounts.key",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            f"--service-cluster-ip-range={SERVICES}.0/24",
            "--allow-privileged=true",
        )
        wait_until("the API server is ready", self.is_ready)

    def start_rest(self) -> None:
        """Start what needs the API server, and wait until the node is ready for pods."""
        kubeconfig = f"--kubeconfig={self.folder}/kubeconfig"
        program = {path.name: str(path) for path in self.programs.iterdir()}
        self.start("kube-scheduler", program["kube-scheduler"], kubeconfig, "--leader-elect=false")
        self.start(
            "kube-controller-manager",
            program["kube-controller-manager"],
            kubeconfig,
            "--leader-elect=false",
            f"--service-account-private-key-file={self.folder}/accounts.key",
            f"--root-ca-file={self.folder}/ca.crt",
            "--node-monitor-grace-period=200s",  # of a busy machine
        )
        self.start("containerd", "containerd", "--config", f"{self.folder}/containerd.toml")
        self.start(
            "kubelet",
            program["kubelet"],
            kubeconfig,
            f"--config={self.folder}/kubelet.json",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
            f"--root-dir={self.folder}/kubelet",
        )
        self.start(
            "kube-proxy",
            program["kube-proxy"],
            kubeconfig,
            "--proxy-mode=iptables",
            f"--cluster-cidr={PODS}.0/24",
            f"--hostname-override={NAME}",
            "--conntrack-max-per-core=0",  # limits of the whole machine, which the node leaves alone
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )
        self.start("coredns", program["coredns"], "-conf", f"{self.folder}/Corefile")
        wait_until("the node is ready", self._is_node_ready)

    @property
    def _outside(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig"), "HOME": str(self.folder)}

    def _is_node_ready(self) -> bool:
        with contextlib.suppress(Failed):
            answer = self.get("node", NAME)
            ready = [one["status"] for one in answer["status"]["conditions"] if one["type"] == "Ready"]
            account = self.kubectl("get", "serviceaccount", "default", "--ignore-not-found", "--output=name")
            return ready == ["True"] and bool(account)
        return False


def _run(command: Sequence[str], environment: Mapping[str, str], stdin: str | None = None) -> str:
    done = subprocess.run(
        command,
        check=False,
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        env=environment,
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def running(programs: Path, folder: Path) -> Iterator[Node]:
    """Start a node, and end all that it started after the block.

    The calling process has to be in a network namespace of its own, which becomes that of the callers outside.
    """
    _write_files(folder)
    before = set(_cgroups())
    names = ("--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")
    # SIGCHLD is ignored, so that the kernel reaps what is left to the first process.
    hold = ("sh", "-c", 'trap "" CHLD; echo held; exec cat')
    with subprocess.Popen(("unshare", *names, *hold), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unshare:
        assert unshare.stdout is not None
        assert unshare.stdout.readline() == b"held\n", "these need root, and a kernel that makes namespaces"
        (holder,) = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
        node = Node(programs, folder, int(holder))
        try:
            _connect(node)
            node.start(
                "etcd",
                str(programs / "etcd"),
                f"--data-dir={folder}/etcd",
                "--unsafe-no-fsync",  # nothing is to outlive the test
            )
            node.start_api()
            node.start_rest()
            yield node
        finally:
            assert unshare.stdin is not None
            unshare.stdin.close()
            unshare.wait(60)
            for process in node._started.values():
                process.wait(60)
            for cgroup in sorted(set(_cgroups()) - before, reverse=True):
                with contextlib.suppress(OSError):
                    cgroup.rmdir()
            subprocess.run(("ip", "link", "delete", "out0"), check=False, capture_output=True)


def _cgroups() -> Iterator[Path]:
    """Yield the control groups that containerd makes for pods; each is in the hierarchy of its controller."""
    for top in Path("/sys/fs/cgroup").glob("*/k8s.io"):
        yield top
        yield from (path for path in top.rglob("*") if path.is_dir())


def _connect(node: Node) -> None:
    def ip(*words: str) -> None:
        _run(("ip", *words), os.environ)

    ip("link", "set", "lo", "up")
    ip("link", "add", "out0", "type", "veth", "peer", "name", "node0", "netns", str(node._holder))
    ip("link", "set", "out0", "up")
    ip("address", "add", f"{OUTSIDE}/24", "dev", "out0")
    ip("route", "add", f"{PODS}.0/24", "via", ADDRESS)
    node.run("sh", "-c", _SET_UP, FOLDER=str(node.folder))


def _write_files(folder: Path) -> None:
    authority = Authority()
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", f"{SERVICES}.1", ADDRESS, "127.0.0.1")
    certificate, key = issue(authority, *names)
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "node",
                "cluster": {"server": f"https://{ADDRESS}:6443", "certificate-authority": f"{folder}/ca.crt"},
            }
        ],
        "users": [{"name": "node", "user": {"token": "administrator"}}],
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": "node"}}],
        "current-context": "node",
    }
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "failSwapOn": False,
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "syncFrequency": "10s",  # how soon a changed secret is in the pods
        "clusterDNS": [ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{folder}/resolv.conf",
        "volumePluginDir": f"{folder}/volume-plugins",
    }
    (folder / "cni").mkdir()
    texts = {
        "api.crt": certificate.decode(),
        "api.key": key.decode(),
        "ca.crt": authority.cert_pem.bytes().decode(),
        "accounts.key": accounts.decode(),
        "tokens.csv": 'administrator,admin,admin,"system:masters"\n',
        "kubeconfig": json.dumps(kubeconfig),
        "kubelet.json": json.dumps(kubelet),
        "resolv.conf": "",
        "hosts": f"127.0.0.1 localhost\n{ADDRESS} {NAME}\n",
        "containerd.toml": _CONTAINERD.format(folder=folder),
        "cni/10-pods.conf": json.dumps(_NETWORK),
        "Corefile": _NAMES.replace("{folder}", str(folder)),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
