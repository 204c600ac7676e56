"""Every method of Client: what it sends, what it returns, how it fails."""

import contextlib
from collections.abc import AsyncIterator

import dragoman.client
import grpc
import pytest
from dragoman.client import Client, DragomanError, FieldViolation, Reason
from dragoman.protocol.server import Context, DragomanServer, service_handler
from dragoman.testkit.fakes.adapter import EventFactory, FakeAdapter, Until, serving
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from google.protobuf import duration_pb2, json_format
from google.protobuf.message import Message


def test_exports() -> None:
    assert dragoman.client.__all__ == [
        "Client",
        "DragomanError",
        "FieldViolation",
        "Reason",
        "RunStream",
        "execute_request",
        "to_struct",
    ]


@contextlib.asynccontextmanager
async def client_of(fake: FakeAdapter) -> AsyncIterator[Client]:
    async with serving(fake) as address, Client(address) as client:
        yield client


def sent(fake: FakeAdapter) -> list[tuple[str, dict[str, object]]]:
    return [(name, json_format.MessageToDict(request)) for name, request in fake.calls]


async def test_describe() -> None:
    answer = api.DescribeResponse(adapter="process", revision=1)
    fake = FakeAdapter(answers={"Describe": answer})
    async with client_of(fake) as client:
        assert await client.describe("process") == answer
    assert sent(fake) == [("Describe", {"adapter": "process"})]


async def test_a_request_that_no_server_accepts_has_a_reason() -> None:
    fake = FakeAdapter()
    request = api.ExecuteRequest(adapter="process", prompt="x" * (18 * 1024 * 1024))
    async with client_of(fake) as client:
        with pytest.raises(DragomanError, match="at most 16 MiB are accepted; give large inputs as files") as caught:
            await anext(client.execute(request))
    assert caught.value.reason is Reason.MESSAGE_TOO_LARGE
    assert not sent(fake)


async def test_detect() -> None:
    found = api.Detection(adapter="claude_code", version="2.1.330")
    fake = FakeAdapter(answers={"Detect": api.DetectResponse(detections=[found])})
    async with client_of(fake) as client:
        assert await client.detect(refresh=True, env={"PATH": "/bin"}, config={"command": "c"}) == [found]
        await client.detect("claude_code")
    assert sent(fake) == [
        ("Detect", {"refresh": True, "env": {"PATH": "/bin"}, "config": {"command": "c"}}),
        ("Detect", {"adapter": "claude_code"}),
    ]


async def test_test_environment() -> None:
    answer = api.TestEnvironmentResponse(status=api.TEST_STATUS_WARN)
    fake = FakeAdapter(answers={"TestEnvironment": answer})
    async with client_of(fake) as client:
        assert await client.test_environment("process") == answer
        more = api.TestEnvironmentRequest(model="m", company_id="c", timeout=duration_pb2.Duration(seconds=5))
        await client.test_environment("a", live=True, cwd="/x", config={"k": 1}, env={"E": "1"}, request=more)
        await client.test_environment("a", live=True)
    assert sent(fake) == [
        ("TestEnvironment", {"adapter": "process", "mode": "TEST_MODE_QUICK"}),
        (
            "TestEnvironment",
            {
                "adapter": "a",
                "mode": "TEST_MODE_LIVE",
                "companyId": "c",
                "config": {"k": 1.0},
                "env": {"E": "1"},
                "workspace": {"cwd": "/x"},
                "model": "m",
                "timeout": "5s",
            },
        ),
        ("TestEnvironment", {"adapter": "a", "mode": "TEST_MODE_LIVE", "timeout": "60s"}),
    ]


async def test_cancel_and_respond_from_any_connection() -> None:
    emit = EventFactory()
    fake = FakeAdapter([emit.started(), Until("kill"), emit.result(pb.OUTCOME_CANCELLED)])
    async with client_of(fake) as client:
        async with client.attach("run-1", adapter="a", hold=True) as run:
            response = await client.cancel("run-1", grace_s=0, reason="why", adapter="a")
            await run.wait()
        await client.respond("run-1", "r", pb.InputAnswer(text="t"), responder="me", adapter="a")
    assert (response.outcome, response.result_sequence) == (pb.OUTCOME_CANCELLED, 2)
    assert not response.HasField("tree_confirmed_dead"), "absent is not false"
    assert sent(fake)[1:] == [
        ("Cancel", {"runId": "run-1", "grace": "0s", "reason": "why", "adapter": "a"}),
        (
            "Respond",
            {"runId": "run-1", "requestId": "r", "answer": {"text": "t"}, "responder": "me", "adapter": "a"},
        ),
    ]


