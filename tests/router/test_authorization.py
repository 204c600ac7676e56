"""Whether there is a way round the table of who may call what: all kinds of callers, RPCs, adapters and runs, mixed.

What is expected is written down here once more, by hand: a change of the table without one of this fails.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from dragoman.protocol.caller import SCOPES
from dragoman.protocol.errors import Reason
from dragoman.protocol.private import make_token
from dragoman.protocol.run_tokens import ADAPTER_SCOPES, AGENT_SCOPES, RunOf, RunTokens
from dragoman.protocol.statuses import from_rpc_error
from dragoman.protocol.tokens import create_token, tokens_path
from dragoman.protocol.trust import RunTokenRule
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from tests.router.harness import Caller, config, manifest, routing
from tests.router.test_run_tokens import write_key
from tests.router.test_scopes import HELD, Holder, user_of_its_own

__all__ = ["user_of_its_own"]

SERVICES = (
    pb.DESCRIPTOR.services_by_name["AdapterService"],
    router_pb2.DESCRIPTOR.services_by_name["RouterService"],
)
METHODS = {
    method.name: (f"/{service.full_name}/{method.name}", method) for service in SERVICES for method in service.methods
}

FOR_ALL = {"Describe", "ListAdapters", "WatchAdapters"}
OF_ADAPTERS = {"Detect", "TestEnvironment", "ListModels", "ListSkills", "GetQuota", "Execute"}
OPENED = {
    "Attach": {"read", "run"},
    "GetChanges": {"read", "run"},
    "ReadArtifact": {"read", "run"},
    "GetRun": {"read", "run", "respond"},
    "Cancel": {"run"},
    "Send": {"run"},
    "UpdateRun": {"run"},
}
"""Scopes that a call for a run needs one of."""
OF_OTHERS = {"Attach": "read", "GetChanges": "read", "ReadArtifact": "read", "GetRun": "read", "Respond": "respond"}
"""The scope for runs of others."""
FOR_ADMINS = {"SyncSkills", "Login", "RestartAdapter", "ListSessions", "GetSession", "DeleteSession"}
FOR_ADMINS |= {"CreateAgent", "UpdateAgent", "DeleteAgent", "SetActiveAgent"}
OWNERS = {"a-live": "token run", "b-live": "token respond.run", "u-live": "uid", "a-done": "token run"}
"""By run, who started it."""
SUBSETS = [set(some) for count in range(1, 6) for some in itertools.combinations(SCOPES, count)]


class Who(Struct, frozen=True):
    """A caller, as the test knows it."""

    name: str
    token: str
    scopes: frozenset[str] = frozenset()
    adapters: tuple[str, ...] = ("*",)
    run_id: str = ""
    is_known: bool = True


def expected(who: Who, rpc: str, adapter: str, run_id: str) -> str:
    """Return how a call is decided: OK, NOT_PERMITTED or TOKEN_REQUIRED."""
    if not who.is_known:
        return "TOKEN_REQUIRED"
    if who.run_id:
        may = OF_OTHERS.get(rpc, "nothing") in who.scopes
        return "OK" if may and run_id in {who.run_id, "none"} else "NOT_PERMITTED"
    if "admin" in who.scopes:
        return "OK"
    if rpc in FOR_ALL:
        return "OK" if who.scopes & {"read", "run", "respond", "adapter"} else "NOT_PERMITTED"
    if rpc in FOR_ADMINS:
        return "NOT_PERMITTED"
    if rpc in OF_ADAPTERS:
        return "OK" if "run" in who.scopes and (adapter in who.adapters or "*" in who.adapters) else "NOT_PERMITTED"
    if rpc in {"RegisterAdapter", "UnregisterAdapter"}:
        return "OK" if "adapter" in who.scopes else "NOT_PERMITTED"
    if rpc == "ListRuns":
        return "OK" if who.scopes & {"read", "run"} else "NOT_PERMITTED"
    if rpc in {"GetAgent", "ListAgents", "ListBudgets"}:
        return "OK" if "read" in who.scopes else "NOT_PERMITTED"
    is_own = "run" in who.scopes and OWNERS.get(run_id) == who.name
    if not who.scopes & OPENED.get(rpc, {"run", "respond"}):
        return "NOT_PERMITTED"
    others = OF_OTHERS.get(rpc, "nothing")
    return "OK" if run_id == "none" or is_own or others in who.scopes else "NOT_PERMITTED"


class World:
    """A router with two adapters, runs of three callers, and everyone who may try something."""

    def __init__(self, folder: Path, address: str, key: Path, local: Caller) -> None:
        self.folder = folder
        self.address = address
        self.local = local
        self.callers = [
            Who("token", make_token(), frozenset({"admin"})),
            Who("none", "", is_known=False),
            Who("garbage", "Bearer of nothing".replace(" ", "-"), is_known=False),
            Who("expired", create_token(tokens_path(), "expired", ["admin"], ["*"], -1), is_known=False),
        ]
        for scopes in SUBSETS:
            for adapters in (["*"], ["fake"]):
                name = " ".join(sorted(scopes)) + ("" if adapters == ["*"] else " of fake")
                known = name.replace(" ", ".")
                text = create_token(tokens_path(), known, sorted(scopes), adapters, None)
                self.callers.append(Who(f"token {known}", text, frozenset(scopes), tuple(adapters)))
        tokens = RunTokens(RunTokenRule(str(key)))
        for scopes_of_run in (ADAPTER_SCOPES, AGENT_SCOPES, (*SCOPES,)):
            text = tokens.issue(RunOf("a-live"), scopes_of_run)
            self.callers.append(Who("run a-live", text, frozenset(scopes_of_run), run_id="a-live"))
        self.callers.append(Who("elsewhere", tokens.issue(RunOf("a-live"), ("read",), "api"), is_known=False))
        late = RunTokens(RunTokenRule(str(key)), lambda: 1e9)
        self.callers.append(Who("late", late.issue(RunOf("a-live"), ("read",)), is_known=False))
        self.callers.append(
            Who("ended", tokens.issue(RunOf("a-done"), ("read",)), frozenset({"read"}), run_id="a-done")
        )

    def caller(self, name: str) -> Who:
        return next(who for who in self.callers if who.name == name)

    async def begin(self) -> None:
        """Start the runs."""
        for run_id, owner in OWNERS.items():
            mine = self.local if owner == "uid" else Holder(self.address, self.caller(owner).token)
            step = {"end": "SUCCEEDED"} if run_id == "a-done" else {"ask": "q"}
            stream = mine.execute("fake", step, run_id=run_id, orphan_after=HELD)
            await stream.until("result" if run_id == "a-done" else "input_request")
            if mine is not self.local:
                await mine.close()

    async def decided(self, who: Who, rpc: str, adapter: str, run_id: str) -> str:
        """Make a call; return how it was decided."""
        path, method = METHODS[rpc]
        caller = Holder(self.address, who.token)
        data = self._request(method, rpc, adapter, run_id).SerializeToString()
        is_stream = method.server_streaming
        begin: Any = (caller.channel.unary_stream if is_stream else caller.channel.unary_unary)(path)
        call = begin(data, timeout=20)
        try:
            answer = await (call.read() if is_stream else call)
        except grpc.aio.AioRpcError as error:
            reason = from_rpc_error(error).reason
            return str(reason) if reason in {Reason.NOT_PERMITTED, Reason.TOKEN_REQUIRED} else "OK"
        finally:
            call.cancel()
            await caller.close()
        if rpc == "ListRuns":
            listed = router_pb2.ListRunsResponse.FromString(answer).runs
            seen = {run.run_id for run in listed if run.run_id in OWNERS}
            assert seen == {run for run in OWNERS if expected(who, "GetRun", "", run) == "OK"}, who.name
        return "OK"

    def _request(self, method: Any, rpc: str, adapter: str, run_id: str) -> Any:
        request: Any = GetMessageClass(method.input_type)()
        fields = method.input_type.fields_by_name
        if rpc == "Execute":
            request.prompt = json.dumps([{"end": "SUCCEEDED"}])
        elif "run_id" in fields:
            request.run_id = run_id
        if "adapter" in fields and rpc not in {
            *OF_OTHERS.keys() - {"GetRun"},
            "Cancel",
            "Send",
            "UpdateRun",
            "ListRuns",
            "RegisterAdapter",
        }:
            request.adapter = adapter
        if rpc == "UpdateRun":
            request.model = "x"
        if rpc == "Respond":
            request.request_id, request.answer.text = "never-asked", "x"
        if "address" in fields:
            request.address = f"unix:{self.folder}/nothing.sock"
        return request


@contextlib.asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    for name in ("fake", "other"):
        manifest(folder, name)
    key = folder / "run.key"
    configured = config(
        folder, listen=("127.0.0.1:0", f"unix:{folder}/r.sock"), manifests=(folder,), run_log="memory"
    )
    async with routing(configured) as (router, unix):
        await unix.close()
        local = Caller(router.addresses[1])
        try:
            here = World(folder, router.addresses[0], key, local)
            await here.begin()
            yield here
        finally:
            await local.close()


def test_there_is_no_way_round_the_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_key(folder / "run.key", ed25519.Ed25519PrivateKey.generate())
    (folder / "trust.toml").write_text(f'[run_tokens]\nkey = "{folder}/run.key"\n')
    monkeypatch.setenv("DRAGOMAN_TRUST", str(folder / "trust.toml"))
    with asyncio.Runner() as runner:
        entered = world(folder)
        here = runner.run(entered.__aenter__())
        calls = st.tuples(
            st.sampled_from(here.callers),
            st.sampled_from(sorted(METHODS)),
            st.sampled_from(["fake", "other"]),
            st.sampled_from([*OWNERS, "none"]),
        )

        @settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(calls)
        def examine(call: tuple[Who, str, str, str]) -> None:
            who, rpc, adapter, run_id = call
            right = expected(who, rpc, adapter, run_id)
            if right == "OK" and (rpc == "RestartAdapter" or (rpc == "Cancel" and run_id != "a-done")):
                return  # that would end what the other calls need
            if right == "OK" and who.run_id == "a-done" and run_id == "a-done":
                right = "TOKEN_REQUIRED"  # it has expired with its run
            assert runner.run(here.decided(who, rpc, adapter, run_id)) == right, (who.name, rpc, adapter, run_id)

        try:
            examine()
            started = runner.run(_started_by(here))
        finally:
            runner.run(entered.__aexit__(None, None, None))
    may = {who.name for who in here.callers if who.scopes & {"run", "admin"} and not who.run_id}
    assert {name for name in started if not name.startswith("uid")} <= may


async def _started_by(here: World) -> set[str]:
    """Return who started the runs that there are."""
    response = await here.local.router.ListRuns(router_pb2.ListRunsRequest(page_size=1000))
    return {run.started_by for run in response.runs}
