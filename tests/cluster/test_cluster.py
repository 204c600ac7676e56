"""A release of the chart in a real Kubernetes, from its install to its end. Tests build on each other."""

import asyncio
import copy
import hashlib
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.client import Client, DragomanError, Reason, RunStream, execute_request
from dragoman.protocol.tokens import create_token, revoke_token
from dragoman.router.policy.webhooks import headers_of
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb

from tests.certificates import VARIABLES, Authority, Files
from tests.cluster.conftest import (
    AGENT_KEY,
    HOOK_KEY,
    HOOK_PORT,
    MODEL_URL,
    READER,
    RELEASE,
    SPACE,
    VALUES,
    Measured,
    certificates,
    pods_of,
    ready_adapters,
    state_of,
    tokens_secret,
    upgrade,
)
from tests.cluster.node import NAME, OUTSIDE, Failed, Node, wait_until
from tests.router.test_webhooks import Receiver

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

ACCOUNT = f"system:serviceaccount:{SPACE}:{RELEASE}-router"
LINES = 400
"""Of the long run: forty seconds and more, which are longer than a router takes to be replaced."""
WRITE = "MOCK_WRITE path=notes.txt"
SECRETS = ("agents", "postgresql", "tls", "token", "tokens", "trust", "webhooks")
"""Of the tests, which are there before the release and after it."""


def long_run() -> Any:
    """Return a run that writes numbers for a while, ten a second."""
    script = f"for number in $(seq {LINES}); do echo $number; sleep 0.1; done"
    return execute_request("process", "", cwd="/workspace", config={"command": "sh", "args": ["-c", script]})


def lines_of(events: list[pb.AgentEvent]) -> list[str]:
    return "".join(f"{event.log.text}\n" for event in events if event.HasField("log")).split()


def assert_whole(events: list[pb.AgentEvent]) -> None:
    """Check that a long run's stream has all that it wrote, once and in order."""
    check_stream(events)
    assert not [event for event in events if event.WhichOneof("body") == "gap"]
    assert lines_of(events) == [str(number) for number in range(1, LINES + 1)]
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED, events[-1]


async def collect(stream: RunStream) -> list[pb.AgentEvent]:
    return [event async for event in stream]


@pytest.fixture
async def client(release: str) -> AsyncIterator[Client]:
    """A caller outside, through the node's port."""
    async with Client(release, reattach_s=120) as one:
        await ready_adapters(one, "process", "claude_code", "codex")
        yield one


