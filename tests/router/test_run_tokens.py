"""Tokens that a router issues for one run: for its adapter, and for its agent where the caller asks."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
import structlog
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from dragoman.cli.commands.token import token_command
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.errors import Reason
from dragoman.protocol.run_tokens import ADAPTER_SCOPES, RunOf, RunTokens
from dragoman.protocol.tokens import create_token, tokens_path
from dragoman.protocol.trust import RunTokenRule
from dragoman.sdk import AdapterServer, Run
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2

from tests.router.harness import Caller, config, failure, routing
from tests.router.test_scopes import Holder, reason
from tests.sdk.serving import SUCCEEDED, Scripted

HELD = duration_pb2.Duration(seconds=600)
NOT_PERMITTED = Reason.NOT_PERMITTED


def write_key(path: Path, key: Any) -> Path:
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    path.chmod(0o600)
    return path


@pytest.fixture(autouse=True)
def user_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for name in ("XDG_RUNTIME_DIR", "DRAGOMAN_TOKEN", "DRAGOMAN_TOKENS", "DRAGOMAN_ROUTER", "DRAGOMAN_TRUST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key of a router that issues tokens."""
    path = write_key(folder / "run.key", ed25519.Ed25519PrivateKey.generate())
    (folder / "trust.toml").write_text(f'[run_tokens]\nkey = "{path}"\n')
    monkeypatch.setenv("DRAGOMAN_TRUST", str(folder / "trust.toml"))
    return path


class Asking(Scripted):
    """Asks in each run, and ends once it was answered."""

    def __init__(self) -> None:
        super().__init__(script=self.ask)

    async def ask(self, run: Run) -> event_pb2.Result:
        run.started(event_pb2.Started())
        asked = event_pb2.InputRequest(id="q", title="?", kind=event_pb2.INPUT_KIND_TEXT)
        await run.inputs.ask(asked)
        return SUCCEEDED


@contextlib.asynccontextmanager
async def routed(folder: Path) -> AsyncIterator[tuple[Asking, Caller, Callable[[str], Holder]]]:
    """A router with an adapter that asks, its user over a Unix socket, and callers over TCP by their tokens."""
    adapter = Asking()
    server = AdapterServer(adapter, [f"unix:{folder}/a.sock"])
    await server.start()
    listen = ("127.0.0.1:0", f"unix:{folder}/r.sock")
    async with routing(config(folder, listen=listen, addresses=(f"unix:{folder}/a.sock",))) as (router, unix):
        await unix.close()
        local = Caller(router.addresses[1])
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(local.close)

            def holder(token: str) -> Holder:
                found = Holder(router.addresses[0], token)
                stack.push_async_callback(found.close)
                return found

            await local.until("scripted", router_pb2.ADAPTER_STATE_READY)
            yield adapter, local, holder
    await server.stop(0.2)


def asking(caller: Caller, run_id: str, **fields: Any) -> Any:
    interactive = event_pb2.Permissions(interactive=True)
    return caller.execute("scripted", run_id=run_id, orphan_after=HELD, permissions=interactive, **fields)


ANSWER = event_pb2.InputAnswer(text="yes")


