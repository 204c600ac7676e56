"""Secrets in the clear: sent to this user's own servers alone, unless a flag says otherwise."""

from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import channel_options
from dragoman.protocol.private import make_token
from dragoman.sdk import AdapterServer
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2
from dragoman.v1.adapter_pb2_grpc import AdapterServiceStub
from google.protobuf.message import Message

from tests.certificates import VARIABLES, Authority, Files
from tests.sdk.serving import Scripted

SECRET = "a1b2-c3d4-e5f6-g7h8"
SERVER = pb.McpServer(name="m", http=pb.McpHttp(url="http://h", headers={"Authorization": SECRET}))
SECRETIVE: dict[str, Message] = {
    "Execute": pb.ExecuteRequest(env={"API_KEY": SECRET}),
    "Execute token": pb.ExecuteRequest(auth_token=SECRET),
    "Execute header": pb.ExecuteRequest(mcp_servers=[SERVER]),
    "Detect": pb.DetectRequest(env={"API_KEY": SECRET}),
    "TestEnvironment": pb.TestEnvironmentRequest(env={"API_KEY": SECRET}),
    "ListModels": pb.ListModelsRequest(env={"API_KEY": SECRET}),
    "GetQuota": pb.GetQuotaRequest(env={"API_KEY": SECRET}),
    "Login": pb.LoginRequest(env={"API_KEY": SECRET}),
    "ListSkills": pb.ListSkillsRequest(env={"API_KEY": SECRET}),
    "SyncSkills": pb.SyncSkillsRequest(env={"API_KEY": SECRET}),
}


@pytest.fixture(autouse=True)
def user_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("DRAGOMAN_TOKEN", "DRAGOMAN_INSECURE_SECRETS", *VARIABLES):
        monkeypatch.delenv(name, raising=False)


def start(address: str, name: str, request: Message | bytes) -> Any:
    """Begin a call."""
    channel = open_channel(address, channel_options(address))
    if isinstance(request, bytes):  # as routers send it
        call: Any = channel.unary_stream(f"/dragoman.v1.AdapterService/{name.split(maxsplit=1)[0]}")
        return call(request)
    return getattr(AdapterServiceStub(channel), name.split(maxsplit=1)[0])(request)


@pytest.mark.parametrize("name", SECRETIVE)
@pytest.mark.parametrize("address", ["192.0.2.1:7777", "127.0.0.1:1"], ids=["elsewhere", "no-listener"])
async def test_no_request_with_a_secret_goes_to_a_peer_that_is_not_authenticated(
    name: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for request in (SECRETIVE[name], SECRETIVE[name].SerializeToString()):
        with pytest.raises(DragomanError, match="DRAGOMAN_INSECURE_SECRETS=1") as refused:
            start(address, name, request)
        assert refused.value.reason is Reason.ADDRESS_UNTRUSTED
        assert SECRET not in str(refused.value)
    plain = pb.ExecuteRequest(prompt="hello", env={"LANG": "en"})
    start(address, "Execute", plain).cancel()
    start(address, "Respond", pb.RespondRequest(answer=event_pb2.InputAnswer(text=SECRET))).cancel()
    monkeypatch.setenv("DRAGOMAN_INSECURE_SECRETS", "1")
    start(address, name, SECRETIVE[name]).cancel()


async def test_this_users_own_server_and_tls_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Scripted()
    server = AdapterServer(adapter, ["127.0.0.1:0"])
    await server.start()
    try:
        # A token that is named skips the look at who listens; the secrets do not.
        monkeypatch.setenv("DRAGOMAN_TOKEN", make_token())
        request = pb.ExecuteRequest(prompt="hello", env={"API_KEY": SECRET})
        assert [event async for event in start(server.addresses[0], "Execute", request)]
        monkeypatch.setattr("dragoman.protocol.dialing.is_trusted_user", lambda _uid: False)
        with pytest.raises(DragomanError, match="is not authenticated"):
            start(server.addresses[0], "Execute", request)
    finally:
        await server.stop(0.2)
    files = Files(tmp_path / "files")
    files.fill(Authority())
    with files.used(monkeypatch):
        start("192.0.2.1:7777", "Execute", request).cancel()