@pytest.fixture(autouse=True)
def report(request: pytest.FixtureRequest, node: Node) -> Iterator[None]:
    """Show the pods after a test that failed."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        print(state_of(node))


def test_the_router_may_follow_endpoint_slices_of_its_namespace_and_nothing_else(node: Node, release: str) -> None:
    def may(verb: str, what: str, namespace: str = SPACE) -> bool:
        asked = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": ACCOUNT,
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{SPACE}", "system:authenticated"],
                "resourceAttributes": {
                    "verb": verb,
                    "resource": what.partition(".")[0],
                    "group": what.partition(".")[2],
                    "namespace": namespace,
                },
            },
        }
        answer = json.loads(node.kubectl("create", "--filename=-", "--output=json", stdin=json.dumps(asked)))
        return bool(answer["status"]["allowed"])

    slices = "endpointslices.discovery.k8s.io"
    assert [verb for verb in ("get", "list", "watch") if not may(verb, slices)] == []
    assert not may("list", slices, namespace="default")
    for verb in ("create", "update", "patch", "delete", "deletecollection"):
        assert not may(verb, slices), verb
    for what in ("pods", "secrets", "configmaps", "services", "nodes", "deployments.apps", "endpoints"):
        for verb in ("get", "list", "watch", "create", "delete"):
            assert not may(verb, what), (verb, what)


async def test_callers_outside_need_a_certificate_and_the_token(
    client: Client, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = execute_request("process", "hello", cwd="/workspace", config={"command": "cat"})
    async with client.execute(request) as run:
        events = await collect(run)
    check_stream(events)
    assert [event.log.text for event in events if event.HasField("log")] == ["hello"]

    async def refused(**how: Any) -> Reason | None:
        async with Client(release, reattach_s=1, timeout_s=20, **how) as stranger:
            with pytest.raises(DragomanError) as caught:
                await stranger.list_runs()
        return caught.value.reason

    assert await refused(token="0" * 64) == Reason.TOKEN_REQUIRED
    with monkeypatch.context() as patch:
        for variable in VARIABLES[:2]:
            patch.delenv(variable)
        assert await refused() is None, "no server refused it: the handshake failed"


async def test_tokens_and_identities_of_the_values_may_do_what_they_are_for(
    client: Client, node: Node, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that is created or revoked in its secret is so at each router, without a restart."""
    del client  # the adapters are ready
    routers = [f"{address}:7777" for address in pods_of(node, "router").values()]
    tokens = tmp_path / "tokens.json"
    token = create_token(tokens, "reader", ["read"], [], None)

    async def until(expected: Reason | None, **how: Any) -> None:
        for router in routers:
            async with asyncio.timeout(240):
                while True:  # as soon as the kubelet has put it into the pod
                    if await answer_to_list(router, **how) == expected:
                        break
                    await asyncio.sleep(0.5)

    async def may_only_read(**how: Any) -> None:
        request = execute_request("process", "hello", cwd="/workspace", config={"command": "cat"})
        for router in routers:
            assert await answer_to_list(router, **how) is None
            async with Client(router, reattach_s=1, timeout_s=60, **how) as reader:
                with pytest.raises(DragomanError) as refused:
                    await reader.execute(request).wait()
            assert refused.value.reason == Reason.NOT_PERMITTED

    await until(Reason.TOKEN_REQUIRED, token=token)
    node.apply(tokens_secret(tokens.read_bytes()))
    await until(None, token=token)
    await may_only_read(token=token)
    revoke_token(tokens, "reader")
    node.apply(tokens_secret(tokens.read_bytes()))
    await until(Reason.TOKEN_REQUIRED, token=token)

    monkeypatch.delenv("DRAGOMAN_TOKEN")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    files = Files(tmp_path / "reader")
    with files.used(monkeypatch):
        files.fill(authority, READER)
        await may_only_read()
        files.fill(authority, f"{READER}/another")
        assert {await answer_to_list(router) for router in routers} == {Reason.NOT_PERMITTED}


async def answer_to_list(router: str, **how: Any) -> Reason | None:
    """Return the reason why a router does not list its runs; ``None`` if it does."""
    async with Client(router, reattach_s=1, timeout_s=60, **how) as one:
        try:
            await one.list_runs()
        except DragomanError as error:
            return error.reason or Reason.INTERNAL
    return None


async def test_a_real_claude_code_beside_the_router_works_with_the_model_of_another_pod(
    client: Client, measured: Measured
) -> None:
    started = time.monotonic()
    request = execute_request("claude_code", WRITE, cwd="/workspace")
    request.permissions.auto_approve = True
    async with client.execute(request) as run:
        events = await collect(run)
    measured.note("a run of Claude Code, a file written", f"{time.monotonic() - started:.1f} s")
    check_stream(events)
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED, events[-1]
    assert [event for event in events if event.HasField("tool_call")]


def codex_run() -> Any:
    """Return a run of Codex that writes a file."""
    provider = f'{{name="scripted",base_url="{MODEL_URL}/v1",env_key="SCRIPTED_API_KEY",wire_api="responses"}}'
    settings = ('model="gpt-5.5"', 'model_provider="scripted"', f"model_providers.scripted={provider}")
    arguments = [
        word for one in (*settings, "features.plugins=false", "analytics.enabled=false") for word in ("-c", one)
    ]
    request = execute_request("codex", WRITE, cwd="/workspace", config={"extraArgs": arguments})
    request.env["SCRIPTED_API_KEY"] = "sk-fake-0000-dragoman-testkit"
    request.permissions.auto_approve = True
    return request


