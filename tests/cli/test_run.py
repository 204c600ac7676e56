"""``dragoman run`` and ``attach`` as a program, against a scripted server."""

import json
import signal
from pathlib import Path

import pytest
from dragoman.cli.main import main
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason
from dragoman.testkit.fake_adapter import Action, Fail, FakeAdapter, Silence, Teller, Until
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, json_format

from tests.cli.program import DESCRIBED, dragoman, finish, routed, start

USED = pb.Usage(tokens=pb.TokenCounts(input=12, output=3), cost=pb.Cost(amount="0.01", currency="USD"))


def fake_of(*scripts: list[Action]) -> FakeAdapter:
    return FakeAdapter(*scripts, answers={"Describe": DESCRIBED})


def hello(tell: Teller) -> list[Action]:
    return [
        tell.started("fake"),
        tell.text("hel"),
        tell.text("lo"),
        tell.succeeded(usage=USED, duration=duration_pb2.Duration(seconds=2)),
    ]


async def test_a_run_that_succeeds(tmp_path: Path) -> None:
    fake = fake_of(hello(Teller()))
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", env=env, cwd=tmp_path)
    run_id = fake.requests("Execute")[0].run_id
    assert done.code == 0
    assert done.out == f"▶ fake\nhello\nsucceeded in 2.0 s · 12 in / 3 out tokens · $0.0100 · run {run_id}\n"
    assert done.err == ""
    sent = json_format.MessageToDict(fake.requests("Execute")[0])
    assert sent == {
        "runId": run_id,
        "adapter": "fake",
        "prompt": "hi",
        "workspace": {"cwd": str(tmp_path)},
        "orphanAfter": "30s",
    }


@pytest.mark.parametrize(
    ("outcome", "code", "word"),
    [
        (pb.OUTCOME_FAILED, 1, "failed"),
        (pb.OUTCOME_TIMED_OUT, 1, "timed out"),
        (pb.OUTCOME_LOST, 1, "lost"),
        (pb.OUTCOME_CANCELLED, 130, "cancelled"),
    ],
)
async def test_a_run_that_does_not(outcome: pb.Outcome.ValueType, code: int, word: str) -> None:
    tell = Teller()
    failure = pb.Failure(kind=pb.FAILURE_KIND_NETWORK, message="no route")
    fake = fake_of([tell.started(), tell.result(outcome, failure=failure)])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", env=env)
    assert done.code == code
    assert "✗ no route (network)\n" in done.out
    assert done.last_line.startswith(f"{word} in unknown time · tokens unknown · cost unknown · run run-")


async def test_events_as_json_lines() -> None:
    tell = Teller()
    events = hello(tell)
    fake = fake_of(events)
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "--json", "--run-id", "mine", env=env)
    got = [json_format.Parse(line, pb.AgentEvent()) for line in done.out.splitlines()]
    assert [event.WhichOneof("body") for event in got] == ["started", "text", "text", "result"]
    assert {event.run_id for event in got} == {"mine"}
    assert done.err.startswith("succeeded in 2.0 s · ")


async def test_json_lines_are_ascii_whatever_the_agent_says() -> None:
    tell = Teller()
    fake = fake_of([tell.started(), tell.text("\x1b[31m\x9b\u202e✓"), tell.succeeded()])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "--json", env=env)
    assert done.out.isascii()
    assert "\x1b" not in done.out


async def test_a_refused_request_names_the_fields() -> None:
    error = DragomanError(
        Reason.INVALID_REQUEST, "config.x: unknown", violations=[FieldViolation("config.x", "unknown")]
    )
    refused: list[Action] = [Silence(), Fail(error)]
    fake = fake_of(refused, refused)
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "--config", "x=1", env=env)
        assert (done.code, done.out, done.err) == (2, "", "error: config.x: unknown\n")
        done = await dragoman("run", "fake", "--config", "x=1", "--json", env=env)
    assert json.loads(done.err)["error"]["fields"] == [{"path": "config.x", "description": "unknown"}]


async def test_nobody_there() -> None:
    done = await dragoman("run", "fake", "--router", "127.0.0.1:1")
    assert done.code == 1
    assert done.err.startswith("error: nothing answers at 127.0.0.1:1\n  start a router with")


async def test_a_broken_stream_is_followed() -> None:
    first, second, third, last = hello(Teller())
    slow = Fail(DragomanError(Reason.SLOW_CONSUMER, "slow"))
    fake = fake_of([first, second, slow], [third, last])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", env=env)
    assert done.code == 0
    assert "hello\n" in done.out


