"""``dragoman run`` and ``attach`` as a program, against a scripted server."""

import json
import signal
from pathlib import Path

import pytest
from dragoman.cli.main import main
from dragoman.protocol.errors import DragomanError, FieldViolation, Reason
from dragoman.testkit.fakes.adapter import Action, EventFactory, Fail, FakeAdapter, Silence, Until, serving
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, json_format

from tests.cli.program import DESCRIBED, dragoman, finish, routed, start

USED = pb.Usage(tokens=pb.TokenCounts(input=12, output=3), cost=pb.Cost(amount="0.01", currency="USD"))


def fake_of(*scripts: list[Action]) -> FakeAdapter:
    return FakeAdapter(*scripts, answers={"Describe": DESCRIBED})


def hello(emit: EventFactory) -> list[Action]:
    return [
        emit.started("fake"),
        emit.text("hel"),
        emit.text("lo"),
        emit.succeeded(usage=USED, duration=duration_pb2.Duration(seconds=2)),
    ]


async def test_a_run_that_succeeds(tmp_path: Path) -> None:
    fake = fake_of(hello(EventFactory()))
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
        "batching": {},
    }


@pytest.mark.parametrize("stands_for_it", [("--config", "promptTemplate=Go on."), ("--agent", "agent-7")])
async def test_a_template_and_a_named_agent_need_no_prompt(stands_for_it: tuple[str, str]) -> None:
    fake = fake_of(hello(EventFactory()))
    async with routed(fake) as env:
        done = await dragoman("run", "fake", *stands_for_it, env=env)
    assert done.code == 0
    assert fake.requests("Execute")[0].WhichOneof("task") is None


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
    emit = EventFactory()
    failure = pb.Failure(kind=pb.FAILURE_KIND_NETWORK, message="no route")
    fake = fake_of([emit.started(), emit.result(outcome, failure=failure)])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", env=env)
    assert done.code == code
    assert "✗ no route (network)\n" in done.out
    assert done.last_line.startswith(f"{word} in unknown time · tokens unknown · cost unknown · run run-")


async def test_events_as_json_lines() -> None:
    emit = EventFactory()
    events = hello(emit)
    fake = fake_of(events)
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", "--json", "--run-id", "mine", env=env)
    got = [json_format.Parse(line, pb.AgentEvent()) for line in done.out.splitlines()]
    assert [event.WhichOneof("body") for event in got] == ["started", "text", "text", "result"]
    assert {event.run_id for event in got} == {"mine"}
    assert done.err.startswith("succeeded in 2.0 s · ")


async def test_json_lines_are_ascii_whatever_the_agent_says() -> None:
    emit = EventFactory()
    fake = fake_of([emit.started(), emit.text("\x1b[31m\x9b\u202e✓"), emit.succeeded()])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", "--json", env=env)
    assert done.out.isascii()
    assert "\x1b" not in done.out


async def test_a_refused_request_names_the_fields() -> None:
    error = DragomanError(
        Reason.INVALID_REQUEST, "config.x: unknown", violations=[FieldViolation("config.x", "unknown")]
    )
    refused: list[Action] = [Silence(), Fail(error)]
    fake = fake_of(refused, refused)
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", "--config", "x=1", env=env)
        hint = "'dragoman describe ADAPTER' documents the settings"
        assert (done.code, done.out, done.err) == (2, "", f"error: config.x: unknown\n  {hint}\n")
        done = await dragoman("run", "fake", "hi", "--config", "x=1", "--json", env=env)
    assert json.loads(done.err)["error"]["fields"] == [{"path": "config.x", "description": "unknown"}]


async def test_no_router_is_there() -> None:
    done = await dragoman("run", "fake", "hi", "--router", "127.0.0.1:1")
    assert done.code == 1
    assert done.err.startswith("error: no server is reachable at 127.0.0.1:1\n  start a router with")


async def test_a_broken_stream_is_followed() -> None:
    first, second, third, last = hello(EventFactory())
    slow = Fail(DragomanError(Reason.SLOW_CONSUMER, "slow"))
    fake = fake_of([first, second, slow], [third, last])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", env=env)
    assert done.code == 0
    assert "hello\n" in done.out


