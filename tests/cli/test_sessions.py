"""``dragoman sessions``, and how ``dragoman run`` names the session that it resumes."""

import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.testkit.fakes.adapter import Action, EventFactory, FakeAdapter
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from google.protobuf import json_format, timestamp_pb2
from google.protobuf.message import Message

from tests.cli.program import DESCRIBED, dragoman, finish, routed, start, written_to

ONE = router_pb2.StoredSession(
    key=api.SessionKey(company_id="c", agent_id="ada", task_key="issue-1"),
    adapter="fake",
    handle=pb.SessionHandle(native_id="s-1", adapter="fake", adapter_version="1.2", cwd="/srv/\x1b[2J"),
    created_at=timestamp_pb2.Timestamp(seconds=60),
    used_at=timestamp_pb2.Timestamp(seconds=3600),
    runs=12,
    last_run_id="run-9",
    input_tokens=12345,
    last_summary="Did it.\nAll of it.",
)
TWO = router_pb2.StoredSession(
    key=api.SessionKey(task_key="issue-1"), adapter="other", handle=pb.SessionHandle(native_id="s-2")
)


def fake_of(*sessions: router_pb2.StoredSession) -> FakeAdapter:
    return FakeAdapter(
        answers={
            "ListSessions": router_pb2.ListSessionsResponse(sessions=sessions),
            "DeleteSession": router_pb2.DeleteSessionResponse(deleted=True),
        }
    )


class Paged(FakeAdapter):
    """Has more sessions than one page."""

    def __init__(self, pages: dict[str, list[router_pb2.StoredSession]]) -> None:
        super().__init__(answers={"DeleteSession": router_pb2.DeleteSessionResponse(deleted=True)})
        self._pages = pages

    async def handle(self, name: str, request: Any, context: Any) -> Message | None:
        if name != "ListSessions":
            return await super().handle(name, request, context)
        self.calls.append((name, request))
        following = "" if request.page_token else "more"
        return router_pb2.ListSessionsResponse(sessions=self._pages[request.page_token], next_page_token=following)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    near, far = pty.openpty()
    yield near, far
    os.close(near)


async def test_a_table_at_a_terminal(terminal: tuple[int, int]) -> None:
    near, far = terminal
    async with routed(fake_of(ONE, TWO)) as env:
        process = await start("sessions", "--limit", "5", env={**env, "NO_COLOR": "1"}, stdout=far)
        os.close(far)
        done = await finish(process)
    assert done.code == 0
    assert written_to(near) == (
        "TASK     ADAPTER  AGENT  RUNS  USED (UTC)        SESSION\n"
        "issue-1  fake     ada    12    1970-01-01 01:00  s-1\n"
        "issue-1  other    -      0                       s-2\n"
    )


async def test_columns_meet_though_letters_take_two(terminal: tuple[int, int]) -> None:
    near, far = terminal
    wide = router_pb2.StoredSession()
    wide.CopyFrom(ONE)
    wide.key.agent_id = "エージェント"
    async with routed(fake_of(wide, TWO)) as env:
        process = await start("sessions", env={**env, "NO_COLOR": "1", "COLUMNS": "80"}, stdout=far)
        os.close(far)
        await finish(process)
    assert written_to(near) == (
        "TASK     ADAPTER  AGENT         RUNS  USED (UTC)        SESSION\n"
        "issue-1  fake     エージェント  12    1970-01-01 01:00  s-1\n"
        "issue-1  other    -             0                       s-2\n"
    )


async def test_json_lines_for_programs() -> None:
    fake = fake_of(ONE, TWO)
    options = ("--task", "t", "--adapter", "fake", "--agent", "a", "--company", "c", "--limit", "7")
    async with routed(fake) as env:
        piped = await dragoman("sessions", *options, env=env)
        asked = await dragoman("sessions", "--json", env=env)
    parsed = [json_format.Parse(line, router_pb2.StoredSession()) for line in asked.out.splitlines()]
    assert parsed == [ONE, TWO]
    assert [line.split()[0] for line in piped.out.splitlines()] == ["issue-1", "issue-1"], "without a head, as runs"
    sent = json_format.MessageToDict(fake.requests("ListSessions")[0])
    assert sent == {"pageSize": 7, "adapter": "fake", "agentId": "a", "companyId": "c", "taskKey": "t"}


