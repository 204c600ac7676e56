"""Adapters in Go through a router, and against the conformance kit: `make test-go` builds and names them."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dragoman.client import Client
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.private import make_token
from dragoman.router.app import Router
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2

from tests.certificates import VARIABLES, Authority, Files
from tests.router.harness import Caller, config, manifest, routing
from tests.sdks import (
    DEAF,
    SDKS,
    SECRET,
    UNSERVED,
    assert_agent_dies_with_its_adapter,
    assert_drains_and_shows_health,
    assert_is_cancelled_and_replayed,
    assert_notes_in_a_hundred_lines,
    assert_redacts_and_succeeds,
    assert_takes_part_in_traces,
    declared_by_adapter,
    examine,
    refused_rpc,
    shell,
    started,
)
from tests.tls_adapters import CASES, Case, trust

pytestmark = [pytest.mark.go, pytest.mark.timeout(180)]

BUILD = Path(__file__).parents[2] / "build"
EXEC = BUILD / "dragoman-exec"
LARGEST = 15_000_000
PROGRAM = ("--config", '{"command": "{script}", "output": "jsonl"}')
"""What has the adapter ``process`` run the kit's program."""


@pytest_asyncio.fixture
async def router(tmp_path: Path) -> AsyncIterator[Caller]:
    """A router with the Go adapters of this project."""
    programs = {
        "process": EXEC,
        "scribe_go": BUILD / "scribe-go",
        "scripted_go": BUILD / "scripted-go",
        "streamtext": BUILD / "streamtext",
    }
    manifests = tuple(manifest(tmp_path, name, command=[str(path)]) for name, path in programs.items())
    async with routing(config(tmp_path, manifests=manifests)) as (_router, caller):
        yield caller


