"""Tokens with scopes at a router: each caller sees and does what its token is for, by RPC, adapter and run."""

import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
import structlog
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from dragoman.cli.command_error import CommandError
from dragoman.cli.commands.token import token_command
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import channel_options
from dragoman.protocol.statuses import from_rpc_error
from dragoman.protocol.tokens import create_token, revoke_token, tokens_path
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc, event_pb2, router_pb2, router_pb2_grpc
from google.protobuf import duration_pb2
from jwt.algorithms import ECAlgorithm

from tests.router.harness import Caller, config, failure, manifest, routing

HELD = duration_pb2.Duration(seconds=600)
NOT_PERMITTED = Reason.NOT_PERMITTED


@pytest.fixture(autouse=True)
def user_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tokens of this machine's user out of this."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for name in ("XDG_RUNTIME_DIR", "DRAGOMAN_TOKEN", "DRAGOMAN_TOKENS", "DRAGOMAN_ROUTER"):
        monkeypatch.delenv(name, raising=False)


class Holder(Caller):
    """A caller over TCP, with a token."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._channel = open_channel(address, channel_options(address), token=token)
        self.adapter = adapter_pb2_grpc.AdapterServiceStub(self._channel)
        self.router = router_pb2_grpc.RouterServiceStub(self._channel)
        self.channel = self._channel


@contextlib.asynccontextmanager
async def holders(folder: Path, *, policy: Path | None = None, **tokens: str) -> AsyncIterator[dict[str, Any]]:
    """A router with two adapters, and callers by the names of their tokens: scopes, and adapters after a colon."""
    for name in ("fake", "other"):
        manifest(folder, name)
    texts = {}
    for name, asked in tokens.items():
        scopes, _, adapters = asked.partition(":")
        texts[name] = create_token(tokens_path(), name, scopes.split(), adapters.split() or ["*"], None)
    configured = config(folder, listen=("127.0.0.1:0", f"unix:{folder}/r.sock"), manifests=(folder,), policy=policy)
    async with routing(configured) as (router, unix), contextlib.AsyncExitStack() as stack:
        found = {name: Holder(router.addresses[0], text) for name, text in texts.items()}
        for caller in found.values():
            stack.push_async_callback(caller.close)
        await unix.close()
        local = Caller(router.addresses[1])
        stack.push_async_callback(local.close)
        yield {**found, "local": local}


async def reason(call: Any) -> Reason | None:
    """Return why a unary call is refused; ``None`` if it is answered."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error).reason
    return None


async def test_each_scope_at_the_runs_of_others(folder: Path) -> None:
    async with holders(folder, a="run", b="run", viewer="read", phone="respond", root="admin") as at:
        stream = at["a"].execute("fake", {"ask": "q"}, run_id="r", orphan_after=HELD)
        await stream.until("input_request")
        assert (await at["a"].run("r")).run.started_by == "token a"

        seen = {name: await reason(at[name].run("r")) for name in at}
        assert seen == {
            "a": None,
            "b": NOT_PERMITTED,
            "viewer": None,
            "phone": NOT_PERMITTED,
            "root": None,
            "local": None,
        }
        listed = {}
        for name in ("a", "b", "viewer", "root", "local"):
            runs = await at[name].router.ListRuns(router_pb2.ListRunsRequest())
            listed[name] = [run.run_id for run in runs.runs]
        assert listed == {"a": ["r"], "b": [], "viewer": ["r"], "root": ["r"], "local": ["r"]}
        attached: dict[str, Reason | None] = {}
        for name in at:
            follower = at[name].attach("r")
            try:
                await follower.next()
                attached[name] = None
            except DragomanError as error:
                attached[name] = error.reason
            follower.cancel()
        assert attached == {**dict.fromkeys(at, None), "b": NOT_PERMITTED, "phone": NOT_PERMITTED}

        for name in ("b", "viewer", "phone"):
            refused = await failure(at[name].adapter.Cancel(pb.CancelRequest(run_id="r")))
            assert refused.reason is NOT_PERMITTED
            assert refused.code is grpc.StatusCode.PERMISSION_DENIED
        answer = pb.RespondRequest(run_id="r", request_id="q", answer=event_pb2.InputAnswer(message="yes"))
        for name in ("b", "viewer"):
            assert (await failure(at[name].adapter.Respond(answer))).reason is NOT_PERMITTED
        same = await at["b"].execute("fake", {"ask": "q"}, run_id="r", orphan_after=HELD).error()
        assert same.reason is Reason.RUN_ID_REUSED  # the same request is no reason to see it

        await at["phone"].adapter.Respond(answer)
        resolved = (await stream.until("input_resolved"))[-1].input_resolved
        assert resolved.responder == "token phone"
        await at["a"].adapter.Cancel(pb.CancelRequest(run_id="r"))
        assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_CANCELLED


