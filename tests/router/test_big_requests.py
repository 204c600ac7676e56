"""Requests that are large in every way: what is within the contract's bounds, and far beyond, holds no event loop."""

import contextlib
import json
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.adapters.process.adapter import ProcessAdapter
from dragoman.protocol.bounds import BOUNDS, DEEPEST, MOST_VALUES
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import MIB
from dragoman.protocol.statuses import from_rpc_error
from dragoman.sdk import AdapterServer
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.loop_lag import MOST_S, loop_lag
from tests.router.harness import PATIENCE_S, Caller, config, routing
from tests.router.sidecar import Sidecar, serving

Make = Callable[[pb.ExecuteRequest], object]


def nested(levels: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if kind == "object" else [value]
    return value


def fill_skills(request: pb.ExecuteRequest, skills: int, files: int) -> None:
    for number in range(skills):
        content = {f"f{index}.md": b"x" for index in range(files)} | {"SKILL.md": b"---\nname: x\n---\n"}
        request.skills.add(name=f"s{number}", files=pb.SkillFiles(content=content))


def fill_servers(request: pb.ExecuteRequest, servers: int, most: int) -> None:
    for number in range(servers):
        stdio = pb.McpStdio(
            command="/bin/true", args=["--token=x"] * most, env={f"K{i}": "v" * 50 for i in range(most)}
        )
        request.mcp_servers.add(name=f"s{number}", stdio=stdio)


def steps(text: str) -> str:
    """Return steps of the sidecar in these tests, which renders no template."""
    return json.dumps([text, {"end": "SUCCEEDED"}])


SECRETS = {f"API_KEY_{number}": f"sk-{number:06}-{'q' * 80}" for number in range(1024)}

# What is legal and as large as can be.
LEGAL: dict[str, Make] = {
    "many labels and many secret variables": lambda r: (
        r.labels.update({f"label-{n}": "x" * 1000 for n in range(64)}),
        r.env.update(SECRETS),
    ),
    "long variables": lambda r: r.env.update({f"API_KEY_{n}": 'xyz\\"%' * 20_000 for n in range(4)}),
    "many secrets of one beginning": lambda r: r.env.update({f"TOKEN_{n}": "a" * 400 + str(n) for n in range(1024)}),
    "a prompt of 10 MiB": lambda r: setattr(r, "prompt", "word " * (2 * MIB)),
    "a template of many places": lambda r: setattr(r, "prompt_template", steps("{{context.a}} {{x}}" * 3_000)),
    "a template of many different places": lambda r: setattr(
        r, "prompt_template", steps("".join(f"{{{{x{n}}}}}" for n in range(6_500)))
    ),
    "a wide object for templates": lambda r: r.company.update({f"k{n}": n for n in range(MOST_VALUES - 20)}),
    "deep objects": lambda r: r.company.update(nested(DEEPEST - 4, "object")),
    "deep lists": lambda r: r.company.update({"a": nested(DEEPEST - 4, "list")}),
    "many files of skills": lambda r: fill_skills(r, 6, 1000),
    "many skills": lambda r: fill_skills(r, 256, 3),
    "many rules": lambda r: r.permissions.rules.extend([event_pb2.PermissionRule(command_prefix="x" * 4000)] * 512),
    "many servers": lambda r: fill_servers(r, 64, 20),
    "many linked issues": lambda r: r.context.linked_issue_ids.extend(["i" * 100] * 256),
}

# What is refused, and the field that is named.
BEYOND: dict[str, tuple[Make, str]] = {
    "8000 labels and 8000 variables": (
        lambda r: (
            r.labels.update({f"l{n}": f"value-{n}" for n in range(8000)}),
            r.env.update({f"V{n}": f"secret-{n}" for n in range(8000)}),
        ),
        "env",
    ),
    "300,000 labels": (lambda r: r.labels.update({f"l{n}": "" for n in range(300_000)}), "labels"),
    "a long label": (lambda r: r.labels.update({"a": "x" * 1025}), "labels.a"),
    "a label of a long name": (lambda r: r.labels.update({"a" * 129: "x"}), "labels"),
    "variables of many bytes": (lambda r: r.env.update({f"V{n}": "x" * 600 for n in range(1000)}), "env"),
    "a variable no program can have": (lambda r: r.env.update({"A": "x" * 131_073}), "env.A"),
    "many skills": (lambda r: r.skills.extend([pb.Skill(name="a")] * 257), "skills"),
    "many files": (lambda r: fill_skills(r, 1, 1024), "skills[0].files.content"),
    "millions of skills": (lambda r: r.MergeFromString(b"\x9a\x01\x00" * 5_000_000), "skills"),
    "millions of variables": (lambda r: r.env.update({f"{n:x}": "" for n in range(1_000_000)}), "env"),
    "many servers": (lambda r: r.mcp_servers.extend([pb.McpServer(name="a")] * 65), "mcp_servers"),
    "many arguments": (lambda r: r.mcp_servers.add().stdio.args.extend(["a"] * 257), "mcp_servers[0].stdio.args"),
    "many rules": (lambda r: r.permissions.rules.extend([event_pb2.PermissionRule()] * 513), "permissions.rules"),
    "a long chain": (lambda r: r.fallback.adapters.extend(["a"] * 17), "fallback.adapters"),
    "many failures": (lambda r: r.fallback.on.extend([event_pb2.FAILURE_KIND_INTERNAL] * 65), "fallback.on"),
    "deep config": (lambda r: r.config.update({"l": nested(DEEPEST, "list")}), "config.l"),
    "wide config": (lambda r: r.config.update({"l": [1] * MOST_VALUES}), "config.l"),
    "wide template data": (lambda r: r.context.extra.update({"l": [1] * MOST_VALUES}), "context.extra.l"),
    "a long template": (lambda r: setattr(r, "prompt_template", "x" * (64 * 1024 + 1)), "prompt_template"),
    "a duration of mixed signs": (lambda r: r.limits.wall.MergeFrom(_duration(1, -1)), "limits.wall"),
    "a duration of 2^62 s": (lambda r: r.limits.idle.MergeFrom(_duration(1 << 62, 0)), "limits.idle"),
    "a negative duration": (lambda r: r.orphan_after.MergeFrom(_duration(-1, 0)), "orphan_after"),
    "too many nanoseconds": (
        lambda r: r.admission.longest_wait.MergeFrom(_duration(0, 10**9)),
        "admission.longest_wait",
    ),
}


def _duration(seconds: int, nanos: int) -> Any:
    return type(pb.CancelRequest().grace)(seconds=seconds, nanos=nanos)


def filled(make: Make, **fields: Any) -> bytes:
    request = pb.ExecuteRequest(**{"prompt": '[{"end": "SUCCEEDED"}]', "run_id": "r", **fields})
    make(request)
    return request.SerializeToString()


async def executed(channel: grpc.aio.Channel, data: bytes) -> DragomanError | None:
    """Have a run, whatever comes of it; return the status if it is not OK."""
    method: Any = channel.unary_stream("/dragoman.v1.AdapterService/Execute")
    call = method(data, timeout=PATIENCE_S)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    return None


@contextlib.asynccontextmanager
async def router_beside(folder: Path) -> AsyncIterator[tuple[Caller, Sidecar]]:
    sidecar, address = Sidecar(), f"unix:{folder}/a.sock"
    async with serving(sidecar, address), routing(config(folder, addresses=(address,))) as (_, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        await caller.execute("fake", {"end": "SUCCEEDED"}).rest()  # what is imported late is, by now
        yield caller, sidecar


@contextlib.asynccontextmanager
async def one_sidecar(folder: Path) -> AsyncIterator[Caller]:
    """An adapter on the SDK, in this process."""
    server = AdapterServer(ProcessAdapter(), [f"unix:{folder}/p.sock"])
    await server.start()
    caller = Caller(f"unix:{folder}/p.sock")
    try:
        assert await executed(caller.channel, filled(lambda _r: None, run_id="first", **process(folder))) is None
        yield caller
    finally:
        await caller.close()
        await server.stop(0.2)


def process(folder: Path) -> dict[str, Any]:
    request = pb.ExecuteRequest()
    request.config.update({"command": "/bin/true", "cwd": str(folder)})
    return {"config": request.config}


@pytest.fixture(scope="module")
async def routed() -> AsyncIterator[tuple[Caller, Sidecar]]:
    """A router that all of these requests go to, one after another."""
    with tempfile.TemporaryDirectory(prefix="dr-") as path:
        async with router_beside(Path(path)) as beside:
            yield beside


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Caller]:
    """A sidecar that all of these requests go to."""
    with tempfile.TemporaryDirectory(prefix="dr-") as path:
        async with one_sidecar(Path(path)) as caller:
            yield caller


@pytest.mark.parametrize("name", LEGAL)
async def test_a_router_is_not_held_by_what_is_legal(name: str, routed: tuple[Caller, Sidecar]) -> None:
    data = filled(LEGAL[name], adapter="fake", run_id=name.replace(" ", "-"))
    caller, sidecar = routed
    before = len(sidecar.requests("Execute"))
    async with loop_lag() as lag:
        refused = await executed(caller.channel, data)
        reached = len(sidecar.requests("Execute")) > before
        assert refused is None or "steps" in refused.message or reached, refused
    assert lag.longest_s < MOST_S


@pytest.mark.parametrize("name", LEGAL)
async def test_a_sidecar_is_not_held_by_what_is_legal(name: str, folder: Path, served: Caller) -> None:
    data = filled(LEGAL[name], run_id=name.replace(" ", "-"), **process(folder))
    async with loop_lag() as lag:
        refused = await executed(served.channel, data)
        assert refused is None or refused.reason is Reason.NOT_SUPPORTED
    assert lag.longest_s < MOST_S


@pytest.mark.parametrize("name", BEYOND)
async def test_what_is_beyond_a_bound_is_refused_at_once_and_the_field_is_named(
    name: str, routed: tuple[Caller, Sidecar]
) -> None:
    make, path = BEYOND[name]
    data = filled(make, adapter="fake")
    assert len(data) <= 16 * MIB
    caller, sidecar = routed
    before = len(sidecar.requests("Execute"))
    async with loop_lag() as lag:
        refused = await executed(caller.channel, data)
    assert refused is not None
    assert (refused.reason, [one.path for one in refused.violations]) == (Reason.INVALID_REQUEST, [path])
    assert len(sidecar.requests("Execute")) == before
    assert lag.longest_s < MOST_S


@pytest.mark.parametrize("name", BEYOND)
async def test_a_sidecar_has_the_same_bounds(name: str, served: Caller) -> None:
    make, path = BEYOND[name]
    data = filled(make)
    async with loop_lag() as lag:
        refused = await executed(served.channel, data)
    assert refused is not None
    assert (refused.reason, [one.path for one in refused.violations]) == (Reason.INVALID_REQUEST, [path])
    assert lag.longest_s < MOST_S


async def test_unknown_settings_hold_no_sidecar(folder: Path) -> None:
    unknown = {f"unknownSetting{number}": number for number in range(1500)}
    request = pb.ExecuteRequest(prompt="x")
    request.config.update({"command": "/bin/true", "cwd": str(folder), **unknown})
    async with one_sidecar(folder) as caller, loop_lag() as lag:
        refused = await executed(caller.channel, request.SerializeToString())
    assert refused is not None
    assert refused.reason is Reason.INVALID_REQUEST
    assert lag.longest_s < MOST_S


async def test_more_than_16_mib_is_refused_with_a_reason_at_router_and_sidecar(folder: Path) -> None:
    data = filled(lambda _r: None, prompt="x" * (20 * MIB), adapter="fake")
    options = [("grpc.max_send_message_length", 64 * MIB), ("grpc.default_authority", "localhost")]
    async with router_beside(folder), one_sidecar(folder) as beside:
        for address in (f"unix:{folder}/r.sock", f"unix:{folder}/p.sock"):
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                refused = await executed(channel, data)
            assert refused is not None
            assert refused.reason is Reason.MESSAGE_TOO_LARGE, refused
        assert await executed(beside.channel, filled(lambda _r: None, run_id="after", **process(folder))) is None


async def test_random_families_within_the_bounds_hold_nothing(folder: Path) -> None:
    """Every field that has entries, filled to a random share of its bound, not all to the whole."""
    chance = random.Random(20261122)
    requests: list[pb.ExecuteRequest] = []
    for number in range(8):
        request = pb.ExecuteRequest(adapter="fake", run_id=f"f{number}", prompt='[{"end": "SUCCEEDED"}]')
        env, labels = BOUNDS["*.env"], BOUNDS["*.labels"]
        for index in range(chance.randrange(env.entries // 16)):
            name = chance.choice(["TOKEN", "X", "PASS"])
            request.env[f"{name}_{index}"] = f"{chance.getrandbits(4 * chance.randrange(8, 80)):x}%$"
        for index in range(chance.randrange(labels.entries)):
            request.labels[f"l{index}"] = "x" * chance.randrange(labels.text_bytes)
        fill_skills(request, chance.randrange(8), chance.randrange(8))
        values = chance.randrange(250)
        request.company.update({f"k{index}": "v" * chance.randrange(100) for index in range(values)})
        requests.append(request)
    to_router = [request.SerializeToString() for request in requests]
    for request in requests:
        request.MergeFrom(pb.ExecuteRequest(adapter="process", **process(folder)))
    to_sidecar = [request.SerializeToString() for request in requests]
    async with router_beside(folder) as (caller, _), one_sidecar(folder) as beside:
        await executed(beside.channel, to_sidecar[0])  # what only some requests import late is, by now
        async with loop_lag() as lag:
            for data in to_router:
                await executed(caller.channel, data)
            for data in to_sidecar[1:]:
                await executed(beside.channel, data)
    assert lag.longest_s < MOST_S