@pytest_asyncio.fixture
async def client(router: Caller, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of that router."""
    del router  # it serves
    async with Client(f"unix:{tmp_path}/r.sock") as opened:
        yield opened


def test_it_is_one_small_static_program() -> None:
    data = EXEC.read_bytes()
    assert len(data) < LARGEST
    assert b"/ld-linux" not in data, "it needs no loader of shared libraries"


async def test_a_run_through_the_router(client: Client, tmp_path: Path) -> None:
    await assert_redacts_and_succeeds(client, "process", tmp_path)


async def test_cancel_and_attach_through_the_router(client: Client, tmp_path: Path) -> None:
    await assert_is_cancelled_and_replayed(client, shell("process", DEAF, tmp_path))


async def test_a_killed_adapter_takes_its_agent_with_it(router: Caller, client: Client, tmp_path: Path) -> None:
    await assert_agent_dies_with_its_adapter(router, client, "process", tmp_path)


async def test_an_adapter_for_json_lines_is_written_in_a_hundred_lines(client: Client, tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "adapters/go/examples/scribe/main.go"
    await assert_notes_in_a_hundred_lines(client, "scribe_go", source, tmp_path)


async def test_a_router_keeps_its_promises_for_an_adapter_that_only_streams_text(client: Client) -> None:
    """What README and the table of duties promise of every adapter, for one of fifty lines that declares nothing."""
    source = Path(__file__).parents[2] / "adapters/go/examples/streamtext/main.go"
    code = [line for line in source.read_text().splitlines() if line.strip() and not line.lstrip().startswith("//")]
    assert len(code) <= 50

    async def answer(**fields: Any) -> tuple[str, pb.Result]:
        async with client.execute(api.ExecuteRequest(adapter="streamtext", **fields)) as run:
            events = [event async for event in run]
        check_stream(events, secrets=[SECRET])
        return "".join(event.text.delta for event in events), events[-1].result

    text, result = await answer(prompt="some wörds")
    assert (text, result.outcome) == ("some wörds", pb.OUTCOME_SUCCEEDED)
    # It comes character by character.
    assert (await answer(prompt=f"It is {SECRET}.", env={"TOKEN": SECRET}))[0] == "It is [redacted]."
    agent = api.Agent(name="Ada")
    assert (await answer(prompt_template="I am {{agent.name}}{{context.absent}}.", agent=agent))[0] == "I am Ada."
    assert (await answer(prompt="Much too long", limits=pb.Limits(output_bytes=4)))[0] == "Much"
    # It does not implement Cancel, and would end by itself before the grace has passed.
    wall, much = duration_pb2.Duration(nanos=300_000_000), "x" * 4_000
    text, result = await answer(prompt=much, limits=pb.Limits(wall=wall))
    assert len(text) < len(much)
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_TIMED_OUT, pb.FAILURE_KIND_WALL_TIMEOUT)


async def test_a_router_cancels_a_run_of_an_adapter_that_only_streams_text(client: Client) -> None:
    much = "x" * 60_000  # a minute of it
    async with client.execute(api.ExecuteRequest(adapter="streamtext", prompt=much)) as run:
        await anext(run)
        answer = await run.cancel()
        events = [event async for event in run]
    assert (answer.outcome, events[-1].result.outcome) == (pb.OUTCOME_CANCELLED, pb.OUTCOME_CANCELLED)
    assert not answer.HasField("tree_confirmed_dead")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("model", {"model": "m"}),
        ("system_prompt", {"system_prompt": "s"}),
        ("instructions", {"instructions": api.Instructions(text="t")}),
        ("skills", {"skills": [api.Skill(name="s")]}),
        ("mcp_servers", {"mcp_servers": [api.McpServer(name="m")]}),
        ("permissions.rules", {"permissions": pb.Permissions(rules=[pb.PermissionRule()])}),
        ("permissions.auto_approve", {"permissions": pb.Permissions(auto_approve=True)}),
        ("session.handle", {"session": api.SessionSelector(handle=pb.SessionHandle(adapter="streamtext"))}),
    ],
)
async def test_a_router_refuses_what_an_adapter_that_only_streams_text_cannot(
    path: str, fields: dict[str, Any], client: Client
) -> None:
    with pytest.raises(DragomanError) as refused:
        async with client.execute(api.ExecuteRequest(adapter="streamtext", prompt="Hello", **fields)) as run:
            await anext(run)
    assert refused.value.reason is Reason.NOT_SUPPORTED
    assert [violation.path for violation in refused.value.violations] == [path]


async def test_a_run_of_an_adapter_that_only_streams_text_is_replayed(client: Client) -> None:
    async with client.execute(api.ExecuteRequest(adapter="streamtext", prompt="some words")) as run:
        events = [event async for event in run]
    async with client.attach(run.run_id, after_sequence=3) as second:
        replayed = [event async for event in second if event.sequence]
    assert replayed == events[3:]


@pytest.mark.parametrize("option", ["allow", "reject"])
async def test_a_permission_is_asked_and_answered_through_the_router(option: str, client: Client) -> None:
    request = api.ExecuteRequest(adapter="scripted_go", prompt="dragoman-script:\nask=Bash\n---\nHello.")
    request.permissions.interactive = True
    async with client.execute(request) as run:
        events = []
        async for event in run:
            events.append(event)
            if event.HasField("input_request"):
                await run.respond(event.input_request.id, pb.InputAnswer(option_ids=[option]))
    check_stream(events)
    assert [event.text.whole for event in events if event.HasField("text")] == [f"{option}ed"]


async def test_a_skill_reaches_the_prompt_through_the_router(client: Client) -> None:
    request = api.ExecuteRequest(adapter="scripted_go", prompt="dragoman-script:\nprompt\n---\nHello.")
    request.skills.add(name="pdf").files.content["SKILL.md"] = b"Read it."
    section = "These skills are procedures for you to follow where they apply.\n\n# Skill: pdf\n\nRead it."
    whole = f"{section}\n\n{request.prompt}".encode()
    async with client.execute(request) as run:
        events = [event async for event in run]
    seen = f"bytes={len(whole)} sha256={hashlib.sha256(whole).hexdigest()}"
    assert [event.text.whole for event in events if event.HasField("text")] == [seen]


async def test_two_runs_do_not_resume_one_session(client: Client) -> None:
    def resuming(script: str) -> api.ExecuteRequest:
        request = api.ExecuteRequest(adapter="scripted_go", prompt=f"dragoman-script:\n{script}\n---\nHello.")
        request.session.handle.MergeFrom(pb.SessionHandle(adapter="scripted_go", native_id="s"))
        return request

    async with client.execute(resuming("say=here\nhang")) as run:
        async for event in run:
            if event.HasField("text"):
                break
        with pytest.raises(DragomanError) as refused:
            async with client.execute(resuming("say=too")) as other:
                await anext(other)
        assert refused.value.reason is Reason.SESSION_BUSY
        await run.cancel(grace_s=0)
    async with client.execute(resuming("say=too")) as other:
        assert [event.text.whole async for event in other if event.HasField("text")] == ["too"]


async def test_it_passes_the_conformance_kit() -> None:
    await examine(*PROGRAM, "--", str(EXEC))


async def test_it_passes_the_conformance_kit_behind_the_router(router: Caller, tmp_path: Path) -> None:
    del router  # it serves
    await examine(*PROGRAM, "--adapter", "process", f"unix:{tmp_path}/r.sock")


ASKING = (
    *("respond.", "permissions.", "attach.", "session.", "events.", "batching.", "unsupported.", "secrets."),
    *("settings.", "tools.", "usage."),
)
"""Rules that an agent in the adapter's own process can perform the steps of."""
ONLY = [argument for rule in ASKING for argument in ("--only", rule)]


async def test_an_agent_that_asks_and_has_sessions_passes_the_conformance_kit() -> None:
    passed = await examine("--agent", "script", *ONLY, "--", str(BUILD / "scripted-go"))
    _declared_is_examined(passed)


async def test_an_agent_that_asks_and_has_sessions_passes_behind_the_router(router: Caller, tmp_path: Path) -> None:
    del router  # it serves
    passed = await examine("--agent", "script", *ONLY, "--adapter", "scripted_go", f"unix:{tmp_path}/r.sock")
    _declared_is_examined(passed)


def _declared_is_examined(passed: set[str]) -> None:
    due = {"permissions.unattended", "attach.pending-request", "session.resumes", "session.unfit", "session.lost"}
    due |= {f"respond.{name}" for name in ("recorded", "idempotent", "already-resolved", "invalid", "expired")}
    due |= {"settings.skills", "tools.results", "usage.reported", "usage.absent"}
    assert passed >= due | {"respond.after-end", "respond.unknown-run", "respond.unknown-request"}


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """An authority of this test, whose processes have a state and a token of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DRAGOMAN_TOKEN", make_token())
    return Authority()


@pytest.mark.parametrize("case", [case for case in CASES if case is not trust])  # Go has that table
async def test_tls_of_an_adapter(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await case([str(EXEC)], tmp_path, monkeypatch)


@pytest.mark.parametrize("is_trusted", [True, False], ids=["trusted", "stranger"])
async def test_a_client_in_go_speaks_tls_with_a_router(
    is_trusted: bool, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_routers, the_clients = Files(tmp_path / "router"), Files(tmp_path / "client")
    the_routers.fill(authority)
    the_clients.fill(authority if is_trusted else Authority(), trusted=[authority])
    process = manifest(tmp_path, "process", command=[str(EXEC)])
    with the_routers.used(monkeypatch):
        router = Router(config(tmp_path, listen=("127.0.0.1:0",), manifests=(process,), run_log="memory"))
        await router.__aenter__()
    try:
        with the_clients.used(monkeypatch):
            hello = await asyncio.create_subprocess_exec(
                str(BUILD / "hello-go"),
                env={**os.environ, "DRAGOMAN_ROUTER": router.addresses[0]},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        output, error = await hello.communicate()
        if is_trusted:
            assert output.decode().splitlines() == ["hello", "OUTCOME_SUCCEEDED"]
        else:
            assert (hello.returncode, output) == (1, b""), error
    finally:
        await router.stop(0.0)


async def test_it_declares_what_the_documentation_says(tmp_path: Path) -> None:
    assert await declared_by_adapter([EXEC], tmp_path) == SDKS["Go"]["declares"]


@pytest.mark.parametrize("rpc", UNSERVED)
async def test_an_rpc_that_is_not_served_is_refused_with_a_reason(rpc: str, tmp_path: Path) -> None:
    async with started([EXEC], tmp_path) as address:
        error = await refused_rpc(address, rpc)
    assert (error.reason, error.code.name) == (Reason.NOT_IMPLEMENTED, "UNIMPLEMENTED")


async def test_it_takes_part_in_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await assert_takes_part_in_traces([EXEC], tmp_path, monkeypatch)


async def test_live_runs_continue_after_sigterm_and_health_has_a_port(tmp_path: Path) -> None:
    script = "until [ -e gate ]; do sleep 0.05; done"
    await assert_drains_and_shows_health([EXEC], tmp_path, {"command": "/bin/sh", "args": ["-c", script]})