async def test_who_started_a_run_outlives_its_router(folder: Path) -> None:
    async with holders(folder, a="run", b="run") as at:
        await at["a"].execute("fake", {"end": "SUCCEEDED"}, run_id="r").rest()
        revoke_token(tokens_path(), "b")
    revoke_token(tokens_path(), "a")
    async with holders(folder, a="run", b="run") as at:  # a new token of the name
        assert (await at["a"].run("r")).run.started_by == "token a"
        assert (await at["a"].attach("r").rest())[-1].HasField("result")
        assert (await at["b"].attach("r").error()).reason is NOT_PERMITTED
        assert await reason(at["b"].run("r")) is NOT_PERMITTED
        assert (await failure(at["b"].adapter.Cancel(pb.CancelRequest(run_id="r")))).reason is NOT_PERMITTED
        resumed = pb.SessionSelector(resume_run_id="r")
        assert (await at["b"].execute("fake", session=resumed).error()).reason is NOT_PERMITTED


async def test_a_token_is_for_its_adapters(folder: Path) -> None:
    async with holders(folder, a="run:fake") as at:
        assert (await at["a"].execute("other").error()).reason is NOT_PERMITTED
        chained = pb.Fallback(adapters=["other"], on=[event_pb2.FAILURE_KIND_AUTH_REQUIRED])
        assert (await at["a"].execute("fake", fallback=chained).error()).reason is NOT_PERMITTED
        assert await reason(at["a"].adapter.ListModels(pb.ListModelsRequest(adapter="other"))) is NOT_PERMITTED
        assert (await at["a"].execute("fake", {"end": "SUCCEEDED"}).rest())[-1].HasField("result")


async def test_sessions_of_one_token_are_none_of_anothers(folder: Path) -> None:
    async with holders(folder, a="run", b="run") as at:
        of = {"agent": pb.Agent(id="i", company_id="c"), "task_key": "t"}
        await at["a"].execute("fake", {"set": "s-of-a"}, {"end": "SUCCEEDED"}, run_id="r1", **of).rest()
        again = await at["a"].execute("fake", {"end": "SUCCEEDED"}, run_id="r2", **of).rest()
        others = await at["b"].execute("fake", {"end": "SUCCEEDED"}, run_id="r3", **of).rest()
        (resumed,) = [event.started for event in again if event.HasField("started")]
        (fresh,) = [event.started for event in others if event.HasField("started")]
        assert resumed.session_disposition == event_pb2.SESSION_DISPOSITION_RESUME
        assert fresh.session_disposition != event_pb2.SESSION_DISPOSITION_RESUME
        assert await reason(at["a"].router.ListSessions(router_pb2.ListSessionsRequest())) is NOT_PERMITTED