async def test_a_real_codex_in_a_pod_of_its_own_works_with_the_model_of_another_pod(
    client: Client, measured: Measured
) -> None:
    started = time.monotonic()
    request = codex_run()
    async with client.execute(request) as run:
        events = await collect(run)
    measured.note("a run of Codex, a file written", f"{time.monotonic() - started:.1f} s")
    check_stream(events)
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED, events[-1]
    assert [event.file_change.path for event in events if event.HasField("file_change")] == ["/workspace/notes.txt"]


def test_the_kubelet_itself_asks_the_ports_of_health(node: Node, release: str) -> None:
    """By gRPC, as the containers' specifications say; nothing is started in them to ask."""
    del release  # it is installed
    for component in ("router", "adapter"):
        for pod in pods_of(node, component):
            spec = node.get("pod", pod, f"--namespace={SPACE}")["spec"]
            for container in (*spec["initContainers"], *spec["containers"]):
                for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                    assert "grpc" in container.get(kind, {"grpc": {}}), (pod, container["name"])
    expected = {
        *(("router", kind) for kind in ("Startup", "Readiness", "Liveness")),
        *(("adapter", kind) for kind in ("Startup", "Readiness", "Liveness")),
        *(("adapter-claude-code", kind) for kind in ("Startup", "Liveness")),
    }

    def answered() -> set[tuple[str, str]]:
        text = node.kubectl("get", "--raw", f"/api/v1/nodes/{NAME}/proxy/metrics/probes")
        lines = [
            line for line in text.splitlines() if 'result="successful"' in line and f'namespace="{SPACE}"' in line
        ]
        labels = [
            dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in lines if line.startswith("prober_probe_total{")
        ]
        return {(one["container"], one["probe_type"]) for one in labels}

    wait_until("each kind of probe was answered", lambda: expected <= answered())


async def test_webhooks_and_secrets_of_stored_agents_are_those_of_the_values(client: Client) -> None:
    receiver = Receiver()
    script = 'printf %s "$MODEL_KEY" | sha256sum | cut -c1-8'
    agent = router_pb2.StoredAgent(name="keyed", adapter="process", env={"MODEL_KEY": "${model-key}"})
    agent.config.update({"command": "sh", "args": ["-c", script]})
    request = adapter_pb2.ExecuteRequest(agent_name="keyed", labels={"is": "watched"})
    request.workspace.cwd = "/workspace"
    async with await asyncio.start_server(receiver.serve, OUTSIDE, HOOK_PORT):
        await client.create_agent(agent)
        async with client.execute(request) as run:
            assert lines_of(await collect(run)) == [hashlib.sha256(AGENT_KEY.encode()).hexdigest()[:8]]
        (got,) = await receiver.until(bool)
    assert (got.data["type"], got.data["data"]["run_id"]) == ("result", run.run_id)
    sent = got.headers
    signed = headers_of(sent["webhook-id"], int(sent["webhook-timestamp"]), got.body, HOOK_KEY)
    assert sent["webhook-signature"] == signed["webhook-signature"]


async def test_no_call_fails_while_certificates_are_replaced(
    client: Client, node: Node, outside: Files, authority: Authority, measured: Measured
) -> None:
    routers = [f"{address}:7777" for address in pods_of(node, "router").values()]
    adapters = [f"{address}:7801" for address in pods_of(node, "adapter").values()]
    before = {address: await certificate_of(address, outside) for address in (*routers, *adapters)}
    calls = 0
    async with client.execute(long_run()) as run:
        reading = asyncio.create_task(collect(run))
        started = time.monotonic()
        await asyncio.to_thread(node.apply, certificates(authority))
        outside.fill(authority, "a-caller")
        left = set(before)
        async with asyncio.timeout(300):
            while left:
                for address in routers:
                    async with Client(address, reattach_s=1, timeout_s=60) as fresh:  # a connection of its own
                        await fresh.list_runs()
                    calls += 1
                request = execute_request("process", "hello", cwd="/workspace", config={"command": "cat"})
                async with client.execute(request) as another:
                    assert lines_of(await collect(another)) == ["hello"]
                calls += 1
                left = {address for address in left if await certificate_of(address, outside) == before[address]}
        took = time.monotonic() - started
        assert_whole(await reading)
    measured.note("certificates replaced in all pods, and no call failed", f"{took:.0f} s, {calls} calls")