async def test_a_token_of_a_run_is_for_that_run_until_it_has_ended(folder: Path, key: Path) -> None:
    asked = pb.Admission(run_token=pb.RunToken())
    with structlog.testing.capture_logs() as logs:
        async with routed(folder) as (adapter, local, holder):
            mine = asking(local, "mine", admission=asked, api_url="http://127.0.0.1:1", agent=pb.Agent(id="a1"))
            other = asking(local, "other")
            await mine.until("input_request")
            await other.until("input_request")
            runs = {run.run_id: run for run in adapter.runs}
            texts = [runs["mine"].request.auth_token, runs["mine"].router_token, runs["other"].router_token]
            assert len(set(texts)) == 3
            assert runs["other"].request.auth_token == ""
            assert not runs["mine"].request.HasField("admission")
            agent, its_adapter = holder(texts[0]), holder(texts[1])
            for caller in (agent, its_adapter):
                assert (await caller.run("mine")).run.run_id == "mine"
                await caller.attach("mine").until("input_request")
                # Another run, and everything that is not of one run.
                assert await reason(caller.run("other")) is NOT_PERMITTED
                assert (await caller.attach("other").error()).reason is NOT_PERMITTED
                answer = pb.RespondRequest(run_id="other", request_id="q", answer=ANSWER)
                assert await reason(caller.adapter.Respond(answer)) is NOT_PERMITTED
                assert (await caller.execute("scripted").error()).reason is NOT_PERMITTED
                for call in (
                    caller.adapter.Cancel(pb.CancelRequest(run_id="mine")),
                    caller.adapter.Describe(pb.DescribeRequest(adapter="scripted")),
                    caller.router.ListRuns(router_pb2.ListRunsRequest()),
                    caller.router.ListAdapters(router_pb2.ListAdaptersRequest()),
                    caller.router.ListSessions(router_pb2.ListSessionsRequest()),
                ):
                    assert await reason(call) is NOT_PERMITTED
            answer = pb.RespondRequest(run_id="mine", request_id="q", answer=ANSWER)
            assert await reason(agent.adapter.Respond(answer)) is NOT_PERMITTED, "an agent does not answer itself"
            followed = its_adapter.attach("mine")
            await followed.until("input_request")
            await its_adapter.adapter.Respond(answer)
            assert (await mine.rest())[-1].HasField("result")
            assert (await followed.rest())[-1].HasField("result"), "what began before the end sees it"
            for caller in (agent, its_adapter):
                ended = await failure(caller.router.GetRun(router_pb2.GetRunRequest(run_id="mine")))
                assert (ended.reason, ended.code) == (Reason.TOKEN_REQUIRED, grpc.StatusCode.UNAUTHENTICATED)
                assert (await caller.attach("mine").error()).reason is Reason.TOKEN_REQUIRED
            assert await reason(its_adapter.adapter.Respond(answer)) is Reason.TOKEN_REQUIRED
            other.cancel()
            for path in folder.glob("**/runs.db*"):
                assert not any(text.encode() in path.read_bytes() for text in texts)
    assert not any(text in json.dumps(logs, default=str) for text in texts)


async def test_the_callers_api_verifies_the_agents_token_by_the_public_key(folder: Path, key: Path) -> None:
    printed = CliRunner().invoke(token_command, ["keys"])
    public = jwt.PyJWKSet.from_json(printed.output).keys[0]
    asked = pb.RunToken(audience="paperclip", lifetime=duration_pb2.Duration(seconds=600))
    async with routed(folder) as (adapter, local, holder):
        fields = {"agent": pb.Agent(id="a1", company_id="c1"), "api_url": "http://127.0.0.1:1", "task_key": "t"}
        stream = asking(local, "r", admission=pb.Admission(run_token=asked), **fields)
        await stream.until("input_request")
        text = adapter.runs[0].request.auth_token
        claims = jwt.decode(text, public, algorithms=["EdDSA"], audience="paperclip", issuer="dragoman")
        known = {"sub": "a1", "run_id": "r", "agent_id": "a1", "company_id": "c1", "task_key": "t", "scope": "read"}
        assert {name: claims[name] for name in known} == known
        assert claims["exp"] - claims["iat"] == 600
        assert await reason(holder(text).run("r")) is Reason.TOKEN_REQUIRED, "for another audience"
        stream.cancel()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"auth_token": "mine-own-token", "api_url": "http://h"}, "auth_token of its own"),
        ({}, "needs api_url"),
        ({"api_url": "http://h", "admission": pb.Admission(run_token=pb.RunToken(lifetime=HELD))}, ""),
        (
            {
                "api_url": "http://h",
                "admission": pb.Admission(run_token=pb.RunToken(lifetime=duration_pb2.Duration(seconds=86401))),
            },
            "must be 1 to 86400 s",
        ),
    ],
    ids=["own", "no-url", "good", "long"],
)
async def test_what_is_asked_of_a_token_is_checked(fields: Any, why: str, folder: Path, key: Path) -> None:
    async with routed(folder) as (_, local, _holder):
        stream = asking(local, "r", **{"admission": pb.Admission(run_token=pb.RunToken()), **fields})
        if why:
            refused = await stream.error()
            assert (refused.reason, why in refused.message) == (Reason.INVALID_REQUEST, True), refused
        else:
            await stream.until("input_request")
            stream.cancel()


async def test_a_router_without_a_key_issues_no_token(folder: Path) -> None:
    async with routed(folder) as (adapter, local, _holder):
        asked = pb.Admission(run_token=pb.RunToken())
        refused = await asking(local, "r", admission=asked, api_url="http://h").error()
        assert refused.reason is Reason.NOT_SUPPORTED
        stream = asking(local, "r2")
        await stream.until("input_request")
        assert adapter.runs[0].router_token == ""
        stream.cancel()
    printed = CliRunner().invoke(token_command, ["keys"])
    assert "names no key" in str(printed.exception)


