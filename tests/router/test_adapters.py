"""Names, refusals, forwarding: what the router does with adapters, launched or at addresses."""

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.errors import Reason
from dragoman.router.app import Router
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.router.harness import PATIENCE_S, config, failure, kinds, manifest, routing
from tests.router.sidecar import Sidecar, serving

READY = router_pb2.ADAPTER_STATE_READY
REFUSED = router_pb2.ADAPTER_STATE_REFUSED
UNAVAILABLE = router_pb2.ADAPTER_STATE_UNAVAILABLE


def address(folder: Path, name: str) -> str:
    return f"unix:{folder}/{name}.sock"


async def test_an_unknown_adapter_is_reported_with_near_names(folder: Path) -> None:
    async with (
        serving(Sidecar("claude_code", aliases=["claude_local"]), address(folder, "a")),
        routing(config(folder, addresses=(address(folder, "a"),))) as (_, caller),
    ):
        error = await caller.execute("claude-cod").error()
        assert error.reason is Reason.ADAPTER_NOT_FOUND
        assert error.metadata["did_you_mean"] == "claude_code"
        assert "did you mean claude_code" in error.message
        far = await failure(caller.adapter.Describe(pb.DescribeRequest(adapter="zzz")))
        assert far.reason is Reason.ADAPTER_NOT_FOUND
        assert far.metadata["did_you_mean"] == ""


async def test_no_adapter_is_an_error_that_lists_them(folder: Path) -> None:
    async with (
        serving(Sidecar(), address(folder, "a")),
        routing(config(folder, addresses=(address(folder, "a"),))) as (_, caller),
    ):
        await caller.until("fake", READY)
        error = await caller.execute("").error()
        assert error.reason is Reason.ADAPTER_REQUIRED
        assert "fake" in error.message


async def test_an_undeclared_alias_is_known_once_its_adapter_was_started(folder: Path) -> None:
    named = manifest(folder, "fake", env={"SIDECAR_ALIASES": "other-name"})
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        error = await caller.execute("other-name").error()
        assert error.reason is Reason.ADAPTER_NOT_FOUND
        assert (await caller.entry("fake")).state == router_pb2.ADAPTER_STATE_IDLE, "no adapter is started for a name"
        await caller.adapter.Describe(pb.DescribeRequest(adapter="fake"), timeout=PATIENCE_S)
        events = await caller.execute("other-name", {"end": "SUCCEEDED"}).rest()
        assert kinds(events) == ["started", "result"]
        assert list((await caller.entry("fake")).description.aliases) == ["other-name"]


async def test_what_is_kept_is_listed_by_an_alias_of_an_adapter_that_was_not_started_again(folder: Path) -> None:
    named = manifest(folder, "fake", env={"SIDECAR_ALIASES": "other-name"})
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        await caller.execute("fake", {"set": "s1"}, {"end": "SUCCEEDED"}, run_id="r", task_key="t").rest()
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        runs = await caller.router.ListRuns(router_pb2.ListRunsRequest(adapter="other-name"))
        assert [run.run_id for run in runs.runs] == ["r"]
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        sessions = await caller.router.ListSessions(router_pb2.ListSessionsRequest(adapter="other-name"))
        assert [session.handle.native_id for session in sessions.sessions] == ["s1"]


async def test_no_adapter_is_started_to_list_what_is_stored_of_one_that_is_gone(folder: Path) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (_, caller):
        await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="r").rest()
    async with routing(config(folder, manifests=(manifest(folder, "other"),))) as (_, caller):
        runs = await caller.router.ListRuns(router_pb2.ListRunsRequest(adapter="fake"))
        assert [run.run_id for run in runs.runs] == ["r"]
        assert not (await caller.router.ListRuns(router_pb2.ListRunsRequest(adapter="typo"))).runs
        assert (await caller.entry("other")).state == router_pb2.ADAPTER_STATE_IDLE