async def certificate_of(address: str, files: Files) -> bytes:
    """Return the certificate that a server shows."""
    certificate, key, authorities = files.paths
    context = ssl.create_default_context(cafile=str(authorities))
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return shown


async def test_pods_of_an_adapter_come_and_go(client: Client, node: Node, measured: Measured) -> None:
    """Two pods share the runs of an adapter; one that is to end gets no new ones."""
    scale = ("scale", f"deployment/{RELEASE}-process", f"--namespace={SPACE}")
    started = time.monotonic()
    node.kubectl(*scale, "--replicas=2")
    wait_until("two addresses are ready", lambda: len(ready_addresses(node)) == 2)
    both = ready_addresses(node)
    measured.note("a second pod of an adapter, until it is in the slice", f"{time.monotonic() - started:.1f} s")
    served: set[str] = set()
    async with asyncio.timeout(120):
        while served != both:  # as soon as the routers have seen it, which no call reports
            async with client.execute(address_run()) as one, client.execute(address_run()) as other:
                for events in await asyncio.gather(collect(one), collect(other)):
                    served |= set(lines_of(events))
    node.kubectl(*scale, "--replicas=1")
    wait_until("one address is left", lambda: len(ready_addresses(node)) == 1)
    (left,) = ready_addresses(node)
    for _ in range(4):
        async with client.execute(address_run()) as run:
            assert lines_of(await collect(run)) == [left]


def address_run() -> Any:
    """Return a run that says where it is, and stays long enough for a second one to go elsewhere."""
    script = "hostname -i; sleep 2"
    return execute_request("process", "", cwd="/workspace", config={"command": "sh", "args": ["-c", script]})


def ready_addresses(node: Node) -> set[str]:
    """Return the addresses that the slices of an adapter have ready."""
    selector = f"--selector=kubernetes.io/service-name={RELEASE}-process"
    slices = node.get("endpointslices", f"--namespace={SPACE}", selector)["items"]
    return {
        address
        for one in slices
        for endpoint in one.get("endpoints") or ()
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    }


async def test_an_adapter_without_pods_gets_one(client: Client, node: Node, measured: Measured) -> None:
    """Its first pod starts cold, with the image on the node; runs are refused until it serves."""
    first = {"process": address_run(), "codex": codex_run()}
    for name, request in first.items():
        scale = ("scale", f"deployment/{RELEASE}-{name}", f"--namespace={SPACE}")
        node.kubectl(*scale, "--replicas=0")
        wait_until("no pod is left", lambda name=name: not pods_of(node, "adapter", name))
        node.kubectl("wait", "--for=delete", "pod", f"--selector=dragoman.dev/adapter={name}", f"--namespace={SPACE}")
        async with asyncio.timeout(120):
            while await starts(client, request):  # as soon as the routers know, which no call reports
                pass
        started = time.monotonic()
        node.kubectl(*scale, "--replicas=1")
        wait = ("wait", "--for=condition=Ready", "pod", f"--selector=dragoman.dev/adapter={name}")
        wait_until("there is a pod", lambda name=name: pods_of(node, "adapter", name))
        node.kubectl(*wait, f"--namespace={SPACE}", "--timeout=240s")
        measured.note(f"a first pod of {name}, until it is Ready", f"{time.monotonic() - started:.1f} s")
        async with asyncio.timeout(120):
            while not await starts(client, request):
                pass
        measured.note(
            f"a first pod of {name}, until the first event of a run in it", f"{time.monotonic() - started:.1f} s"
        )


async def starts(client: Client, request: Any) -> bool:
    """Start a run, and return whether it came to its agent, whose first event is waited for."""
    try:
        async with client.execute(request) as run:
            async for event in run:
                if event.HasField("started"):
                    return True
    except DragomanError:
        return False
    return False