async def test_every_option_reaches_the_request(tmp_path: Path) -> None:
    fake = fake_of(hello(EventFactory()))
    arguments = [
        *("--cwd", ".", "--model", "m", "--config", "a.b=[1]", "--config", "command=true"),
        *("--env", "K=v", "--env", "COPIED", "--label", "l=1", "--timeout", "1.5"),
        *("--idle-timeout", "60", "--tool-timeout", "900"),
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
        "batching": {},
        "promptTemplate": "ä {{runId}}\n",
        "workspace": {"cwd": str(tmp_path)},
        "model": "m",
        "config": {"a": {"b": [1.0]}, "command": "true"},
        "env": {"K": "v", "COPIED": "c"},
        "labels": {"l": "1"},
        "limits": {"wall": "1.500s", "idle": "60s", "toolCall": "900s"},
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
    fake = FakeAdapter(hello(EventFactory()), answers={"Describe": api.DescribeResponse(adapter="fake")})
    async with routed(fake) as env:
        await dragoman("run", "fake", "hi", env=env)
    assert not fake.requests("Execute")[0].HasField("workspace")


async def test_who_may_get_the_run_gets_a_directory_though_the_first_has_no_use_for_it(tmp_path: Path) -> None:
    described = api.DescribeResponse(adapter="fake", revision=1, instance_id="i")
    fake = FakeAdapter(hello(EventFactory()), answers={"Describe": described})
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", "--fallback", "process", env=env, cwd=tmp_path)
    assert done.code == 0
    assert fake.requests("Execute")[0].workspace.cwd == str(tmp_path)


@pytest.mark.parametrize("option", ["model", "task", "agent", "resume", "permission-mode", "run-id", "cwd"])
def test_an_empty_option_is_a_wrong_call(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fake", "hi", f"--{option}", ""]) == 2
    assert f"--{option}" in capsys.readouterr().err


async def test_unrecognised_lines_are_counted_and_shown_with_debug() -> None:
    def script() -> list[Action]:
        emit = EventFactory()
        capable = pb.Capabilities(items=[pb.Capability(feature=pb.FEATURE_TEXT_DELTAS)])
        odd = emit.started(capabilities=capable), emit.event(log=pb.Log(text="odd")), emit.succeeded()
        return list(odd)

    fake = fake_of(script(), script())
    async with routed(fake) as env:
        quiet = await dragoman("run", "fake", "hi", env=env)
        loud = await dragoman("run", "fake", "hi", "--debug", env=env)
    assert quiet.err == "1 line was not recognized; --debug shows them\n"
    assert "odd" not in quiet.out
    assert "│ odd\n" in loud.out


async def test_processes_that_are_not_confirmed_dead_are_reported() -> None:
    fake = fake_of([EventFactory().succeeded(tree_confirmed_dead=False)])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", "--run-id", "r1", env=env)
    assert done.err == "r1: its processes are NOT confirmed dead; check for them\n"


async def test_attach_follows_from_a_sequence() -> None:
    emit = EventFactory()
    fake = fake_of([emit.started(), emit.ephemeral(replay_done=pb.ReplayDone()), emit.succeeded()])
    async with routed(fake) as env:
        done = await dragoman("attach", "run-1", "--after", "0", "--hold", env=env)
    assert done.code == 0
    assert done.last_line.endswith("run run-1")
    assert fake.requests("Attach") == [api.AttachRequest(run_id="run-1", hold=True, batching=api.Batching())]


async def test_attach_from_a_later_sequence_shows_what_it_would_show_from_the_first() -> None:
    emit = EventFactory()
    begun = emit.started()  # of an adapter whose agent's lines are its answer
    later: list[Action] = [emit.event(log=pb.Log(text="two", stream=pb.OUTPUT_STREAM_STDOUT)), emit.succeeded()]
    fake = fake_of([begun, Until("never")], later)
    async with routed(fake) as env:
        done = await dragoman("attach", "run-1", "--after", "1", env=env)
    assert done.out.splitlines()[0] == "two"
    assert [request.after_sequence for request in fake.requests("Attach")] == [0, 1]
    assert not any(request.hold for request in fake.requests("Attach"))


async def test_programs_that_attach_from_a_later_sequence_get_only_that() -> None:
    emit = EventFactory()
    emit.sequence = 1
    fake = fake_of([emit.succeeded()])
    async with routed(fake) as env:
        done = await dragoman("attach", "run-1", "--after", "1", "--json", env=env)
    assert [json.loads(line)["sequence"] for line in done.out.splitlines()] == ["2"]
    assert len(fake.requests("Attach")) == 1


@pytest.mark.parametrize(("outcome", "code"), [(pb.OUTCOME_SUCCEEDED, 0), (pb.OUTCOME_FAILED, 1)])
async def test_attach_past_the_end_says_how_the_run_ended(outcome: pb.Outcome.ValueType, code: int) -> None:
    emit = EventFactory()
    begun, over = emit.started(), emit.result(outcome)
    fake = fake_of([begun, Until("never")], [], [over])
    async with routed(fake) as env:
        done = await dragoman("attach", "run-1", "--after", "2", env=env)
    assert (done.code, done.err) == (code, "")
    assert done.out.endswith("· run run-1\n")
    assert len(done.out.splitlines()) == 1


async def test_detach_uses_the_router_of_this_user(tmp_path: Path) -> None:
    (tmp_path / "dragoman").mkdir(mode=0o700)
    address = f"unix:{tmp_path / 'dragoman' / 'router.sock'}"
    async with serving(fake_of([EventFactory().started(), Until("never")]), address):
        done = await dragoman(
            "run", "fake", "hi", "--detach", "--run-id", "r1", env={"XDG_RUNTIME_DIR": str(tmp_path)}
        )
    assert (done.code, done.out, done.err) == (0, "r1\n", "")


async def test_detach_says_that_the_run_waits_for_a_slot() -> None:
    emit = EventFactory()
    queued = emit.ephemeral(state=pb.State(phase=pb.RUN_PHASE_QUEUED, reason="waiting for a slot of adapter 'fake'"))
    fake = fake_of([queued, emit.started(), Until("never")])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", "--detach", "--run-id", "r1", env=env)
    assert (done.code, done.out) == (0, "r1\n")
    assert done.err == "r1 waiting for a slot of adapter 'fake'\n"


async def test_detach_reports_a_run_that_failed_before_it_began() -> None:
    failure = pb.Failure(kind=pb.FAILURE_KIND_NOT_INSTALLED, message="Fake is not installed.")
    fake = fake_of([EventFactory().result(pb.OUTCOME_FAILED, failure=failure)])
    async with routed(fake) as env:
        done = await dragoman("run", "fake", "hi", "--detach", "--run-id", "r1", env=env)
    assert (done.code, done.out, done.err) == (1, "r1\n", "Fake is not installed.\n")


async def test_ctrl_c_before_a_detached_run_began_names_it() -> None:
    fake = fake_of([Until("never")])
    async with routed(fake) as env:
        process = await start("run", "fake", "hi", "--detach", "--run-id", "r1", env=env)
        await fake.gate("called Execute").wait()
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert (done.code, done.out) == (130, "")
    assert "detached from r1, which may still start; 'dragoman cancel r1' stops it\n" in done.err