def test_keys_of_two_kinds_sign_and_no_others(tmp_path: Path) -> None:
    for make in (ed25519.Ed25519PrivateKey.generate, lambda: ec.generate_private_key(ec.SECP256R1())):
        path = write_key(tmp_path / "key", make())
        tokens = RunTokens(RunTokenRule(str(path)))
        text = tokens.issue(RunOf("r"), ("read",))
        assert tokens.caller(text).run_id == "r"
        write_key(path, make())
        with pytest.raises(jwt.PyJWTError):
            tokens.caller(text)
    for bad in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(AddressError, match="must be an Ed25519 or P-256 key"):
            RunTokens(RunTokenRule(str(write_key(tmp_path / "bad", bad))))
    (tmp_path / "none").write_text("secret text")
    with pytest.raises(AddressError, match="is no PEM file") as refused:
        RunTokens(RunTokenRule(str(tmp_path / "none")))
    assert "secret text" not in str(refused.value)


def test_a_token_expires(tmp_path: Path) -> None:
    now = [time.time() - 700]
    tokens = RunTokens(
        RunTokenRule(str(write_key(tmp_path / "key", ed25519.Ed25519PrivateKey.generate()))), lambda: now[0]
    )
    text = tokens.issue(RunOf("r"), ("read",), lifetime_s=600)
    with pytest.raises(jwt.ExpiredSignatureError):
        tokens.caller(text)


async def test_an_adapter_registers_by_a_token_for_its_names_alone(folder: Path) -> None:
    texts = {
        name: create_token(tokens_path(), name, ["adapter"], names, None)
        for name, names in (("right", ["scripted*"]), ("half", ["scripted"]), ("wrong", ["codex"]))
    }
    adapter = Asking()
    server = AdapterServer(adapter, [f"unix:{folder}/b.sock"])
    await server.start()
    listen = ("127.0.0.1:0", f"unix:{folder}/r.sock")
    async with routing(config(folder, listen=listen)) as (router, unix), contextlib.AsyncExitStack() as stack:
        await unix.close()
        at = {name: Holder(router.addresses[0], text) for name, text in texts.items()}
        for caller in at.values():
            stack.push_async_callback(caller.close)
        request = router_pb2.RegisterAdapterRequest(address=f"unix:{folder}/b.sock")
        gone = router_pb2.UnregisterAdapterRequest(address=f"unix:{folder}/b.sock")
        for name in ("wrong", "half"):
            assert await reason(at[name].router.RegisterAdapter(request)) is NOT_PERMITTED
        await at["right"].router.RegisterAdapter(request)
        for name in ("wrong", "half"):
            assert await reason(at[name].router.RegisterAdapter(request)) is NOT_PERMITTED, "nor renews it"
            assert await reason(at[name].router.UnregisterAdapter(gone)) is NOT_PERMITTED
        assert await reason(at["right"].router.ListRuns(router_pb2.ListRunsRequest())) is NOT_PERMITTED
        assert (await at["right"].execute("scripted").error()).reason is NOT_PERMITTED
        assert (await at["right"].router.UnregisterAdapter(gone)).unregistered
    await server.stop(0.2)


def test_tokens_of_a_key_that_was_replaced_are_accepted_until_they_expire(tmp_path: Path) -> None:
    now = [time.time()]
    paths = [write_key(tmp_path / name, ed25519.Ed25519PrivateKey.generate()) for name in ("old", "new")]
    old, new = map(str, paths)
    text = RunTokens(RunTokenRule(old), lambda: now[0]).issue(RunOf("r"), ADAPTER_SCOPES, lifetime_s=60)
    both = RunTokens(RunTokenRule(new, previous=(old,)), lambda: now[0])
    assert both.caller(text).run_id == "r"
    assert both.caller(both.issue(RunOf("s"), ADAPTER_SCOPES)).run_id == "s"
    (present, before) = both.public_keys()["keys"]
    assert jwt.get_unverified_header(text)["kid"] == before["kid"] != present["kid"]
    with pytest.raises(jwt.InvalidSignatureError):
        RunTokens(RunTokenRule(new)).caller(text)
    late = RunTokens(RunTokenRule(old), lambda: now[0] - 3600).issue(RunOf("r"), ADAPTER_SCOPES, lifetime_s=60)
    with pytest.raises(jwt.ExpiredSignatureError):
        both.caller(late)