async def test_sessions_of_a_stored_agent() -> None:
    fake = fake_of(router_pb2.StoredSession(key=ONE.key, adapter="fake", agent_name="reviewer"))
    async with routed(fake) as env:
        text = await dragoman("sessions", "show", "--agent", "@reviewer", env=env)
    assert "\nagent     @reviewer ada\n" in text.out
    sent = json_format.MessageToDict(fake.requests("ListSessions")[0])
    assert sent["agentName"] == "reviewer"
    assert "agentId" not in sent


async def test_a_router_that_does_not_select_by_stored_agent() -> None:
    mine = router_pb2.StoredSession(key=api.SessionKey(task_key="mine"), adapter="fake", agent_name="reviewer")
    fake = fake_of(ONE, mine, TWO)
    async with routed(fake) as env:
        listed = await dragoman("sessions", "--agent", "@reviewer", "--limit", "1", env=env)
        deleted = await dragoman("sessions", "delete", "--agent", "@reviewer", "--all", env=env)
    assert [line.split()[0] for line in listed.out.splitlines()] == ["mine"]
    assert deleted.out == "deleted: task mine, adapter fake\n"
    assert [sent.key.task_key for sent in fake.requests("DeleteSession")] == ["mine"]


@pytest.mark.parametrize("command", [(), ("show",), ("delete", "--all")])
async def test_a_stored_agent_without_a_name_selects_nothing(command: tuple[str, ...]) -> None:
    fake = fake_of(ONE)
    async with routed(fake) as env:
        done = await dragoman("sessions", *command, "--agent", "@", env=env)
    assert done.code == 2
    assert "give the name of a stored agent after '@'" in done.err
    assert not fake.names


async def test_show() -> None:
    async with routed(fake_of(ONE)) as env:
        text = await dragoman("sessions", "show", "issue-1", env=env)
        machine = await dragoman("sessions", "show", "issue-1", "--json", env=env)
    assert text.out == (
        "s-1\ntask      issue-1\nagent     ada\ncompany   c\nadapter   fake 1.2\ndirectory /srv/␛[2J\n"
        "created   1970-01-01 00:01:00 UTC\nused      1970-01-01 01:00:00 UTC\nruns      12, last run-9\n"
        "tokens    12,345 in, not cached\nsummary   Did it. All of it.\n"
    )
    assert json.loads(machine.out)["handle"]["nativeId"] == "s-1"


@pytest.mark.parametrize(
    ("sessions", "what", "hint"),
    [
        ([], "no stored session matches", "'dragoman sessions' lists"),
        ([ONE, TWO], "2 stored sessions match", "task issue-1, adapter fake, agent ada, company c; task issue-1, ad"),
    ],
)
@pytest.mark.parametrize("command", ["show", "delete"])
async def test_which_one_is_meant_must_be_clear(
    command: str, sessions: list[router_pb2.StoredSession], what: str, hint: str
) -> None:
    fake = fake_of(*sessions)
    async with routed(fake) as env:
        done = await dragoman("sessions", command, "issue-1", env=env)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {what}\n")
    assert hint in done.err
    assert not fake.requests("DeleteSession")


async def test_delete() -> None:
    fake = fake_of(ONE)
    async with routed(fake) as env:
        done = await dragoman("sessions", "delete", "issue-1", "--adapter", "fake", env=env)
    assert (done.code, done.out) == (0, "deleted: task issue-1, adapter fake, agent ada, company c\n")
    (sent,) = fake.requests("DeleteSession")
    assert (sent.key, sent.adapter) == (ONE.key, "fake")