async def test_a_run_outlives_the_pod_of_its_router(client: Client, node: Node, measured: Measured) -> None:
    """A reader at the pod that is deleted ends up with the whole stream, and so does one at another replica."""
    pods = pods_of(node, "router")
    first, *_ = pods
    async with Client(f"{pods[first]}:7777", reattach_s=5) as gone, gone.execute(long_run()) as run:
        read: list[pb.AgentEvent] = []
        async for event in run:
            read.append(event)
            if len(lines_of(read)) == 20:
                break
        started = time.monotonic()
        node.kubectl("delete", "pod", first, f"--namespace={SPACE}", "--wait=false", "--grace-period=1")
        events = await collect(client.attach(run.run_id, hold=True))
    measured.note("a router's pod deleted: the run's end read at another", f"{time.monotonic() - started:.1f} s")
    assert_whole(events)


async def test_no_event_is_lost_while_routers_are_upgraded(client: Client, node: Node, measured: Measured) -> None:
    before = pods_of(node, "router")
    values = copy.deepcopy(VALUES)
    values["router"]["podAnnotations"] = {"version": "2"}
    async with client.execute(long_run()) as run:
        reading = asyncio.create_task(collect(run))
        started = time.monotonic()
        await asyncio.to_thread(upgrade, node, values)
        measured.note("helm upgrade of two routers, until they are ready", f"{time.monotonic() - started:.1f} s")
        events = await reading
    assert not before.keys() & pods_of(node, "router").keys()
    assert_whole(events)


async def test_no_event_is_lost_while_an_adapter_is_upgraded(client: Client, node: Node, measured: Measured) -> None:
    """The pod that is replaced gives its run the time to end; new runs go to the other one."""
    before = pods_of(node, "adapter", "process")
    values = copy.deepcopy(VALUES)
    values["router"]["podAnnotations"] = {"version": "2"}  # as they are
    values["adapters"][0]["podAnnotations"] = {"version": "2"}
    async with client.execute(long_run()) as run:
        read = [await anext(aiter(run))]
        reading = asyncio.create_task(collect(run))
        started = time.monotonic()
        await asyncio.to_thread(upgrade, node, values)
        measured.note("helm upgrade of an adapter with a live run", f"{time.monotonic() - started:.1f} s")
        ((name, address),) = pods_of(node, "adapter", "process").items()
        assert name not in before
        async with asyncio.timeout(120):
            while True:  # as soon as the router has seen it, which no call reports
                async with client.execute(address_run()) as another:
                    if lines_of(await collect(another)) == [address]:
                        break
        assert_whole([*read, *await reading])

    def has_gone() -> bool:
        pods = node.kubectl("get", "pods", f"--namespace={SPACE}", "--output=name").split()
        return not {f"pod/{one}" for one in before} & set(pods)

    wait_until("the pod that was replaced has ended", has_gone)


async def test_runs_go_on_without_the_api_server(client: Client, node: Node) -> None:
    async with client.execute(long_run()) as run:
        reading = asyncio.create_task(collect(run))
        await asyncio.to_thread(node.stop, "kube-apiserver")
        request = execute_request("process", "hello", cwd="/workspace", config={"command": "cat"})
        async with client.execute(request) as another:
            assert lines_of(await collect(another)) == ["hello"]
        await asyncio.to_thread(node.start_api)
        assert_whole(await reading)
    # The routers go on with their watch: a new pod is found.
    pod = next(iter(pods_of(node, "adapter", "process")))
    node.kubectl("delete", "pod", pod, f"--namespace={SPACE}", "--wait=false")
    touch = ("annotate", f"service/{RELEASE}-process", f"--namespace={SPACE}", "--overwrite")

    def is_replaced() -> bool:
        # While its own watch is not back, the cluster's controller of slices fails, and tries again after ever longer
        # times, a quarter of an hour at most, but at once when the Service is changed.
        node.kubectl(*touch, f"touched={time.monotonic()}")
        present = pods_of(node, "adapter", "process")
        return pod not in present and bool(present) and ready_addresses(node) == set(present.values())

    wait_until("another pod is ready", is_replaced)
    (left,) = ready_addresses(node)
    async with asyncio.timeout(120):
        while True:
            try:
                async with client.execute(address_run()) as run:
                    if lines_of(await collect(run)) == [left]:
                        break
            except DragomanError as error:
                # The pod before has ended, and the router's own watch, which is tried ever less often, is not back.
                if error.reason is not Reason.ADAPTER_UNAVAILABLE:
                    raise