async def test_everything_that_can_be_said(tmp_path: Path) -> None:
    fake = fake_of(hello(Teller()))
    arguments = [
        *("--cwd", ".", "--model", "m", "--config", "a.b=[1]", "--config", "command=true"),
        *("--env", "K=v", "--env", "COPIED", "--label", "l=1", "--timeout", "1.5"),
        *("--allow", "Read", "--deny", "Bash", "--permission-mode", "plan", "--dangerously-allow-all"),
        "--template",
    ]
    async with routed(fake) as env:
        done = await dragoman(
            "run", "fake", "-", *arguments, stdin="ä {{runId}}\n".encode(), env={**env, "COPIED": "c"}, cwd=tmp_path
        )
    assert done.code == 0
    sent = json_format.MessageToDict(fake.requests("Execute")[0])
    del sent["runId"]
    assert sent == {
        "adapter": "fake",
        "promptTemplate": "ä {{runId}}\n",
        "workspace": {"cwd": str(tmp_path)},
        "model": "m",
        "config": {"a": {"b": [1.0]}, "command": "true"},
        "env": {"K": "v", "COPIED": "c"},
        "labels": {"l": "1"},
        "limits": {"wall": "1.500s"},
        "orphanAfter": "30s",
        "permissions": {
            "rules": [
                {"decision": "PERMISSION_DECISION_DENY", "toolName": "Bash"},
                {"decision": "PERMISSION_DECISION_ALLOW", "toolName": "Read"},
            ],
            "nativeMode": "plan",
            "autoApprove": True,
        },
    }


async def test_a_prompt_that_is_not_text_is_a_wrong_call() -> None:
    done = await dragoman("run", "fake", "-", "--router", "127.0.0.1:1", stdin=b"\xff")
    assert done.code == 2
    assert "standard input is not UTF-8" in done.err


async def test_an_adapter_without_a_directory_gets_none() -> None:
    fake = FakeAdapter(hello(Teller()), answers={"Describe": api.DescribeResponse(adapter="fake")})
    async with routed(fake) as env:
        await dragoman("run", "fake", env=env)
    assert not fake.requests("Execute")[0].HasField("workspace")


async def test_a_conversation_of_another_adapter_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    kept = '{"adapter": "other", "nativeId": "n-1"}'
    path.write_text(kept)
    async with routed(fake_of()) as env:
        done = await dragoman("run", "fake", "--session", str(path), env=env)
    assert done.code == 2
    assert "keeps a conversation of other" in done.err
    assert path.read_text() == kept


async def test_the_session_is_kept_and_gone_on_with_and_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    handle = pb.SessionHandle(adapter="fake", native_id="s-1")
    updates = [
        pb.SessionUpdate(change=pb.SESSION_CHANGE_SET, handle=handle),
        pb.SessionUpdate(change=pb.SESSION_CHANGE_CLEAR),
    ]
    scripts: list[list[Action]] = [[Teller().succeeded(session=update)] for update in updates]
    fake = fake_of(*scripts)
    async with routed(fake) as env:
        assert (await dragoman("run", "fake", "--session", str(path), env=env)).code == 0
        assert json.loads(path.read_text()) == {"adapter": "fake", "nativeId": "s-1"}
        assert (await dragoman("run", "fake", "--session", str(path), env=env)).code == 0
    assert not path.exists()
    first, second = fake.requests("Execute")
    assert not first.HasField("session")
    assert second.session.handle == handle