async def test_delete_several() -> None:
    fake = fake_of(ONE, TWO)
    async with routed(fake) as env:
        done = await dragoman("sessions", "delete", "issue-1", "--all", env=env)
        everything = await dragoman("sessions", "delete", "--all", env=env)
    assert done.code == 0
    assert [sent.adapter for sent in fake.requests("DeleteSession")] == ["fake", "other"]
    assert everything.code == 2


async def test_delete_leaves_none_of_very_many() -> None:
    many = [router_pb2.StoredSession(key=api.SessionKey(task_key=f"t{n}"), adapter="fake") for n in range(1005)]
    fake = Paged({"": many[:1000], "more": many[1000:]})
    async with routed(fake) as env:
        done = await dragoman("sessions", "delete", "--adapter", "fake", "--all", env=env)
    assert done.code == 0
    assert [sent.key.task_key for sent in fake.requests("DeleteSession")] == [f"t{n}" for n in range(1005)]
    assert [sent.page_token for sent in fake.requests("ListSessions")] == ["", "more"]


async def test_an_empty_key_matches_only_empty_ones() -> None:
    fake = fake_of(ONE, TWO)
    async with routed(fake) as env:
        shown = await dragoman("sessions", "show", "issue-1", "--agent", "", env=env)
        listed = await dragoman("sessions", "--company", "", "--limit", "1", env=env)
        deleted = await dragoman("sessions", "delete", "issue-1", "--agent", "", env=env)
        unclear = await dragoman("sessions", "show", "--adapter", "fake", "--agent", "ada", env=env)
    assert shown.out.startswith("s-2\n")
    assert [line.split()[1] for line in listed.out.splitlines()] == ["other"]
    assert deleted.out == "deleted: task issue-1, adapter other\n"
    assert "select one by TASK and --company ('' for none): task issue-1, adapter fake" in unclear.err


async def test_options_that_would_not_count_are_refused() -> None:
    async with routed(fake_of(ONE)) as env:
        done = await dragoman("sessions", "--adapter", "fake", "show", "issue-1", env=env)
    assert done.code == 2
    assert "options go after 'show'" in done.err


async def test_a_router_whose_log_fails() -> None:
    error = DragomanError(Reason.RUN_LOG_UNAVAILABLE, "the run log cannot be read now")
    async with routed(FakeAdapter(answers={"ListSessions": error})) as env:
        done = await dragoman("sessions", env=env)
    assert done.code == 1


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (["--task", "t"], {"taskKey": "t"}),
        (["--task", "t", "--agent", "a"], {"taskKey": "t", "agent": {"id": "a"}}),
        (["--task", "t", "--fresh"], {"taskKey": "t", "session": {"fresh": True}}),
        (["--task", "t", "--fork"], {"taskKey": "t", "session": {"fork": True}}),
        (["--resume", "r"], {"session": {"resumeRunId": "r"}}),
        (["--resume", "r", "--fork"], {"session": {"resumeRunId": "r", "fork": True}}),
    ],
)
async def test_a_run_says_which_conversation_it_goes_on_with(
    tmp_path: Path, options: list[str], sent: dict[str, object]
) -> None:
    emit = EventFactory()
    script: list[Action] = [emit.started("fake"), emit.succeeded()]
    fake = FakeAdapter(script, answers={"Describe": DESCRIBED})
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", *options, env=env, cwd=tmp_path)
    assert done.code == 0
    request = json_format.MessageToDict(fake.requests("Execute")[0])
    assert {key: request[key] for key in ("taskKey", "agent", "session") if key in request} == sent


@pytest.mark.parametrize(
    "options",
    [
        ["--resume", "r", "--fresh"],
        ["--fork"],
        ["--task", "t", "--fresh", "--fork"],
    ],
)
async def test_options_that_exclude_one_another(tmp_path: Path, options: list[str]) -> None:
    fake = FakeAdapter(answers={"Describe": DESCRIBED})
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", *options, env=env, cwd=tmp_path)
    assert done.code == 2
    assert not fake.names
