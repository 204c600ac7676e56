"""Who calls routers from pods: an account of the cluster by its projected token, an agent by the token of its run."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from dragoman.client import Client, DragomanError, Reason, execute_request

from tests.certificates import VARIABLES
from tests.cluster.conftest import (
    CALLER,
    ISSUER,
    RELEASE,
    SPACE,
    TRUST,
    VALUES,
    pods_of,
    ready_adapters,
    state_of,
    trust_secret,
)
from tests.cluster.node import Failed, Node
from tests.cluster.test_cluster import answer_to_list, collect, lines_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROUTER = f"{RELEASE}.{SPACE}.svc:7777"
TLS = dict(zip(VARIABLES, (f"/etc/dragoman/tls/{name}" for name in ("tls.crt", "tls.key", "ca.crt")), strict=True))
TOKENS = "/var/run/secrets/dragoman"
AUDIENCES = ("dragoman", "another")


@pytest.fixture
def pod(node: Node, release: str) -> Iterator[Node]:
    """A pod of an account that the trust file names, with tokens for two audiences."""
    del release  # the secrets are there
    tokens = [
        {"serviceAccountToken": {"path": audience, "audience": audience, "expirationSeconds": 600}}
        for audience in AUDIENCES
    ]
    container = {
        "name": "caller",
        "image": "localhost/dragoman:dev",
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "env": [{"name": name, "value": value} for name, value in {**TLS, "DRAGOMAN_ROUTER": ROUTER}.items()],
        "volumeMounts": [
            {"name": "tls", "mountPath": "/etc/dragoman/tls", "readOnly": True},
            {"name": "tokens", "mountPath": TOKENS, "readOnly": True},
        ],
    }
    spec = {
        "serviceAccountName": CALLER,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001},
        "containers": [container],
        "volumes": [
            {"name": "tls", "secret": {"secretName": VALUES["tls"]["existingSecret"], "defaultMode": 0o440}},
            {"name": "tokens", "projected": {"sources": tokens}},
        ],
    }
    metadata = {"name": CALLER, "namespace": SPACE}
    node.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    )
    try:
        node.kubectl("wait", "--for=condition=Ready", f"pod/{CALLER}", f"--namespace={SPACE}", "--timeout=240s")
    except Failed as error:
        raise Failed(f"{error}\n{state_of(node)}") from error
    yield node
    node.kubectl("delete", f"pod/{CALLER}", f"serviceaccount/{CALLER}", f"--namespace={SPACE}", "--timeout=120s")


@pytest.fixture
async def ready(release: str) -> str:
    """The address of the routers, once they have the adapter of these tests."""
    async with Client(release, reattach_s=120) as client:
        await ready_adapters(client, "process")
    return release


async def test_a_pod_calls_with_the_token_of_its_account(pod: Node, ready: str) -> None:
    """The cluster is the issuer. What it issued for another audience or account, or earlier, is refused."""

    def call(audience: str, *arguments: str) -> str:
        script = f'DRAGOMAN_TOKEN="$(cat {TOKENS}/{audience})" exec dragoman "$@"'
        inside = ("exec", CALLER, f"--namespace={SPACE}", "--", "sh", "-c", script, "sh")
        return pod.kubectl(*inside, *arguments)

    run = ("run", "process", "hello", "--cwd=/workspace", "--config=command=cat")
    assert "hello\n" in call("dragoman", *run)
    listed = call("dragoman", "runs", "--json")
    started_by = f"jwt cluster system:serviceaccount:{SPACE}:{CALLER}"
    assert [one["startedBy"] for one in json.loads(listed)["runs"]] == [started_by]
    with pytest.raises(Failed, match="is for another audience"):
        call("another", *run)

    other = pod.kubectl("create", "token", "default", f"--namespace={SPACE}", "--audience=dragoman").strip()
    async with Client(ready, token=other, reattach_s=1, timeout_s=60) as client:
        with pytest.raises(DragomanError) as refused:
            await client.execute(execute_request("process", "", cwd="/workspace", config={"command": "true"})).wait()
    assert refused.value.reason == Reason.NOT_PERMITTED
    assert await answer_to_list(ready, token=forged(pod.folder, other, exp=time.time() + 60)) == Reason.NOT_PERMITTED
    assert await answer_to_list(ready, token=forged(pod.folder, other, exp=time.time() - 60)) == Reason.TOKEN_REQUIRED


def forged(folder: Path, token: str, **claims: Any) -> str:
    """Return a token of the cluster with other claims, signed by its key."""
    kept = jwt.decode(token, options={"verify_signature": False})
    assert kept["iss"] == ISSUER
    key = load_pem_private_key((folder / "accounts.key").read_bytes(), None)
    headers = {"kid": jwt.get_unverified_header(token)["kid"]}
    return jwt.encode({**kept, **claims}, key, "RS256", headers=headers)  # type: ignore[arg-type]  # it is an RSA key


async def test_an_agent_calls_the_router_from_its_pod_with_the_token_of_its_run(node: Node, ready: str) -> None:
    """It reads its own run and nothing else, and nothing once the run has ended."""
    settings = "\n".join(f"export {name}={value}" for name, value in TLS.items())
    script = f"""
{settings}
export DRAGOMAN_TOKEN="$DRAGOMAN_API_KEY" DRAGOMAN_ROUTER="$DRAGOMAN_API_URL"
printf %s "$DRAGOMAN_API_KEY" >token-of-a-run
dragoman show "$DRAGOMAN_RUN_ID" --json >mine && grep -q "$DRAGOMAN_RUN_ID" mine && echo mine
dragoman runs >all 2>&1 || echo refused
"""
    request = execute_request("process", "", cwd="/workspace", config={"command": "sh", "args": ["-c", script]})
    request.api_url = ROUTER
    request.admission.run_token.lifetime.FromSeconds(600)
    async with Client(ready, reattach_s=60) as client, client.execute(request) as run:
        assert lines_of(await collect(run)) == ["mine", "refused"]
    inside = ("exec", f"deployment/{RELEASE}-process", f"--namespace={SPACE}", "--")
    token = node.kubectl(*inside, "cat", "/workspace/token-of-a-run")
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (claims["run_id"], claims["exp"] - claims["iat"]) == (run.run_id, 600)
    async with Client(ready, token=token, reattach_s=1, timeout_s=60) as late:
        with pytest.raises(DragomanError) as refused:
            await late.get_run(run.run_id)
    assert refused.value.reason == Reason.TOKEN_REQUIRED


DISCOVERY = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "keys-for-all"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:service-account-issuer-discovery",
    },
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"}],
}
"""Callers without an account may read the cluster's keys."""