def test_the_release_tests_itself_by_a_run(node: Node, release: str, measured: Measured) -> None:
    started = time.monotonic()
    answer = node.helm("test", RELEASE, f"--namespace={SPACE}", "--timeout=280s")
    measured.note("helm test", f"{time.monotonic() - started:.1f} s")
    assert "Succeeded" in answer


def test_what_it_takes(node: Node, release: str, measured: Measured) -> None:
    note_memory(node, measured)


def note_memory(node: Node, measured: Measured) -> None:
    """Write down the memory of the release's containers, without the cache that the kernel can drop."""
    program = ("ctr", "--address=/run/containerd/containerd.sock", "--namespace=k8s.io", "tasks", "metrics")
    selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
    for pod in node.get("pods", f"--namespace={SPACE}", selector)["items"]:
        is_to_stay = "deletionTimestamp" not in pod["metadata"]
        for status in pod["status"].get("containerStatuses", []) + pod["status"].get("initContainerStatuses", []):
            if is_to_stay and "running" in status["state"]:
                identity = status["containerID"].partition("//")[2]
                memory = json.loads(node.run(*program, "--format=json", identity))["memory"]
                used = int(memory["usage"]["usage"]) - int(memory.get("total_inactive_file", 0))
                measured.note(f"memory of {status['name']} in {pod['metadata']['name']}", f"{used / 1e6:.0f} MB")


def test_an_older_version_is_refused(node: Node, release: str) -> None:
    del release  # it is installed
    version = "app.kubernetes.io/version=99.0.0"
    node.kubectl("label", f"deployment/{RELEASE}", f"--namespace={SPACE}", "--overwrite", version)
    with pytest.raises(Failed, match=r"version 99\.0\.0 is installed, and .* does not open its run log"):
        upgrade(node, VALUES)


def uninstall(node: Node) -> None:
    """Uninstall the release, and check that nothing of it is left."""
    node.helm("uninstall", RELEASE, f"--namespace={SPACE}", "--wait", "--timeout=280s")
    selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
    kinds = ",".join(node.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split())

    def left() -> list[str]:
        found = node.kubectl("get", kinds, f"--namespace={SPACE}", selector, "--output=name", "--ignore-not-found")
        return found.split()

    wait_until("all objects of the release are gone", lambda: not left())
    # What has no labels of the release, such as helm's own record of it.
    secrets = node.kubectl("get", "secrets", f"--namespace={SPACE}", "--output=name").split()
    assert sorted(secrets) == [f"secret/dragoman-{name}" for name in SECRETS]


def test_uninstall_leaves_nothing(node: Node, release: str) -> None:
    uninstall(node)


def test_the_shape_without_tls_and_rights(node: Node, outside: Files) -> None:
    """One router with an adapter beside it: called from its own container, as the deployment's page shows."""
    adapter = {"name": "process", "mode": "sidecar", "image": VALUES["image"]}
    upgrade(node, {"image": VALUES["image"], "adapters": [adapter]})
    inside = ("exec", f"deployment/{RELEASE}", f"--namespace={SPACE}", "--container=router", "--")
    run = ("dragoman", "run", "process", "a first run", "--cwd", "/tmp", "--config", "command=cat")
    wait_until("the adapter is ready", lambda: "ready" in node.kubectl(*inside, "dragoman", "adapters"))
    assert "a first run" in node.kubectl(*inside, *run)
    uninstall(node)


def test_the_shape_with_an_adapter_that_is_no_python(node: Node, outside: Files, measured: Measured) -> None:
    """The adapter process as one static program, in an image without the dragoman command."""
    adapter = {
        "name": "process",
        "image": {"repository": "localhost/dragoman-exec", "tag": "dev", "pullPolicy": "Never"},
        "command": [],
        "args": ["/usr/local/bin/dragoman-exec"],
    }
    keys = ("image", "tls", "auth", "networkPolicy", "test")  # it is ready by its own port of health
    upgrade(node, {key: VALUES[key] for key in keys} | {"adapters": [adapter]})
    note_memory(node, measured)
    assert "Succeeded" in node.helm("test", RELEASE, f"--namespace={SPACE}", "--timeout=280s")
    uninstall(node)
