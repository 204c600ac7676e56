"""The chart's adapters as sandboxes of kubernetes-sigs/agent-sandbox, with its controller on the node."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from dragoman.client import Client, DragomanError, RunStream, execute_request
from dragoman.testkit.streams import check_stream
from dragoman.v1 import event_pb2 as pb

from tests.certificates import Files
from tests.cluster.conftest import RELEASE, SPACE, VALUES, Measured, pods_of, ready_adapters, upgrade
from tests.cluster.node import ADDRESS, Node, wait_until
from tests.cluster.test_cluster import address_run, collect, lines_of, ready_addresses, uninstall

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

CLAIM = {
    "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
    "kind": "SandboxClaim",
    "metadata": {"name": "a-claim", "namespace": SPACE},
    "spec": {"warmPoolRef": {"name": f"{RELEASE}-process"}},
}


async def test_sandboxes_are_claimed_released_and_replaced(node: Node, outside: Files, measured: Measured) -> None:
    """Runs go to all of them, and no run is lost when the claim of one ends."""
    start_agent_sandbox(node)
    keys = ("image", "tls", "auth", "adapterDefaults", "networkPolicy", "test")
    values = {key: VALUES[key] for key in keys} | {
        "router": {"service": {"type": "NodePort"}},
        "agentSandbox": {"enabled": True},
        "adapters": [{"name": "process"}],
    }
    started = time.monotonic()
    upgrade(node, values)
    wait_until("the pool has a sandbox", lambda: len(ready_addresses(node)) == 1)
    measured.note("helm install, until a sandbox of the pool is in the slice", f"{time.monotonic() - started:.1f} s")
    (warm,) = ready_addresses(node)
    port = node.get("service", RELEASE, f"--namespace={SPACE}")["spec"]["ports"][0]["nodePort"]
    async with Client(f"{ADDRESS}:{port}", reattach_s=120) as client:
        await ready_adapters(client, "process")
        started = time.monotonic()
        node.apply(CLAIM)
        wait_until("a sandbox is claimed", lambda: claimed_addresses(node))
        measured.note("a sandbox of the pool claimed", f"{time.monotonic() - started:.1f} s")
        assert claimed_addresses(node) == {warm}, "it is one that was there"
        async with client.execute(address_run()) as run:
            await begin_of(run)
            measured.note(
                "a sandbox of the pool claimed, until the first line of a run in it",
                f"{time.monotonic() - started:.1f} s",
            )
        wait_until("the pool has another one", lambda: len(ready_addresses(node)) == 2)
        (other,) = ready_addresses(node) - {warm}
        served: set[str] = set()
        begins: Sequence[list[pb.AgentEvent]] = ()
        ends: Sequence[list[pb.AgentEvent]] = ()
        async with asyncio.timeout(300):
            while served != {warm, other}:  # as soon as the router has seen both, which no call reports
                async with client.execute(sandbox_run()) as one, client.execute(sandbox_run()) as two:
                    begins = [await begin_of(one), await begin_of(two)]
                    served = {lines_of(begin)[0] for begin in begins}
                    if served == {warm, other}:
                        node.kubectl("delete", "sandboxclaim/a-claim", f"--namespace={SPACE}", "--wait=false")
                    ends = await asyncio.gather(collect(one), collect(two))
        for begin, end in zip(begins, ends, strict=True):
            check_stream([*begin, *end])
            assert lines_of([*begin, *end])[1:] == [str(number) for number in range(1, 201)]
            assert end[-1].result.outcome == pb.OUTCOME_SUCCEEDED, end[-1]
        wait_until("the sandbox has ended with its claim", lambda: set(pods_of(node, "adapter").values()) == {other})
        # Not by annotations, which its controller does not look at.
        values["adapters"] = [{"name": "process", "env": [{"name": "VERSION", "value": "2"}]}]
        upgrade(node, values)
        wait_until("the pool has a new sandbox", lambda: len(ready_addresses(node) - {other}) == 1)
        (new,) = ready_addresses(node) - {other}
        async with asyncio.timeout(120):
            while True:  # as soon as the router has seen it; until then there is none
                with contextlib.suppress(DragomanError):
                    async with client.execute(address_run()) as run:
                        if lines_of(await collect(run)) == [new]:
                            break
    assert "Succeeded" in node.helm("test", RELEASE, f"--namespace={SPACE}", "--timeout=280s")
    uninstall(node)
    wait_until("no sandbox is left", lambda: not node.get("sandboxes", f"--namespace={SPACE}")["items"])
    node.stop("agent-sandbox-controller")


def start_agent_sandbox(node: Node) -> None:
    """Start the controller on the node, with the kinds that it is for."""
    paths = sorted((node.programs / "agent-sandbox-crds").glob("*.yaml"))
    kinds = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    for kind in kinds:
        kind["spec"]["conversion"] = {"strategy": "None"}  # as it wants it without its webhook
    node.apply(*kinds)
    names = [f"customresourcedefinition/{kind['metadata']['name']}" for kind in kinds]
    node.kubectl("wait", "--for=condition=Established", "--timeout=280s", *names)
    node.start(
        "agent-sandbox-controller",
        str(node.programs / "agent-sandbox-controller"),
        f"--kubeconfig={node.folder}/kubeconfig",
        "--extensions",
        "--leader-elect=false",
        "--enable-webhook=false",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
    )


def claimed_addresses(node: Node) -> set[str]:
    """Return the addresses of the sandbox that is claimed, once it is ready."""
    status = node.get("sandboxclaim", "a-claim", f"--namespace={SPACE}").get("status", {})
    is_ready = any((one["type"], one["status"]) == ("Ready", "True") for one in status.get("conditions", []))
    return set(status["sandbox"]["podIPs"]) if is_ready else set()


def sandbox_run() -> Any:
    """Return a run that says where it is, and goes on for twenty seconds."""
    script = "hostname -i; for number in $(seq 200); do echo $number; sleep 0.1; done"
    return execute_request("process", "", cwd="/workspace", config={"command": "sh", "args": ["-c", script]})


async def begin_of(stream: RunStream) -> list[pb.AgentEvent]:
    """Read a run's events up to its first line."""
    events: list[pb.AgentEvent] = []
    while not lines_of(events):
        events.append(await anext(stream))
    return events