async def test_a_name_belongs_to_the_first_and_the_second_is_refused_visibly(folder: Path) -> None:
    first, second = address(folder, "a"), address(folder, "b")
    async with (
        serving(Sidecar("one", aliases=["shared"]), first),
        routing(config(folder, addresses=(first, second))) as (_, caller),
    ):
        await caller.until("one", READY)
        async with serving(Sidecar("two", aliases=["shared"]), second):
            refused = await caller.until(second, REFUSED)
            assert "'shared' is already used by adapter 'one'" in refused.reason
            events = await caller.execute("shared", {"end": "SUCCEEDED"}).rest()
            assert events[0].started.adapter == "one"
            error = await caller.execute("two").error()
            assert error.reason is Reason.ADAPTER_NOT_FOUND


async def test_bad_manifests_are_reported_and_harm_no_other(folder: Path) -> None:
    (folder / "broken.toml").write_text('type = \nlabel = "x"\n')
    (folder / "odd.json").write_text('{"type": "odd", "command": ["x"], "colour": "red"}')
    (folder / "nameless.json").write_text('{"type": "No Name", "command": ["x"]}')
    (folder / "nothing.json").write_text('{"type": "nothing", "command": []}')
    os.mkfifo(folder / "pipe.toml")
    (folder / "large.toml").write_text("#" * (1 << 20) + "\n")
    manifest(folder, "fake")
    manifest(folder, "fake", file="fake2")
    async with routing(config(folder, manifests=(folder,))) as (_, caller):
        listed = await caller.router.ListAdapters(router_pb2.ListAdaptersRequest())
        refused = {entry.adapter: entry.reason for entry in listed.adapters if entry.state == REFUSED}
        assert refused["broken"] == f"manifest {folder}/broken.toml: is not valid TOML at line 1, column 8"
        assert "unknown field `colour`; its keys are type, command" in refused["odd"]
        assert "type must be" in refused["nameless"]
        assert "length >= 1 - at `$.command`" in refused["nothing"]
        assert "is no regular file of at most 1048576 bytes" in refused["pipe"]
        assert "is no regular file of at most 1048576 bytes" in refused["large"]
        assert refused["fake"] == f"the name 'fake' is already used by adapter 'fake' (manifest {folder}/fake.json)"
        assert listed.router_pid
        assert listed.router_version
        events = await caller.execute("fake", {"end": "SUCCEEDED"}).rest()
        assert kinds(events) == ["started", "result"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"SIDECAR_REVISION": "0"}, "its DescribeResponse has no `revision`"),
        ({"SIDECAR_TYPE": "impostor"}, "is configured as 'fake', but its DescribeResponse says 'impostor'"),
    ],
)
async def test_an_adapter_that_cannot_be_used_is_refused_with_the_reason(
    folder: Path, env: dict[str, str], message: str
) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake", env=env),))) as (_, caller):
        for _ in range(2):
            error = await caller.execute("fake").error()
            assert error.reason is Reason.ADAPTER_REFUSED
            assert message in error.message
        entry = await caller.entry("fake")
        assert entry.state == REFUSED
        assert message in entry.reason
        assert not entry.HasField("pid")


async def test_a_bound_of_an_unknown_adapter_is_reported(folder: Path) -> None:
    at, limits = address(folder, "a"), {"fake": 1, "far-name": 2, "fakee": 3, "zzz": 4}
    with structlog.testing.capture_logs() as logs:
        async with (
            serving(Sidecar("far", aliases=["far-name"]), at),
            routing(config(folder, addresses=(at,), manifests=(manifest(folder, "fake"),), max_runs=limits)) as (
                _,
                caller,
            ),
        ):
            await caller.until("far", READY)
            await caller.entry("fake")
    near_names = {
        line["adapter"]: line["did_you_mean"] for line in logs if line["event"] == "max_runs matches no adapter"
    }
    assert near_names == {"fakee": ["fake"], "zzz": []}


async def test_an_address_of_another_machine_is_refused(folder: Path) -> None:
    async with routing(config(folder, addresses=("192.0.2.1:7", "nonsense"))) as (_, caller):
        assert "in the clear" in (await caller.entry("192.0.2.1:7")).reason
        assert (await caller.entry("nonsense")).state == REFUSED