async def test_wrong_tokens_are_refused_and_not_logged(folder: Path) -> None:
    async with holders(folder, a="run") as at:
        listen = at["a"].address
        expired = create_token(tokens_path(), "old", ["admin"], ["*"], 1e-9)
        revoked = create_token(tokens_path(), "gone", ["admin"], ["*"], None)
        revoke_token(tokens_path(), "gone")
        with structlog.testing.capture_logs() as logs:
            for token, why in ((expired, "'old' has expired"), (revoked, "not this server's"), ("dgm_x", "not this")):
                holder = Holder(listen, token)
                refused = await failure(holder.router.ListRuns(router_pb2.ListRunsRequest()))
                assert (refused.reason, why in refused.message) == (Reason.TOKEN_REQUIRED, True)
                await holder.close()
        assert [entry["event"] for entry in logs].count("rpc refused") == 3
        assert not any(secret in json.dumps(logs, default=str) for secret in (expired, revoked))


def test_the_command_creates_lists_and_revokes() -> None:
    runner = CliRunner()

    def token(*arguments: str) -> tuple[int, str]:
        try:
            result = runner.invoke(token_command, arguments, standalone_mode=False, catch_exceptions=False)
        except CommandError as error:
            return error.report.exit_code, error.report.what
        return result.return_value, result.output

    code, text = token("create", "ci", "--scope", "run", "--adapter", "codex", "--days", "2")
    assert (code, text.startswith("dgm_")) == (0, True)
    code, listed = token("list", "--json")
    facts = json.loads(listed)
    assert (facts["name"], facts["scopes"], facts["adapters"]) == ("ci", ["run"], ["codex"])
    assert "digest" not in facts
    assert facts["id"] in token("list")[1]
    assert token("create", "ci", "--scope", "run")[0] == 2
    assert token("revoke", "ci") == (0, "")
    assert token("revoke", "ci") == (2, "there is no token 'ci'; 'dragoman token list' lists them")
    assert token("list") == (0, "")
    assert len(token()[1].strip()) >= 16


async def test_the_token_of_an_issuer_names_its_caller(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    keys = {"keys": [{**json.loads(ECAlgorithm.to_jwk(key.public_key())), "kid": "a"}]}
    (folder / "jwks.json").write_text(json.dumps(keys))
    issued = f'name = "i"\nissuer = "https://i.test"\naudience = "d"\njwks = "{folder}/jwks.json"\n'
    granted = 'claims = { sub = "alice" }\nscopes = ["run"]\nadapters = ["fake"]\n'
    (folder / "trust.toml").write_text(f"[[issuers]]\n{issued}[[issuers.grants]]\n{granted}")
    monkeypatch.setenv("DRAGOMAN_TRUST", str(folder / "trust.toml"))

    def token(subject: str, left_s: float = 3600) -> str:
        claims = {"iss": "https://i.test", "aud": "d", "sub": subject, "exp": time.time() + left_s}
        return jwt.encode(claims, key, "ES256", headers={"kid": "a"})

    with structlog.testing.capture_logs() as logs:
        async with holders(folder, a="run") as at, contextlib.AsyncExitStack() as stack:
            address = at["a"].address
            texts = {"alice": token("alice"), "bob": token("bob"), "late": token("alice", -3600), "half": "eyJ.x.y"}
            for name, text in texts.items():
                at[name] = Holder(address, text)
                stack.push_async_callback(at[name].close)
            await at["alice"].execute("fake", {"end": "SUCCEEDED"}, run_id="r").rest()
            assert (await at["alice"].run("r")).run.started_by == "jwt i alice"
            assert (await at["alice"].execute("other").error()).reason is NOT_PERMITTED
            assert await reason(at["a"].run("r")) is NOT_PERMITTED
            for name, why in (
                ("bob", NOT_PERMITTED),
                ("late", Reason.TOKEN_REQUIRED),
                ("half", Reason.TOKEN_REQUIRED),
            ):
                assert (await at[name].execute("fake").error()).reason is why, name
            assert "has expired" in (await failure(at["late"].adapter.Detect(pb.DetectRequest()))).message
    assert not any(text in json.dumps(logs, default=str) for text in texts.values())
