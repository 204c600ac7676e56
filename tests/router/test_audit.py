"""The audit log: one line for each decision, with who, what and why, and never a credential."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from dragoman.protocol.caller import RULES
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.limits import channel_options
from dragoman.protocol.private import make_token
from dragoman.protocol.tokens import create_token, revoke_token, tokens_path
from dragoman.sdk import AdapterServer
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc, router_pb2
from google.protobuf.message_factory import GetMessageClass

from tests.router.harness import failure
from tests.router.test_scopes import HELD, Holder, holders, reason, user_of_its_own
from tests.sdk.serving import Scripted

__all__ = ["user_of_its_own"]

SERVICES = (
    pb.DESCRIPTOR.services_by_name["AdapterService"],
    router_pb2.DESCRIPTOR.services_by_name["RouterService"],
)


@contextlib.contextmanager
def audited() -> Iterator[list[Mapping[str, Any]]]:
    """Yield the lines of the audit log, and check afterwards that they have the documented fields alone."""
    lines: list[Mapping[str, Any]] = []
    with structlog.testing.capture_logs() as logs:
        yield lines
        lines.extend(line for line in logs if "decision" in line)
    known = {"decision", "caller", "rpc", "adapter", "run_id", "reason", "peer", "event", "log_level"}
    assert all(set(line) <= known for line in lines)


def shown(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return what the lines say, but for where the calls came from."""
    names = ("decision", "caller", "rpc", "adapter", "run_id", "reason")
    return [tuple(line.get(name, "") for name in names) for line in lines]


async def test_each_decision_is_one_line(folder: Path) -> None:
    policy = folder / "policy.toml"
    policy.write_text('[models]\n"*" = ["good"]\n')
    async with holders(folder, policy=policy, a="run:fake", b="run", viewer="read") as at:
        with audited() as lines:
            await (
                at["a"]
                .execute("fake", {"ask": "q"}, run_id="r", orphan_after=HELD, model="good")
                .until("input_request")
            )
            await at["viewer"].run("r")
            await at["viewer"].router.ListRuns(router_pb2.ListRunsRequest())
            assert await reason(at["b"].run("r"))
            assert await at["b"].attach("r").error()
            assert await at["a"].execute("other", run_id="s", model="good").error()
            assert await at["a"].execute("fake", run_id="t", model="bad").error()
            assert await reason(at["viewer"].adapter.Cancel(pb.CancelRequest(run_id="r")))
            assert await reason(at["a"].run("none"))
            await at["a"].adapter.Cancel(pb.CancelRequest(run_id="r"))
    assert shown(lines) == [
        ("allow", "token a", "Execute", "fake", "r", ""),
        ("allow", "token viewer", "GetRun", "fake", "r", ""),
        ("allow", "token viewer", "ListRuns", "", "", ""),
        ("deny", "token b", "GetRun", "fake", "r", "NOT_PERMITTED"),
        ("deny", "token b", "Attach", "fake", "r", "NOT_PERMITTED"),
        ("deny", "token a", "Execute", "other", "s", "NOT_PERMITTED"),
        ("deny", "token a", "Execute", "fake", "t", "POLICY_DENIED"),
        ("deny", "token viewer", "Cancel", "", "", "NOT_PERMITTED"),
        ("allow", "token a", "GetRun", "", "", "RUN_NOT_FOUND"),
        ("allow", "token a", "Cancel", "fake", "r", ""),
    ]
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in lines)


async def test_wrong_credentials_are_denied_and_not_logged(folder: Path) -> None:
    async with holders(folder, a="run", old="run", late="run") as at:
        address = at["a"].address
        revoke_token(tokens_path(), "old")
        late = create_token(tokens_path(), "short", ["run"], ["*"], -1)
        stored = json.loads(tokens_path().read_text())["tokens"]
        # Another token's ID with this one's secret, the digest that is stored, and what is no token at all.
        texts = {
            "none": "",
            "expired": late,
            "mixed": f"dgm_{stored[0]['id']}_{late.rpartition('_')[2]}",
            "digest": f"dgm_{stored[0]['id']}_{stored[0]['digest']}",
            "cut": make_token()[:-1],
            "longer": make_token() + "A",
            "garbage": "x" * 4000,
            "dots": "eyJhbGciOiJub25lIn0.e30.",
        }
        with structlog.testing.capture_logs() as logs:
            for name, text in texts.items():
                caller = Holder(address, text)
                denied = await failure(caller.router.ListRuns(router_pb2.ListRunsRequest()))
                assert (denied.code.name, str(denied.reason)) == ("UNAUTHENTICATED", "TOKEN_REQUIRED"), name
                await caller.close()
            denied = await failure(at["old"].router.ListRuns(router_pb2.ListRunsRequest()))
            assert denied.code.name == "UNAUTHENTICATED", "a revoked token that is used again"
    lines = [line for line in logs if "decision" in line]
    assert shown(lines) == [("deny", "", "ListRuns", "", "", "TOKEN_REQUIRED")] * (len(texts) + 1)
    written = json.dumps(logs, default=str)
    assert not any(text and text[:200] in written for text in (*texts.values(), make_token()))


async def test_each_rpc_of_the_contract_writes_one_line(folder: Path) -> None:
    async with holders(folder) as at:
        with audited() as lines:
            for service in SERVICES:
                for method in service.methods:
                    request = GetMessageClass(method.input_type)()
                    if "adapter" in method.input_type.fields_by_name:
                        request.adapter = "fake"  # type: ignore[attr-defined]
                    if "run_id" in method.input_type.fields_by_name:
                        request.run_id = "r"  # type: ignore[attr-defined]
                    if "address" in method.input_type.fields_by_name:
                        request.address = f"unix:{folder}/none.sock"  # type: ignore[attr-defined]
                    path = f"/{service.full_name}/{method.name}"
                    await one(at["local"].channel, path, request.SerializeToString(), method.server_streaming)
    assert sorted(line["rpc"] for line in lines) == sorted(method.rpartition("/")[2] for method in RULES)
    assert {line["decision"] for line in lines} == {"allow"}


async def one(channel: Any, path: str, data: bytes, is_stream: bool) -> None:
    """Make a call, whatever it comes to; of a stream, read one message."""
    call = channel.unary_stream(path)(data) if is_stream else channel.unary_unary(path)(data)
    with contextlib.suppress(Exception):
        await (call.read() if is_stream else call)
    call.cancel()


async def test_an_adapter_writes_its_decisions_too(folder: Path) -> None:
    server = AdapterServer(Scripted(), ["127.0.0.1:0"])
    await server.start()
    with audited() as lines:
        for token in (make_token(), "wrong-token-of-a-stranger"):
            async with open_channel(server.addresses[0], channel_options("x:1"), token=token) as channel:
                await reason(adapter_pb2_grpc.AdapterServiceStub(channel).Describe(pb.DescribeRequest()))
    await server.stop(0.2)
    assert shown(lines) == [
        ("allow", "token", "Describe", "", "", ""),
        ("deny", "", "Describe", "", "", "TOKEN_REQUIRED"),
    ]