async def test_an_input_is_sent_with_its_files() -> None:
    fake = FakeAdapter(answers={"Send": api.SendResponse(sequence=9)})
    files = [api.Attachment(name="a", content=b"x")]
    async with client_of(fake) as client:
        response = await client.send(
            "run-1", "t", mode=pb.INPUT_MODE_STEER, attachments=files, input_id="i", sender="me", adapter="a"
        )
    assert response.sequence == 9
    fields = {
        "runId": "run-1",
        "inputId": "i",
        "text": "t",
        "mode": "INPUT_MODE_STEER",
        "sender": "me",
        "adapter": "a",
    }
    assert sent(fake) == [("Send", {**fields, "attachments": [{"name": "a", "content": "eA=="}]})]


async def test_models_and_skills() -> None:
    models = api.ListModelsResponse(models=[api.Model(id="m")])
    skills = api.ListSkillsResponse(native=True)
    synced = api.SyncSkillsResponse(warnings=["w"])
    fake = FakeAdapter(answers={"ListModels": models, "ListSkills": skills, "SyncSkills": synced})
    async with client_of(fake) as client:
        assert await client.list_models("a", refresh=True, config={"k": "v"}, env={"E": "1"}) == models
        assert await client.list_skills("a", cwd="/x", env={"E": "1"}) == skills
        assert await client.sync_skills("a", [api.Skill(name="s", directory="/s")], env={"E": "1"}) == synced
    assert sent(fake) == [
        ("ListModels", {"adapter": "a", "refresh": True, "config": {"k": "v"}, "env": {"E": "1"}}),
        ("ListSkills", {"adapter": "a", "workspace": {"cwd": "/x"}, "env": {"E": "1"}}),
        ("SyncSkills", {"adapter": "a", "skills": [{"name": "s", "directory": "/s"}], "env": {"E": "1"}}),
    ]


class Asked:
    """Answers one method of each service, to callers with its token."""

    async def Describe(self, _request: api.DescribeRequest, _context: Context) -> api.DescribeResponse:  # noqa: N802
        return api.DescribeResponse(adapter="a")

    async def ListAdapters(  # noqa: N802 - the contract's name
        self, _request: router_pb2.ListAdaptersRequest, _context: Context
    ) -> router_pb2.ListAdaptersResponse:
        return router_pb2.ListAdaptersResponse(router_pid=7)

    async def drain(self, grace_s: float) -> None:
        """Nothing is to be ended."""


