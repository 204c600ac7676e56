"""A real agent behind a router that stores its session: woken for a task, it resumes the conversation."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from dragoman.client import Client
from dragoman.router.app import Router, RouterConfig
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

from tests.agents.harness import TEST_S, Harness, ServedAdapter
from tests.agents.test_claude_code import CLAUDE_CODE

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    """An agent whose caller asks a router."""
    for name in CLAUDE_CODE.unset:
        monkeypatch.delenv(name, raising=False)
    async with ServedAdapter.serve(CLAUDE_CODE, (), tmp_path) as served:
        config = RouterConfig(
            listen=("127.0.0.1:0",),
            insecure_tcp_without_token=True,
            state_dir=tmp_path / "router",
            entry_points=False,
            user_manifests=False,
            addresses=(served.client.address,),
        )
        async with Router(config) as router, Client(router.addresses[0]) as client:
            yield Harness(replace(served, client=client), tmp_path)


async def test_a_woken_agent_recalls_its_task(harness: Harness) -> None:
    ada = api.Agent(id="ada", company_id="acme")
    first = await harness.run("MOCK_TEXT word=plover", agent=ada, task_key="issue-1")
    second = await harness.run("MOCK_RECALL", agent=ada, task_key="issue-1")
    assert "word=plover" in second.text
    assert second.of("started")[0].session_disposition == pb.SESSION_DISPOSITION_RESUME
    other = await harness.run("MOCK_RECALL", agent=ada, task_key="issue-2")
    assert "word=unknown" in other.text
    filters = router_pb2.ListSessionsRequest(task_key="issue-1")
    (session,) = await harness.client.list_sessions(filters)
    assert session.runs == 2
    assert session.handle.native_id == first.result.session.handle.native_id
    assert session.last_summary == second.result.summary


async def test_what_came_before_is_handed_over_to_a_new_session(harness: Harness) -> None:
    short = {"sessionCompaction": {"maxSessionRuns": 1}}
    first = await harness.run("MOCK_TEXT word=plover", task_key="issue-1", config=short)
    second = await harness.run("MOCK_RECALL", task_key="issue-1", config=short)
    (started,) = second.of("started")
    assert started.session_disposition == pb.SESSION_DISPOSITION_RESUME_REFUSED
    assert started.session_reason == "the session reached 1 run"
    assert started.prompt_bytes["handover"]
    prompt = harness.conversation(-1).user_texts[-1]
    assert f"> {first.result.summary}" in prompt
    assert prompt.index(first.result.summary) < prompt.index("MOCK_RECALL")


async def test_a_session_whose_files_are_gone_is_replaced(harness: Harness) -> None:
    first = await harness.run("MOCK_TEXT word=plover", task_key="issue-1")
    old = first.result.session.handle.native_id
    for path in harness.isolation.home.rglob(f"*{old}*.jsonl"):
        path.unlink()
    second = await harness.run("MOCK_RECALL", task_key="issue-1")
    assert len(second.of("started")) == 2
    (session,) = await harness.client.list_sessions()
    assert session.handle.native_id == second.result.session.handle.native_id != old
    assert session.runs == 1
