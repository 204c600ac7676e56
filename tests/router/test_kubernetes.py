"""A router that follows the EndpointSlices of a namespace: what it makes of changes and of an ill API server."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import structlog
from dragoman.protocol.addresses import parse_address
from dragoman.protocol.errors import Reason
from dragoman.protocol.limits import MIB
from dragoman.router import app
from dragoman.router.adapters import channel
from dragoman.router.adapters.context import Timing
from dragoman.router.adapters.kubernetes import discovery
from dragoman.v1 import router_pb2

from tests.certificates import Authority, Files
from tests.router.harness import PATIENCE_S, Caller, config, copy, kinds, routing
from tests.router.kubernetes_api import FakeKubernetesApi, endpoint, endpoint_slice
from tests.router.sidecar import Sidecar, serving

READY = router_pb2.ADAPTER_STATE_READY
UNAVAILABLE = router_pb2.ADAPTER_STATE_UNAVAILABLE
END = {"end": "SUCCEEDED"}
SELECTOR = "part-of=dragoman"
LABELS = {"part-of": "dragoman"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what is tried again be tried soon."""
    monkeypatch.setattr(discovery, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(discovery, "_LONGEST_DELAY_S", 0.05)
    monkeypatch.setenv("DRAGOMAN_TOKEN", "0123456789abcdef0123456789abcdef")


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The directory of a service account."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "namespace").write_text("agents")
    (folder / "token").write_text("t1\n")
    return folder


class Pod:
    """An adapter in this process, at a port of its own."""

    def __init__(self, sidecar: Sidecar, port: int) -> None:
        self.sidecar = sidecar
        self.port = port
        self.name = f"pod-{port}"

    def endpoint(self, **conditions: Any) -> dict[str, Any]:
        return endpoint("127.0.0.1", self.name, **conditions)


class Door:
    """A port that closes each connection until it is open, and leads to another port then."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.is_open = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_of: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_open:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        else:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def pods(*types: str, most: int = 0) -> AsyncIterator[list[Pod]]:
    """Serve adapters of these types."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for type_ in types:
            sidecar = Sidecar(type_, most=most)
            server = await stack.enter_async_context(serving(sidecar, "127.0.0.1:0"))
            found.append(Pod(sidecar, parse_address(server.addresses[0]).port))
        yield found


def put(api: FakeKubernetesApi, pod: Pod, service: str = "fake", **conditions: Any) -> None:
    """Put the slice of one pod: ports are one to a slice, and in these tests pods differ by them."""
    api.put(endpoint_slice(pod.name, service, [pod.endpoint(**conditions)], port=pod.port, labels=LABELS))


@contextlib.asynccontextmanager
async def following(folder: Path, api: FakeKubernetesApi, account: Path) -> AsyncIterator[Caller]:
    """Run a router that follows the slices of ``api``."""
    configured = config(folder, kubernetes=SELECTOR, kubernetes_account=account, kubernetes_url=api.url)
    async with routing(configured) as (_router, caller):
        yield caller


async def where(caller: Caller, adapter: str = "fake") -> str:
    """Make a run, and return the process that had it."""
    events = await caller.execute(adapter, END).rest()
    return str(events[0].started.instance_id)


def remarks(entries: Sequence[router_pb2.AdapterEntry], adapter: str = "fake") -> list[str]:
    return [remark for entry in entries if entry.adapter == adapter for remark in entry.remarks]


async def test_a_service_is_an_adapter_and_its_pods_share_the_runs(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake", "fake", "other") as (one, two, third):
        put(api, one)
        put(api, two)
        put(api, third, "elsewhere")
        api.put(endpoint_slice("not-ours", "web", [endpoint("127.0.0.1", "web")]))
        async with following(folder, api, account) as caller:
            entry = await caller.until("fake", READY)
            assert (entry.source, entry.origin) == (router_pb2.ADAPTER_SOURCE_KUBERNETES, "Service agents/fake")
            await caller.until("other", READY)
            await caller.until_listed(lambda entries: len(entries) == 2 and not remarks(entries))
            first = caller.execute("fake", {"gate": "g"}, END, run_id="first")
            second = caller.execute("fake", {"gate": "g"}, END, run_id="second")
            ids = {(await run.next()).started.instance_id for run in (first, second)}
            assert ids == {one.sidecar.instance_id, two.sidecar.instance_id}
            assert (await caller.entry("fake")).live_runs == 2
            for pod in (one, two):
                pod.sidecar.open("g")
            assert [kinds(await run.rest())[-1] for run in (first, second)] == ["result", "result"]


async def test_a_name_is_waited_for_until_the_first_list_has_come(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake") as (pod,):
        put(api, pod)
        api.hold_lists()
        async with following(folder, api, account) as caller:
            await api.until(lambda: api.count("list") == 1)
            run = caller.execute("fake", END)
            api.release_lists()
            assert kinds(await run.rest()) == ["started", "result"]


async def test_a_name_is_waited_for_until_the_first_pod_that_has_become_ready_was_reached(
    folder: Path, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after an installation: the router was there before the pod, and found no server at its address."""
    options = channel._options
    late = {f"grpc.{name}_reconnect_backoff_ms": 3_600_000 for name in ("initial", "max")}
    monkeypatch.setattr(channel, "_options", lambda *of: list({**dict(options(*of)), **late}.items()))
    monkeypatch.setattr(app, "_timing", lambda _config: Timing(patience_s=PATIENCE_S))
    async with FakeKubernetesApi() as api, pods("fake") as (pod,), Door(pod.port) as door:
        pod.port = door.port
        put(api, pod, ready=False)
        async with following(folder, api, account) as caller:
            await caller.until_listed(lambda entries: [entry.state for entry in entries] == [UNAVAILABLE])
            run = caller.execute("fake", END)
            door.is_open = True
            put(api, pod)
            assert kinds(await run.rest()) == ["started", "result"]


async def test_a_wrong_name_waits_for_no_service_of_which_no_pod_may_be_reached(
    folder: Path, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_timing", lambda _config: Timing(patience_s=3_600))
    async with FakeKubernetesApi() as api, pods("fake") as (refused,):
        refused.sidecar.schema = "x" * MIB
        put(api, refused, "refused")
        api.put(endpoint_slice("none", "scaled-to-zero", [], labels=LABELS))
        async with following(folder, api, account) as caller:
            known = {(UNAVAILABLE, False), (UNAVAILABLE, True)}
            await caller.until_listed(
                lambda entries: {(one.state, "too large" in "".join(one.remarks)) for one in entries} == known
            )
            error = await caller.execute("fakes", END).error()
            assert error.reason is Reason.ADAPTER_NOT_FOUND


async def test_a_pod_that_terminates_keeps_its_run_and_gets_no_new_one(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake", "fake") as (old, new):
        put(api, old)
        async with following(folder, api, account) as caller:
            await caller.until("fake", READY)
            live = caller.execute("fake", {"gate": "g"}, "bye", END, run_id="live")
            await live.until("started")
            put(api, old, ready=False, serving=True, terminating=True)
            entries = await caller.until_listed(remarks)
            assert remarks(entries) == [f"{old.name} (127.0.0.1:{old.port}) takes no new runs: is terminating"]
            assert [entry.state for entry in entries] == [UNAVAILABLE]
            put(api, new)
            await caller.until("fake", READY)
            assert {await where(caller) for _ in range(3)} == {new.sidecar.instance_id}
            api.delete(old.name)  # its run goes on although the slice is gone
            await caller.until_listed(lambda entries: entries and not remarks(entries))
            old.sidecar.open("g")
            assert kinds(await live.rest())[-2:] == ["text:bye", "result"]


async def test_an_unready_pod_gets_no_run_until_it_is_ready(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake") as (pod,):
        put(api, pod, ready=False)
        async with following(folder, api, account) as caller:
            await caller.until("fake", UNAVAILABLE)
            error = await caller.execute("fake", END).error()
            assert error.reason is Reason.ADAPTER_UNAVAILABLE
            assert "no endpoint that takes runs" in error.message
            put(api, pod)
            await caller.until("fake", READY)
            assert await where(caller) == pod.sidecar.instance_id


async def test_the_limit_of_concurrent_runs_is_that_of_all_pods(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake", "fake", most=1) as both:
        for pod in both:
            put(api, pod)
        async with following(folder, api, account) as caller:
            await caller.until("fake", READY)
            await caller.until_listed(lambda entries: entries and not remarks(entries))
            runs = [caller.execute("fake", {"gate": "g"}, END, run_id=f"r{number}") for number in range(2)]
            for run in runs:
                await run.until("started")
            assert (await caller.execute("fake", END).error()).reason is Reason.TOO_MANY_RUNS
            for pod in both:
                pod.sidecar.open("g")
            for run in runs:
                await run.rest()


async def test_the_last_slice_that_vanishes_takes_no_working_pod_with_it(
    folder: Path, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeKubernetesApi() as api, pods("fake") as (pod,):
        put(api, pod)
        async with following(folder, api, account) as caller:
            await caller.until("fake", READY)
            version = api.version
            api.delete(pod.name)
            api.end_watches()  # so that the next watch shows that the deletion has arrived
            await api.until(lambda: api.watched_from > version)
            assert await where(caller) == pod.sidecar.instance_id
            put(api, pod)
            assert await where(caller) == pod.sidecar.instance_id


async def test_a_service_that_stays_away_is_let_go_of(
    folder: Path, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "HOLD_S", 0.1)
    async with FakeKubernetesApi() as api, pods("fake") as (pod,):
        put(api, pod)
        async with following(folder, api, account) as caller:
            await caller.until("fake", READY)
            live = caller.execute("fake", {"gate": "g"}, END, run_id="live")
            await live.until("started")
            api.delete(pod.name)
            await caller.until_gone("fake")
            pod.sidecar.open("g")
            assert kinds(await live.rest())[-1] == "result"


async def test_pods_of_one_service_are_one_adapter(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake", "other") as (pod, wrong):
        put(api, pod)
        async with following(folder, api, account) as caller:
            await caller.until("fake", READY)
            put(api, wrong)
            found = remarks(
                await caller.until_listed(lambda entries: any("one Service" in r for r in remarks(entries)))
            )
            assert [one for one in found if f"{wrong.name} (" in one and "It is adapter 'other'" in one] == found
            assert await where(caller) == pod.sidecar.instance_id


@pytest.mark.parametrize("fault", ["cut", "eof", "expired at connect", "expired midway", "error", "garbage", "down"])
async def test_an_ill_api_server_costs_no_change(fault: str, folder: Path, account: Path) -> None:
    """Whatever happens to the watch, what changes meanwhile is known in the end, and the pods serve all the time."""
    async with pods("fake", "fake") as (old, new), contextlib.AsyncExitStack() as stack:
        api = FakeKubernetesApi()
        await stack.enter_async_context(api)
        put(api, old)
        async with following(folder, api, account) as caller:
            await caller.until("fake", READY)
            await api.until(lambda: api.live_watches == 1)
            watches, lists = api.count("watch"), api.count("list")
            if fault == "cut":
                api.cut()
                put(api, new)
            elif fault == "eof":
                api.end_watches()
                put(api, new)
            elif fault == "expired at connect":
                api.compact()
                api.end_watches()
                put(api, new)
            elif fault == "expired midway":
                api.fail_watches()
                put(api, new)
            elif fault == "error":
                api.fail_watches(500, "etcdserver: leader changed")
                put(api, new)
            elif fault == "garbage":
                api.send_line(b'{"type": "ADDED", "object": 5}\n')
                put(api, new)
            else:
                await api.__aexit__(None, None, None)
                put(api, new)
                assert await where(caller) == old.sidecar.instance_id
                await api.__aenter__()
            put(api, old, ready=False, serving=True, terminating=True)
            await caller.until_listed(lambda entries: any(old.name in remark for remark in remarks(entries)))
            await caller.until("fake", READY)
            assert await where(caller) == new.sidecar.instance_id
            assert api.count("watch") > watches
            is_listed_anew = fault in {"expired at connect", "expired midway", "error", "garbage"}
            assert (api.count("list") > lists) == is_listed_anew, "a list is asked for only if it is needed"


async def test_events_that_come_twice_or_late_change_nothing(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake") as (pod,):
        old = api.put(endpoint_slice(pod.name, "fake", [pod.endpoint(ready=False)], port=pod.port, labels=LABELS))
        async with following(folder, api, account) as caller:
            await caller.until("fake", UNAVAILABLE)
            await api.until(lambda: api.live_watches == 1)
            put(api, pod)
            entry = await caller.until("fake", READY)
            new = api.put(endpoint_slice(pod.name, "fake", [pod.endpoint()], port=pod.port, labels=LABELS))
            for one in (new, new, old, old):
                api.send("ADDED", one)
            version = api.version
            api.end_watches()
            await api.until(lambda: api.watched_from >= version)
            assert (await caller.entry("fake")).since == entry.since
            assert await where(caller) == pod.sidecar.instance_id


async def test_a_bookmark_saves_the_list_after_a_compaction(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake") as (pod,):
        put(api, pod)
        async with following(folder, api, account) as caller:
            await caller.until("fake", READY)
            await api.until(lambda: api.live_watches == 1)
            api.compact()
            api.bookmark()
            api.end_watches()
            await api.until(lambda: api.count("watch") == 2)
            put(api, pod, ready=False)
            await caller.until("fake", UNAVAILABLE)
            assert api.count("list") == 1
            assert all("allowWatchBookmarks" in one.query for one in api.requests if "watch" in one.query)


async def test_a_long_list_comes_in_pages(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi(page=2) as api, pods("fake", "a", "b", "c", "d") as found:
        for pod in found:
            put(api, pod, pod.sidecar.type)
        async with following(folder, api, account) as caller:
            for pod in found:
                await caller.until(pod.sidecar.type, READY)
            assert api.count("list") == 3


async def test_the_token_is_read_again_when_the_kubelet_has_replaced_it(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake") as (pod,):
        put(api, pod)
        with structlog.testing.capture_logs() as logs:
            async with following(folder, api, account) as caller:
                await caller.until("fake", READY)
                api.token = "t2"
                api.end_watches()
                await api.until(lambda: 401 in api.statuses)
                assert await where(caller) == pod.sidecar.instance_id
                (account / "token").write_text("t2")
                put(api, pod, ready=False)
                await caller.until("fake", UNAVAILABLE)
                assert api.count("list") == 1
        warned = [entry["why"] for entry in logs if entry["event"].startswith("EndpointSlices not followed")]
        assert warned
        assert "the token of the service account is not valid" in warned[0]
        assert "t1" not in str(logs)


@pytest.mark.parametrize(
    ("broken", "says"),
    [("rights", "needs get, list and watch of endpointslices"), ("token", "token cannot be read")],
)
async def test_a_router_without_access_says_what_is_missing_and_serves(
    broken: str, says: str, folder: Path, account: Path
) -> None:
    async with FakeKubernetesApi("elsewhere" if broken == "rights" else "agents") as api:
        if broken == "token":
            (account / "token").unlink()
        with structlog.testing.capture_logs() as logs:
            async with following(folder, api, account) as caller:
                async with asyncio.timeout(PATIENCE_S):
                    while not any(says in str(entry.get("why")) for entry in logs):  # noqa: ASYNC110 - no event
                        await asyncio.sleep(0.01)
                assert list((await caller.router.ListAdapters(router_pb2.ListAdaptersRequest())).adapters) == []


async def test_the_api_server_is_verified_by_the_authorities_of_the_account(folder: Path, account: Path) -> None:
    authority, stranger = Authority(), Authority()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    (account / "ca.crt").write_bytes(stranger.cert_pem.bytes())
    async with FakeKubernetesApi(tls=context) as api, pods("fake") as (pod,):
        put(api, pod)
        with structlog.testing.capture_logs() as logs:
            async with following(folder, api, account) as caller:
                async with asyncio.timeout(PATIENCE_S):
                    while not any("CERTIFICATE_VERIFY_FAILED" in str(entry) for entry in logs):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                assert api.requests == []
                (account / "ca.crt").write_bytes(authority.cert_pem.bytes())  # a rotation is noticed
                await caller.until("fake", READY)


async def test_a_second_router_finds_the_pod_that_has_a_run(folder: Path, account: Path) -> None:
    """Failover: of several pods the one is attached to that has it, though it takes no new runs by then."""
    async with FakeKubernetesApi() as api, pods("fake", "fake") as (one, two):
        put(api, one)
        async with following(folder, api, account) as caller:
            await caller.until("fake", READY)
            live = caller.execute("fake", {"gate": "g"}, END, run_id="live")
            await live.until("started")
            put(api, two)
        put(api, one, ready=False, serving=True, terminating=True)
        async with following(folder, api, account) as caller:
            await caller.until("fake", READY)
            again = caller.attach("live", 1)
            one.sidecar.open("g")
            assert kinds(await again.rest())[-1] == "result"


async def test_a_pod_that_dies_is_passed_over(folder: Path, account: Path) -> None:
    async with FakeKubernetesApi() as api, pods("fake") as (stays,):
        put(api, stays)
        async with following(folder, api, account) as caller:
            async with pods("fake") as (dies,):
                put(api, dies)
                async with asyncio.timeout(PATIENCE_S):
                    while await where(caller) != dies.sidecar.instance_id:
                        pass
            # It may have reported NOT_SERVING before it went.
            unreachable = f"{dies.name} (127.0.0.1:{dies.port}) takes no new runs: is "
            await caller.until_listed(lambda entries: any(r.startswith(unreachable) for r in remarks(entries)))
            assert {await where(caller) for _ in range(3)} == {stays.sidecar.instance_id}


@pytest.mark.parametrize("name", ["fake.agents.svc", "127.0.0.1"])
async def test_the_certificate_of_a_pod_is_for_its_service(
    name: str, folder: Path, account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No one issues certificates for the addresses of pods."""
    authority, ours, theirs = Authority(), Files(tmp_path / "ours"), Files(tmp_path / "theirs")
    ours.fill(authority)
    theirs.fill(authority, name)
    async with FakeKubernetesApi() as api, contextlib.AsyncExitStack() as stack:
        with theirs.used(monkeypatch):
            (pod,) = await stack.enter_async_context(pods("fake"))
        put(api, pod)
        with ours.used(monkeypatch):
            async with following(folder, api, account) as caller:
                is_right = name == "fake.agents.svc"
                await caller.until("fake" if is_right else "agents/fake", READY if is_right else UNAVAILABLE)