async def test_two_processes_behind_one_name_are_refused(folder: Path) -> None:
    backends = [("127.0.0.1", 0), ("127.0.0.1", 0)]
    async with (
        serving(Sidecar(instance_id="one"), "127.0.0.1:0") as one,
        serving(Sidecar(instance_id="two"), "127.0.0.1:0") as two,
    ):
        backends = [("127.0.0.1", int(server.addresses[0].rsplit(":", 1)[1])) for server in (one, two)]
        turn = iter(range(1000))

        async def balance(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(*backends[next(turn) % 2])
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

        balancer = await asyncio.start_server(balance, "127.0.0.1", 0)
        there = f"127.0.0.1:{balancer.sockets[0].getsockname()[1]}"
        async with routing(config(folder, addresses=(there,))) as (_, caller):
            refused = await caller.until(there, REFUSED)
            assert "Two processes answer" in refused.reason
        balancer.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


async def test_an_address_without_an_adapter_is_unavailable_and_harms_no_other(folder: Path) -> None:
    async with (
        serving(Sidecar(), address(folder, "a")),
        routing(config(folder, addresses=(address(folder, "absent"), address(folder, "a")))) as (_, caller),
    ):
        entry = await caller.until(address(folder, "absent"), UNAVAILABLE)
        assert "is unreachable" in entry.reason
        await caller.until("fake", READY)  # it has its name only from then on
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
        # And it is taken up when it comes.
        async with serving(Sidecar("late"), address(folder, "absent")):
            await caller.until("late", READY)


async def test_health_decides_whether_an_adapter_gets_calls(folder: Path) -> None:
    async with (
        serving(Sidecar(), address(folder, "a")) as server,
        routing(config(folder, addresses=(address(folder, "a"),))) as (_, caller),
    ):
        await caller.until("fake", READY)
        live = caller.execute("fake", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await live.until("started")
        await server._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        sick = await caller.until("fake", UNAVAILABLE)
        assert sick.reason == "reports NOT_SERVING"
        error = await caller.execute("fake").error()
        assert error.reason is Reason.ADAPTER_UNAVAILABLE
        assert error.retry_after_s
        # What runs goes on, and can be steered.
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        assert kinds(await live.rest()) == ["result"]
        await server.set_serving()
        await caller.until("fake", READY)
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]


async def test_deadlines_are_passed_on_with_a_margin(folder: Path) -> None:
    sidecar = Sidecar()
    async with (
        serving(sidecar, address(folder, "a")),
        routing(config(folder, addresses=(address(folder, "a"),))) as (_, caller),
    ):
        request = pb.TestEnvironmentRequest(adapter="fake", company_id="c")
        await caller.adapter.TestEnvironment(request, timeout=9)
        await caller.adapter.TestEnvironment(request)
        limited, unlimited = sidecar.requests("time_remaining")
        assert 8 < limited < 9
        assert unlimited is None
        assert sidecar.requests("TestEnvironment")[0].company_id == "c"


async def test_list_adapters_describes_when_asked(folder: Path) -> None:
    manifests = (manifest(folder, "fake"), manifest(folder, "sad", command=[f"{folder}/missing"]))
    async with routing(config(folder, manifests=manifests)) as (_, caller):
        listed = await caller.router.ListAdapters(router_pb2.ListAdaptersRequest())
        assert [entry.HasField("description") for entry in listed.adapters] == [False, False]
        described = await caller.router.ListAdapters(router_pb2.ListAdaptersRequest(describe=True))
        assert [entry.HasField("description") for entry in described.adapters] == [True, False]
        assert described.adapters[1].state == UNAVAILABLE
        page = await caller.router.ListAdapters(router_pb2.ListAdaptersRequest(page_size=1))
        rest = await caller.router.ListAdapters(router_pb2.ListAdaptersRequest(page_token=page.next_page_token))
        assert [entry.adapter for entry in [*page.adapters, *rest.adapters]] == ["fake", "sad"]
        bad = await failure(caller.router.ListAdapters(router_pb2.ListAdaptersRequest(page_token="x")))
        assert bad.reason is Reason.INVALID_PAGE_TOKEN


async def test_a_watch_of_the_adapters_ends_with_the_router(folder: Path) -> None:
    async with routing(config(folder)) as (router, caller):
        watch = caller.router.WatchAdapters(router_pb2.WatchAdaptersRequest(), timeout=PATIENCE_S)
        assert isinstance(await watch.read(), router_pb2.WatchAdaptersResponse)
        stopping = asyncio.ensure_future(router.stop(0.0))
        assert (await failure(watch.read())).reason is Reason.DRAINING
        await stopping


async def test_manifests_start_commands_with_their_environment(folder: Path) -> None:
    # A relative path is meant from the manifest's folder; TOML does as well as JSON.
    program = Path(__file__).with_name("sidecar.py")
    (folder / "run.sh").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}"\n')
    (folder / "run.sh").chmod(0o700)
    (folder / "toml.toml").write_text(
        'type = "toml"\ncommand = ["./run.sh"]\naliases = ["tom"]\nenv = { SIDECAR_TYPE = "toml" }\n'
    )
    async with routing(config(folder, manifests=(folder,))) as (_, caller):
        # The alias is one that only the manifest knows.
        stream = caller.execute("tom", {"ask": "q"}, {"gate": "g"}, run_id="r")
        await stream.until("input_request")
        respond = pb.RespondRequest(run_id="r", request_id="q", adapter="tom")
        await caller.adapter.Respond(respond, timeout=PATIENCE_S)
        cancelled = await caller.adapter.Cancel(pb.CancelRequest(run_id="r", adapter="tom"), timeout=PATIENCE_S)
        assert cancelled.outcome == event_pb2.OUTCOME_CANCELLED
        described = await caller.adapter.Describe(pb.DescribeRequest(adapter="tom"), timeout=PATIENCE_S)
        assert described.adapter == "toml"
        found = await caller.adapter.Detect(pb.DetectRequest(adapter="tom"), timeout=PATIENCE_S)
        assert found.detections[0].adapter == "toml"