async def test_the_keys_of_the_cluster_are_found_by_openid_discovery(node: Node, ready: str) -> None:
    """No file has them: the routers ask the API server, once it gives them to callers without an account."""
    del ready  # the routers are
    routers = [f"{address}:7777" for address in pods_of(node, "router").values()]
    token = node.kubectl("create", "token", "default", f"--namespace={SPACE}", "--audience=dragoman").strip()

    async def until(expected: Reason) -> None:
        for router in routers:
            async with asyncio.timeout(240):
                while True:  # as soon as the kubelet has put the files into the pod, and the keys were asked for
                    if await answer_to_list(router, token=token) == expected:
                        break
                    await asyncio.sleep(0.5)

    kept = node.get("secret", "dragoman-trust", f"--namespace={SPACE}")["data"]
    files = {name: base64.b64decode(data) for name, data in kept.items()}
    without = {name: data for name, data in files.items() if name != "cluster.json"}
    trust = TRUST.replace('jwks = "cluster.json"', 'jwks_ca = "cluster.crt"').encode()
    try:
        await until(Reason.NOT_PERMITTED)
        node.apply(
            trust_secret({**without, "trust.toml": trust, "cluster.crt": (node.folder / "ca.crt").read_bytes()})
        )
        await until(Reason.TOKEN_REQUIRED)
        node.apply(DISCOVERY)
        await until(Reason.NOT_PERMITTED)
    finally:
        node.apply(trust_secret(files))
        node.kubectl("delete", "clusterrolebinding/keys-for-all", "--ignore-not-found")