async def test_a_session_that_could_not_be_kept_is_a_failure(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    tell = Teller()
    handle = pb.SessionHandle(adapter="fake", native_id="s-1")
    kept = pb.SessionUpdate(change=pb.SESSION_CHANGE_SET, handle=handle)
    fake = fake_of([tell.started(), Until("gone"), tell.succeeded(session=kept)])
    async with routed(fake) as env:
        refused = await dragoman("run", "fake", "--session", str(folder / "none" / "s.json"), env=env)
        assert (refused.code, fake.requests("Execute")) == (2, [])
        process = await start("run", "fake", "--session", str(folder / "s.json"), env=env)
        await fake.gate("called Execute").wait()
        folder.rmdir()
        fake.open("gone")
        done = await finish(process)
    assert done.code == 1
    assert "the session could not be kept in" in done.err
    assert done.last_line.startswith("succeeded in ")


async def test_who_may_get_the_run_gets_a_directory_though_the_first_has_no_use_for_it(tmp_path: Path) -> None:
    described = api.DescribeResponse(adapter="fake", revision=1, instance_id="i")
    fake = FakeAdapter(hello(Teller()), answers={"Describe": described})
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", "--fallback", "process", env=env, cwd=tmp_path)
    assert done.code == 0
    assert fake.requests("Execute")[0].workspace.cwd == str(tmp_path)


@pytest.mark.parametrize("option", ["model", "task", "agent", "resume", "permission-mode", "run-id", "cwd"])
def test_an_option_that_was_given_as_nothing_is_a_wrong_call(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fake", "hi", f"--{option}", ""]) == 2
    assert f"--{option}" in capsys.readouterr().err


async def test_lines_nobody_recognised_are_counted_and_shown_with_debug() -> None:
    def script() -> list[Action]:
        tell = Teller()
        capable = pb.Capabilities(items=[pb.Capability(feature=pb.FEATURE_TEXT_DELTAS)])
        odd = tell.started(capabilities=capable), tell.event(log=pb.Log(text="odd")), tell.succeeded()
        return list(odd)

    fake = fake_of(script(), script())
    async with routed(fake) as env:
        quiet = await dragoman("run", "fake", env=env)
        loud = await dragoman("run", "fake", "--debug", env=env)
    assert quiet.err == "1 line was not recognised; --debug shows them\n"
    assert "odd" not in quiet.out
    assert "│ odd\n" in loud.out


async def test_processes_that_are_not_proven_gone_are_told_of() -> None:
    fake = fake_of([Teller().succeeded(tree_confirmed_dead=False)])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "--run-id", "r1", env=env)
    assert done.err == "r1: its processes are NOT proven gone; look for them\n"


async def test_attach_follows_from_a_sequence() -> None:
    tell = Teller()
    fake = fake_of([tell.started(), tell.ephemeral(replay_done=pb.ReplayDone()), tell.succeeded()])
    async with routed(fake) as env:
        done = await dragoman("attach", "run-1", "--after", "0", "--hold", env=env)
    assert done.code == 0
    assert done.last_line.endswith("run run-1")
    assert fake.requests("Attach") == [api.AttachRequest(run_id="run-1", hold=True)]


async def test_attach_from_a_later_sequence_shows_what_it_would_show_from_the_first() -> None:
    tell = Teller()
    begun = tell.started()  # of an adapter whose agent's lines are its answer
    later: list[Action] = [tell.event(log=pb.Log(text="two", stream=pb.OUTPUT_STREAM_STDOUT)), tell.succeeded()]
    fake = fake_of([begun, Until("never")], later)
    async with routed(fake) as env:
        done = await dragoman("attach", "run-1", "--after", "1", env=env)
    assert done.out.splitlines()[0] == "two"
    assert [request.after_sequence for request in fake.requests("Attach")] == [0, 1]
    assert not any(request.hold for request in fake.requests("Attach"))


async def test_programs_that_attach_from_a_later_sequence_get_only_that() -> None:
    tell = Teller()
    tell.sequence = 1
    fake = fake_of([tell.succeeded()])
    async with routed(fake) as env:
        done = await dragoman("attach", "run-1", "--after", "1", "--json", env=env)
    assert [json.loads(line)["sequence"] for line in done.out.splitlines()] == ["2"]
    assert len(fake.requests("Attach")) == 1


@pytest.mark.parametrize(("outcome", "code"), [(pb.OUTCOME_SUCCEEDED, 0), (pb.OUTCOME_FAILED, 1)])
async def test_attach_behind_the_end_tells_how_it_ended(outcome: pb.Outcome.ValueType, code: int) -> None:
    tell = Teller()
    begun, over = tell.started(), tell.result(outcome)
    fake = fake_of([begun, Until("never")], [], [over])
    async with routed(fake) as env:
        done = await dragoman("attach", "run-1", "--after", "2", env=env)
    assert (done.code, done.err) == (code, "")
    assert done.out.endswith("· run run-1\n")
    assert len(done.out.splitlines()) == 1


async def test_detach_tells_that_it_waits_for_a_place() -> None:
    tell = Teller()
    queued = tell.ephemeral(state=pb.State(phase=pb.RUN_PHASE_QUEUED, reason="waits for a place at 'fake'"))
    fake = fake_of([queued, tell.started(), Until("never")])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "--detach", "--run-id", "r1", env=env)
    assert (done.code, done.out) == (0, "r1\n")
    assert done.err == "r1 waits for a place at 'fake'\n"


async def test_detach_tells_of_a_run_that_failed_before_it_began() -> None:
    failure = pb.Failure(kind=pb.FAILURE_KIND_NOT_INSTALLED, message="Fake is not installed.")
    fake = fake_of([Teller().result(pb.OUTCOME_FAILED, failure=failure)])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "--detach", "--run-id", "r1", env=env)
    assert (done.code, done.out, done.err) == (1, "r1\n", "Fake is not installed.\n")


async def test_ctrl_c_before_a_detached_run_began_names_it() -> None:
    fake = fake_of([Until("never")])
    async with routed(fake) as env:
        process = await start("run", "fake", "--detach", "--run-id", "r1", env=env)
        await fake.gate("called Execute").wait()
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert (done.code, done.out) == (130, "")
    assert "left r1, which may begin all the same; 'dragoman cancel r1' ends it\n" in done.err