async def test_sockets_are_private_and_other_addresses_refused(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with routing(config(folder, manifests=(named,))) as (router, caller):
        await caller.execute("fake", {"end": "SUCCEEDED"}).rest()
        sockets = [path for path in folder.rglob("*") if path.is_socket()]
        assert len(sockets) == 3  # the router's, the adapter's, its guard's
        for path in sockets:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        runtime = next((folder / "s" / "run").iterdir())
        assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
        with pytest.raises(AddressError, match="another server"):
            async with Router(config(folder, listen=(router.addresses[0],), state_dir=folder / "t")):
                pass
    with pytest.raises(AddressError, match="without TLS"):
        async with Router(config(folder, listen=("0.0.0.0:0",))):
            pass


async def test_loopback_health_and_reflection(folder: Path) -> None:
    async with routing(config(folder, listen=("127.0.0.1:0",), insecure_tcp_without_token=True)) as (router, caller):
        assert not router.addresses[0].endswith(":0")
        health: Any = health_pb2_grpc.HealthStub(caller.channel)
        for service in ("", "dragoman.v1.AdapterService", "dragoman.v1.RouterService"):
            status = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert status.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_request_that_is_none_is_refused(folder: Path) -> None:
    async with routing(config(folder)) as (_, caller):
        method: Any = caller.channel.unary_unary("/dragoman.v1.AdapterService/Describe")
        error = await failure(method(b"\x0a\xff"))
        assert error.reason is Reason.INVALID_REQUEST


async def test_a_cancel_while_the_adapter_starts_ends_the_run_at_once(folder: Path) -> None:
    deaf = manifest(folder, "fake", env={"SIDECAR_DEAF": "1"})
    async with routing(config(folder, manifests=(deaf,))) as (_, caller):
        stream = caller.execute("fake", "a", run_id="r")
        await caller.until_known("r")
        response = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert response.outcome == event_pb2.OUTCOME_CANCELLED
        assert response.tree_confirmed_dead, "no process ever had it"
        (result,) = await stream.rest()
        assert result.sequence == 1
        assert result.origin == event_pb2.EVENT_ORIGIN_ROUTER
        assert result.result.outcome == event_pb2.OUTCOME_CANCELLED


async def test_unknown_status_codes_of_an_adapter_are_passed_on(folder: Path) -> None:
    async with (
        serving(Sidecar(), address(folder, "a")),
        routing(config(folder, addresses=(address(folder, "a"),))) as (_, caller),
    ):
        await caller.until("fake", READY)
        error = await failure(caller.adapter.ListSkills(pb.ListSkillsRequest(adapter="fake")))
        assert error.code is grpc.StatusCode.UNIMPLEMENTED
        assert error.reason is Reason.NOT_IMPLEMENTED
