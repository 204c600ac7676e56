"""Sessions, skills and questions of the Rust SDK: `make test-rust` builds the adapter that has them."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from dragoman.client import Client
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.rust.test_rust_adapters import EXAMPLES
from tests.sdks import UNSERVED, examine, refused_rpc

pytestmark = [pytest.mark.rust, pytest.mark.timeout(180)]

SCRIPTED = EXAMPLES / "scripted"
SECRET = "env-0815-very-secret"


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of the adapter itself."""
    address = f"unix:{tmp_path}/a.sock"
    environment = {**os.environ, "DRAGOMAN_LISTEN": address}
    process = await asyncio.create_subprocess_exec(SCRIPTED, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        assert b"adapter ready" in await process.stderr.readline()
        async with Client(address) as opened:
            yield opened
    finally:
        process.terminate()
        await process.wait()


def script(*steps: str, run_id: str = "") -> api.ExecuteRequest:
    return api.ExecuteRequest(
        prompt="dragoman-script:\n" + "\n".join(steps) + "\n---\n", run_id=run_id, workspace=api.Workspace(cwd="/tmp")
    )


def resuming(*steps: str, fork: bool = False, run_id: str = "") -> api.ExecuteRequest:
    request = script(*steps, run_id=run_id)
    request.session.handle.native_id = "s-1"
    request.session.fork = fork
    return request


async def run(client: Client, request: api.ExecuteRequest) -> list[pb.AgentEvent]:
    async with client.execute(request) as running:
        events = [event async for event in running]
    check_stream(events)
    return events


async def refusal(client: Client, request: api.ExecuteRequest) -> DragomanError:
    with pytest.raises(DragomanError) as refused:
        await run(client, request)
    return refused.value


async def test_a_notice_that_comes_before_the_attempt_is_kept_until_it_opens(client: Client) -> None:
    events = await run(client, script("early=first", "say=hello"))
    shown = [event.notice.code or event.WhichOneof("body") for event in events]
    assert shown == ["started", "state", "first", "text", "result"]


@pytest.mark.parametrize("rpc", UNSERVED)
async def test_an_rpc_that_is_not_served_is_refused_with_a_reason(rpc: str, client: Client) -> None:
    error = await refused_rpc(client.address, rpc)
    assert (error.reason, error.code.name) == (Reason.NOT_IMPLEMENTED, "UNIMPLEMENTED")


async def test_a_session_has_one_run_at_a_time_and_a_copy_of_it_is_free(client: Client) -> None:
    async with client.execute(resuming("hang", run_id="r-1")) as first:
        await anext(first)
        busy = await refusal(client, resuming("say=no"))
        assert (busy.reason, busy.metadata) == (Reason.SESSION_BUSY, {"run_id": "r-1"})
        copied = await run(client, resuming("say=yes", fork=True))
        assert copied[0].started.session_disposition == pb.SESSION_DISPOSITION_FORK
        await first.cancel(grace_s=0)
    resumed = await run(client, resuming("say=yes"))
    assert resumed[0].started.native_session_id == "s-1"
    handle = resumed[-1].result.session.handle
    assert (handle.adapter, handle.cwd, handle.params["sessionId"]) == ("scripted_rust", "/tmp", "s-1")


async def test_a_session_of_elsewhere_is_not_resumed_and_a_lost_one_is_replaced(client: Client) -> None:
    elsewhere = resuming("say=yes")
    elsewhere.session.handle.cwd = "/"
    events = await run(client, elsewhere)
    assert events[0].started.session_disposition == pb.SESSION_DISPOSITION_RESUME_REFUSED
    assert events[0].started.session_reason == "the session belongs to /"
    events = await run(client, resuming("lost", "session=s-2", "say=yes"))
    assert [event.attempt for event in events if event.HasField("started")] == [1, 2]
    assert events[-1].result.session.handle.native_id == "s-2"


async def test_skills_are_laid_out_as_files_and_none_leads_elsewhere(client: Client, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "SKILL.md").write_text("# Own")
    in_place = api.Skill(name="own", directory=str(own))
    sent = api.Skill(name="sent", files=api.SkillFiles(content={"SKILL.md": b"# Sent", "a/b.md": b"# Inner"}))
    for path, expected in [("own/SKILL.md", "# Own"), ("sent/a/b.md", "# Inner")]:
        request = script(f"skill={path}")
        request.skills.extend([in_place, sent])
        events = await run(client, request)
        assert [event.text.whole for event in events if event.HasField("text")] == [expected]
    (own / "away").symlink_to("/etc")
    for skills, field in [
        ([in_place], "skills[0]"),
        ([api.Skill(name="own", directory="relative")], "skills[0]"),
        ([api.Skill(name="own", directory=str(tmp_path / "absent"))], "skills[0]"),
        ([api.Skill(name="../up", files=sent.files)], "skills[0]"),
        ([sent, api.Skill(name="SENT", files=sent.files)], "skills[1].name"),
        ([api.Skill(name="a", files=api.SkillFiles(content={"SKILL.md": b"", "../b": b""}))], "skills[0]"),
        ([api.Skill(name="a", files=api.SkillFiles(content={"README.md": b""}))], "skills[0]"),
        ([api.Skill(name="a")], "skills[0]"),
    ]:
        request = script("say=no")
        request.skills.extend(skills)
        refused = await refusal(client, request)
        assert (refused.reason, [wrong.path for wrong in refused.violations]) == (Reason.INVALID_REQUEST, [field])


async def test_a_question_is_answered_once_and_repeated_to_a_late_reader(client: Client) -> None:
    request = script("ask=Bash", run_id="r-1")
    request.permissions.interactive = True
    texts: list[str] = []
    async with client.execute(request) as asking:
        async for event in asking:
            texts += [event.text.whole] if event.HasField("text") else []
            if not event.HasField("input_request"):
                continue
            async with client.attach("r-1", after_sequence=event.sequence) as late:
                copy = await anext(late)
                while not copy.HasField("input_request"):
                    copy = await anext(late)
                assert (copy.input_request.id, copy.sequence) == (event.input_request.id, 0)
            allowed = pb.InputAnswer(option_ids=["allow"], message="go on")
            strange = pb.InputAnswer(option_ids=["maybe"])
            await _refused(client, event.input_request.id, strange, Reason.INVALID_ANSWER)
            sequence = await asking.respond(event.input_request.id, allowed)
            assert await asking.respond(event.input_request.id, allowed) == sequence
            other = pb.InputAnswer(option_ids=["reject"])
            error = await _refused(client, event.input_request.id, other, Reason.ALREADY_RESOLVED)
            assert error.metadata == {"answer": '{"message":"go on","optionIds":["allow"]}'}
    assert texts == ["allowed"]
    await _refused(client, "other", pb.InputAnswer(option_ids=["allow"]), Reason.REQUEST_NOT_FOUND)


async def _refused(client: Client, request_id: str, answer: pb.InputAnswer, reason: Reason) -> DragomanError:
    with pytest.raises(DragomanError) as refused:
        async with client.attach("r-1") as attached:
            await attached.respond(request_id, answer)
    assert refused.value.reason == reason
    return refused.value


async def test_a_question_expires_to_its_default_and_is_dropped_when_its_run_is_to_stop(client: Client) -> None:
    request = script("ask=Bash")
    request.permissions.interactive = True
    request.permissions.request_timeout.FromMilliseconds(50)
    events = await run(client, request)
    assert [event.text.whole for event in events if event.HasField("text")] == ["rejected"]
    resolved = [event.input_resolved for event in events if event.HasField("input_resolved")]
    assert [one.resolution for one in resolved] == [pb.INPUT_RESOLUTION_EXPIRED]
    phases = [event.state.phase for event in events if event.HasField("state")]
    assert phases == [pb.RUN_PHASE_STARTING, pb.RUN_PHASE_WAITING_FOR_INPUT, pb.RUN_PHASE_RUNNING]
    request = script("ask=Bash", run_id="r-1")
    request.permissions.interactive = True
    async with client.execute(request) as asking:
        async for event in asking:
            if event.HasField("input_request"):
                await asking.cancel(grace_s=20)
            if event.HasField("input_resolved"):
                assert event.input_resolved.resolution == pb.INPUT_RESOLUTION_DROPPED
    assert asking.result is not None
    assert asking.result.outcome == pb.OUTCOME_CANCELLED
    await _refused(client, "input-1", pb.InputAnswer(option_ids=["allow"]), Reason.RUN_FINISHED)


async def test_an_agent_in_the_process_that_asks_passes_the_conformance_kit() -> None:
    rules = (
        *("respond.", "permissions.", "session.", "attach.", "events.", "batching.", "unsupported.", "secrets."),
        *("usage.", "tools.results", "settings.skills"),
    )
    only = [argument for rule in rules for argument in ("--only", rule)]
    passed = await examine("--agent", "script", *only, "--", str(SCRIPTED))
    assert passed >= {"usage.reported", "usage.absent", "tools.results", "settings.skills"}