async def test_the_clients_token_goes_with_the_calls_of_both_services(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, theirs = Asked(), "t" * 40
    files = {"AdapterService": api.DESCRIPTOR, "RouterService": router_pb2.DESCRIPTOR}
    services = [file.services_by_name[name] for name, file in files.items()]
    monkeypatch.setenv("DRAGOMAN_TOKEN", theirs)
    server = DragomanServer({one: service_handler(one, asked) for one in services}, ["127.0.0.1:0"])
    monkeypatch.setenv("DRAGOMAN_TOKEN", "another-one-of-this-machine-which-is-not-asked")
    await server.start()
    try:
        async with Client(server.addresses[0], token=theirs) as client:
            assert (await client.describe("a")).adapter == "a"
            assert (await client.list_adapters()).router_pid == 7
    finally:
        await server.stop([asked], 0)


class Paged(FakeAdapter):
    """Answers lists in pages, by token."""

    def __init__(self, **pages: list[Message]) -> None:
        super().__init__()
        self._pages = pages

    async def _answer(self, name: str, request: router_pb2.ListRunsRequest) -> Message:
        return self._pages[name][int(request.page_token or 0)]


async def test_all_adapters_in_one_answer() -> None:
    entry = router_pb2.AdapterEntry
    fake = Paged(
        ListAdapters=[
            router_pb2.ListAdaptersResponse(adapters=[entry(adapter="a")], next_page_token="1", router_pid=7),
            router_pb2.ListAdaptersResponse(adapters=[entry(adapter="b")]),
        ]
    )
    async with client_of(fake) as client:
        response = await client.list_adapters(describe=True)
    assert [adapter.adapter for adapter in response.adapters] == ["a", "b"]
    assert response.router_pid == 7
    assert not response.next_page_token


async def test_runs_up_to_the_limit() -> None:
    def page(*ids: str, token: str) -> router_pb2.ListRunsResponse:
        runs = [router_pb2.RunSummary(run_id=run_id) for run_id in ids]
        return router_pb2.ListRunsResponse(runs=runs, next_page_token=token)

    fake = Paged(ListRuns=[page("a", "b", token="1"), page("c", "d", token="")])
    filters = router_pb2.ListRunsRequest(adapter="x", live_only=True, page_token="9", page_size=3)
    async with client_of(fake) as client:
        assert [run.run_id for run in await client.list_runs(filters, limit=3)] == ["a", "b", "c"]
        assert [run.run_id for run in await client.list_runs(limit=2)] == ["a", "b"]
        assert [run.run_id for run in await client.list_runs()] == ["a", "b", "c", "d"]
    assert sent(fake)[:2] == [
        ("ListRuns", {"adapter": "x", "liveOnly": True, "pageSize": 3}),
        ("ListRuns", {"adapter": "x", "liveOnly": True, "pageSize": 1, "pageToken": "1"}),
    ]


async def test_sessions_up_to_the_limit() -> None:
    def page(*ids: str, token: str) -> router_pb2.ListSessionsResponse:
        sessions = [router_pb2.StoredSession(handle=pb.SessionHandle(native_id=one)) for one in ids]
        return router_pb2.ListSessionsResponse(sessions=sessions, next_page_token=token)

    fake = Paged(ListSessions=[page("a", "b", token="1"), page("c", "d", token="")])
    filters = router_pb2.ListSessionsRequest(adapter="x", task_key="t", page_token="9", page_size=3)
    async with client_of(fake) as client:
        first = await client.list_sessions(filters, limit=3)
        everything = await client.list_sessions()
    assert [session.handle.native_id for session in first] == ["a", "b", "c"]
    assert [session.handle.native_id for session in everything] == ["a", "b", "c", "d"]
    assert sent(fake)[:2] == [
        ("ListSessions", {"adapter": "x", "taskKey": "t", "pageSize": 3}),
        ("ListSessions", {"adapter": "x", "taskKey": "t", "pageSize": 1, "pageToken": "1"}),
    ]


async def test_one_session_by_its_key() -> None:
    key = api.SessionKey(agent_id="a", task_key="t")
    one = router_pb2.StoredSession(key=key, adapter="x")
    fake = FakeAdapter(
        answers={
            "GetSession": router_pb2.GetSessionResponse(session=one),
            "DeleteSession": router_pb2.DeleteSessionResponse(deleted=True),
        }
    )
    async with client_of(fake) as client:
        assert await client.get_session(key, "x") == one
        assert await client.delete_session(key, "x")
    document = {"key": {"agentId": "a", "taskKey": "t"}, "adapter": "x"}
    assert sent(fake) == [("GetSession", document), ("DeleteSession", document)]


async def test_get_run() -> None:
    answer = router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id="run-1"))
    fake = FakeAdapter(answers={"GetRun": answer})
    async with client_of(fake) as client:
        assert await client.get_run("run-1") == answer


async def test_errors_come_whole() -> None:
    error = DragomanError(
        Reason.INVALID_REQUEST, "cwd: missing", {"k": "v"}, (FieldViolation("workspace.cwd", "missing"),), 1.5
    )
    fake = FakeAdapter(answers={"Describe": error})
    async with client_of(fake) as client:
        with pytest.raises(DragomanError) as caught:
            await client.describe()
    got = caught.value
    assert (got.reason, got.message, got.metadata, got.violations, got.retry_after_s) == (
        error.reason,
        error.message,
        error.metadata,
        error.violations,
        1.5,
    )
    assert got.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_answer_that_does_not_come_in_time() -> None:
    class Hanging(FakeAdapter):
        async def _answer(self, name: str, request: object) -> Message:
            await self.gate("never").wait()
            raise AssertionError

    async with serving(Hanging()) as address, Client(address, timeout_s=0.05) as client:
        with pytest.raises(DragomanError) as caught:
            await client.describe()
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_client_that_is_not_open_says_how_to_use_it() -> None:
    client = Client("127.0.0.1:1")
    with pytest.raises(RuntimeError, match="async with"):
        await client.describe()
    assert repr(client) == "<Client 127.0.0.1:1 (closed)>"
