"""The commands that look and steer, as a program, against a scripted server."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dragoman.cli.commands.inspect import _settings
from dragoman.cli.display.text import columns as count_columns
from dragoman.cli.main import main
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.testkit.fakes.adapter import Action, EventFactory, Fail, FakeAdapter, Until
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from google.protobuf import duration_pb2, json_format, timestamp_pb2
from google.protobuf.message import Message

from tests.cli.program import DESCRIBED, dragoman, finish, routed, start, written_to

FOUND = api.DetectResponse(
    detections=[
        api.Detection(adapter="a", available=True, version="1.0", auth=api.AUTH_STATE_OK),
        api.Detection(adapter="b", confidence=api.DETECTION_CONFIDENCE_ABSENT, hint="install it"),
    ]
)


async def test_detect() -> None:
    fake = FakeAdapter(answers={"Detect": FOUND})
    async with routed(fake) as env:
        text = await dragoman("detect", env=env)
        machine = await dragoman("detect", "--refresh", "--json", env=env)
    assert text.code == 0
    assert (
        text.out == "✓ a v1.0 (auth: ok)\n✗ b (not installed, or not on PATH; install it)\n1 of 2 agents available\n"
    )
    parsed = [json_format.Parse(line, api.Detection()) for line in machine.out.splitlines()]
    assert parsed == list(FOUND.detections)
    assert [request.refresh for request in fake.requests("Detect")] == [False, True]


@pytest.mark.parametrize(("number", "code"), [(0, 0), (1, 1)])
async def test_detecting_one_agent_says_by_the_exit_code_whether_it_can_be_used(number: int, code: int) -> None:
    fake = FakeAdapter(answers={"Detect": api.DetectResponse(detections=[FOUND.detections[number]])})
    async with routed(fake) as env:
        assert (await dragoman("detect", "x", env=env)).code == code


async def test_adapters() -> None:
    since = timestamp_pb2.Timestamp(seconds=1_700_000_000)
    response = router_pb2.ListAdaptersResponse(
        adapters=[
            router_pb2.AdapterEntry(
                adapter="fake",
                state=router_pb2.ADAPTER_STATE_READY,
                source=router_pb2.ADAPTER_SOURCE_ENTRY_POINT,
                description=api.DescribeResponse(label="Fake", version="1.2", aliases=["fake_local"]),
                address="unix:/f.sock",
                pid=7,
                live_runs=2,
                since=since,
                remarks=["Process 6 was replaced."],
            ),
            router_pb2.AdapterEntry(
                adapter="odd",
                state=router_pb2.ADAPTER_STATE_REFUSED,
                source=router_pb2.ADAPTER_SOURCE_MANIFEST,
                origin="/m/odd.toml",
                reason="its alias is taken",
                since=since,
            ),
            router_pb2.AdapterEntry(
                adapter="own",
                state=router_pb2.ADAPTER_STATE_READY,
                source=router_pb2.ADAPTER_SOURCE_REGISTRATION,
                address="unix:/o.sock",
                lease_expires_at=since,
            ),
        ],
        router_pid=1,
    )
    fake = FakeAdapter(answers={"ListAdapters": response})
    async with routed(fake) as env:
        text = await dragoman("adapters", env=env)
        machine = await dragoman("adapters", "--json", "--describe", env=env)
    assert text.out == (
        "fake  ready    2023-11-14T22:13:20Z  1.2  2  entry point   unix:/f.sock pid 7\n"
        "    Process 6 was replaced.\n"
        "odd   refused  2023-11-14T22:13:20Z       0  manifest      /m/odd.toml\n"
        "    its alias is taken\n"
        "own   ready                               0  registration  unix:/o.sock until 22:13:20\n"
    )
    parsed = [json_format.Parse(line, router_pb2.AdapterEntry()) for line in machine.out.splitlines()]
    assert parsed == list(response.adapters)
    assert [request.describe for request in fake.requests("ListAdapters")] == [False, True]


async def test_restarting_an_adapter() -> None:
    entry = router_pb2.AdapterEntry(adapter="fake", pid=7)
    response = router_pb2.RestartAdapterResponse(adapter=entry, draining_runs=2)
    fake = FakeAdapter(answers={"RestartAdapter": response})
    async with routed(fake) as env:
        text = await dragoman("adapter", "restart", "fake", env=env)
        machine = await dragoman("adapter", "restart", "fake", "--now", "--json", env=env)
        limited = await dragoman("adapter", "restart", "fake", "--grace", "2.5", env=env)
        both = await dragoman("adapter", "restart", "fake", "--grace", "2", "--now", env=env)
    assert text.out == "fake: new process 7; 2 runs in the old one\n"
    assert json_format.Parse(machine.out, router_pb2.RestartAdapterResponse()) == response
    assert (limited.code, both.code) == (0, 2)
    assert "exclude each other" in both.err
    requests = fake.requests("RestartAdapter")
    assert [request.HasField("grace") for request in requests] == [False, True, True]
    assert [request.grace.ToNanoseconds() for request in requests] == [0, 0, 2_500_000_000]


async def test_restarting_an_adapter_without_a_router(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "", "DRAGOMAN_ROUTER": ""}
    done = await dragoman("adapter", "restart", "fake", env=env)
    assert done.code == 1
    assert re.fullmatch(
        r"error: no router is running at unix:.*router\.sock\n"
        r"  start one with 'dragoman serve', or give --router\n",
        done.err,
    )


async def test_describe() -> None:
    described = api.DescribeResponse()
    described.CopyFrom(DESCRIBED)
    described.configuration_doc = "# Fake\n\x1b[2JUse when testing.\n"
    described.models.add(id="m1", is_default=True)
    fake = FakeAdapter(answers={"Describe": described})
    async with routed(fake) as env:
        text = await dragoman("describe", "fake", env=env)
        machine = await dragoman("describe", "fake", "--json", env=env)
    assert text.out == (
        "Fake\nnames     fake\nversion   1 (protocol revision 1)\nfeatures  workspace, permission requests\n"
        "models    m1 (default)\nsetting   command (string)\n\n# Fake\n␛[2JUse when testing.\n"
    )
    assert json.loads(machine.out)["configSchemaJson"] == described.config_schema_json


@pytest.mark.parametrize(
    ("status", "code"), [(api.TEST_STATUS_PASS, 0), (api.TEST_STATUS_WARN, 0), (api.TEST_STATUS_FAIL, 1)]
)
async def test_test(status: api.TestStatus.ValueType, code: int) -> None:
    checks = [
        api.EnvironmentCheck(code="cwd_usable", level=pb.SEVERITY_INFO, message="fine"),
        api.EnvironmentCheck(code="api_key", level=pb.SEVERITY_WARNING, message="a key", hint="unset it"),
        api.EnvironmentCheck(
            code="slow",
            level=pb.SEVERITY_ERROR,
            message="bad",
            detail="x\ny",
            duration=duration_pb2.Duration(seconds=2),
        ),
    ]
    answer = api.TestEnvironmentResponse(adapter="fake", status=status, checks=checks)
    fake = FakeAdapter(answers={"Describe": DESCRIBED, "TestEnvironment": answer})
    async with routed(fake) as env:
        done = await dragoman(
            "test", "fake", "--live", "--cwd", "/x", "--model", "m", "--config", "command=1", "--env", "A=1", env=env
        )
    assert done.code == code
    assert done.out.startswith(
        "✓ fine [cwd_usable]\n! a key [api_key]\n    unset it\n✗ bad [slow] (2.0 s)\n    x\n    y\nfake: "
    )
    sent = json_format.MessageToDict(fake.requests("TestEnvironment")[0])
    assert sent == {
        "adapter": "fake",
        "mode": "TEST_MODE_LIVE",
        "config": {"command": "1"},
        "env": {"A": "1"},
        "workspace": {"cwd": "/x"},
        "model": "m",
        "timeout": "60s",
    }


@pytest.mark.parametrize(
    ("outcome", "proven", "code"),
    [
        ("CANCELLED", True, 0),
        ("CANCELLED", False, 1),
        ("CANCELLED", None, 0),
        ("LOST", None, 1),
    ],
)
async def test_cancel(outcome: str, proven: bool | None, code: int) -> None:
    answer = api.CancelResponse(outcome=pb.Outcome.Value(f"OUTCOME_{outcome}"), tree_confirmed_dead=proven)
    fake = FakeAdapter(answers={"Cancel": answer})
    async with routed(fake) as env:
        done = await dragoman("cancel", "run-1", "--grace", "0", "--reason", "why", env=env)
    assert done.code == code
    assert done.out.startswith(f"run-1: {outcome.lower()}; ")
    assert json_format.MessageToDict(fake.requests("Cancel")[0]) == {"runId": "run-1", "grace": "0s", "reason": "why"}


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "1e300", "1e12"])
@pytest.mark.parametrize(
    "command",
    [
        *(
            ["run", "fake", "hi", "--timeout"],
            ["run", "fake", "hi", "--idle-timeout"],
            ["run", "fake", "hi", "--tool-timeout"],
        ),
        *(["run", "fake", "hi", "--queue"], ["cancel", "r", "--grace"]),
    ],
)
def test_a_time_that_is_none_is_a_wrong_call(
    command: list[str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, number]) == 2
    assert command[-1] in capsys.readouterr().err


def test_a_time_with_a_unit_is_answered_with_what_is_expected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fake", "hi", "--timeout", "3s"]) == 2
    assert "'3s' is not a valid number of seconds" in capsys.readouterr().err


def test_a_sequence_that_cannot_be_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", "r", "--after", str(2**64)]) == 2
    assert "--after" in capsys.readouterr().err


async def test_cancelling_what_is_not_known() -> None:
    error = DragomanError(Reason.RUN_NOT_FOUND, "no run 'run-1' here")
    async with routed(FakeAdapter(answers={"Cancel": error})) as env:
        done = await dragoman("cancel", "run-1", env=env)
    assert (done.code, done.out) == (2, "")
    assert done.err == ("error: no run 'run-1' here\n  'dragoman runs' lists the runs\n")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--option", "a", "--option", "b", "--message", "m"], {"optionIds": ["a", "b"], "message": "m"}),
        (["--option", "a", "--input", '{"x": 1}'], {"optionIds": ["a"], "updatedInputJson": '{"x": 1}'}),
        (["--text", "words"], {"text": "words"}),
        (["--value", "5"], {"valueJson": "5"}),
    ],
)
async def test_respond(arguments: list[str], answer: dict[str, object]) -> None:
    fake = FakeAdapter(answers={"Respond": api.RespondResponse(sequence=9)})
    async with routed(fake) as env:
        done = await dragoman("respond", "run-1", "r1", *arguments, env=env)
    assert (done.code, done.out) == (0, "answered; recorded as event 9\n")
    sent = json_format.MessageToDict(fake.requests("Respond")[0])
    assert (sent["runId"], sent["requestId"], sent["answer"]) == ("run-1", "r1", answer)


@pytest.mark.parametrize(
    ("arguments", "rpc", "response"),
    [
        (["respond", "run-1", "r1", "--option", "a"], "Respond", api.RespondResponse(sequence=9)),
        (["send", "run-1", "Look."], "Send", api.SendResponse(sequence=9)),
        (["update", "run-1", "--model", "m"], "UpdateRun", api.UpdateRunResponse(sequence=9)),
    ],
)
async def test_calls_in_mid_run_print_json(arguments: list[str], rpc: str, response: Message) -> None:
    async with routed(FakeAdapter(answers={rpc: response})) as env:
        done = await dragoman(*arguments, "--json", env=env)
    assert (done.code, json.loads(done.out)) == (0, json_format.MessageToDict(response))


def test_an_interrupt_before_the_command_began_leaves_no_trace() -> None:
    code = "from dragoman.cli import main\ndef main_():\n raise KeyboardInterrupt\nmain.main = main_\nmain.script()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


async def test_runs() -> None:
    runs = [
        router_pb2.RunSummary(
            run_id="run-2",
            adapter="fake",
            phase=pb.RUN_PHASE_RUNNING,
            last_sequence=4,
            accepted_at=timestamp_pb2.Timestamp(seconds=1),
        ),
        router_pb2.RunSummary(run_id="run-1", adapter="fake", result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED)),
    ]
    fake = FakeAdapter(answers={"ListRuns": router_pb2.ListRunsResponse(runs=runs)})
    async with routed(fake) as env:
        text = await dragoman("runs", "--live", "--adapter", "fake", "--limit", "2", env=env)
        machine = await dragoman("runs", "--json", env=env)
    assert [line.split() for line in text.out.splitlines()] == [
        ["run-2", "running", "fake", "1970-01-01T00:00:01Z", "4"],
        ["run-1", "succeeded", "fake", "0"],
    ]
    assert len(json.loads(machine.out)["runs"]) == 2
    first = fake.requests("ListRuns")[0]
    assert (first.live_only, first.adapter, first.page_size) == (True, "fake", 2)


@pytest.mark.parametrize(
    ("columns", "task", "shown"),
    [
        (80, "", "RUN    STATE    ADAPTER  ACCEPTED (UTC)  SEQUENCE\nrun-2  running  fake     01-01 00:00:01  4\n"),
        (64, "T" * 30, "SEQUENCE  TASK\nrun-2  running  fake     01-01 00:00:01  4         TTTTTTTTTTTT…\n"),
        (50, "T" * 30, "SEQUENCE\nrun-2  running  fake     01-01 00:00:01  4\n"),
        (65, "エー" * 9, "SEQUENCE  TASK\nrun-2  running  fake     01-01 00:00:01  4         エーエーエー…\n"),
    ],
)
async def test_runs_fit_a_terminal(columns: int, task: str, shown: str) -> None:
    run = router_pb2.RunSummary(
        run_id="run-2", adapter="fake", phase=pb.RUN_PHASE_RUNNING, last_sequence=4, task_key=task
    )
    run.accepted_at.FromSeconds(1)
    fake = FakeAdapter(answers={"ListRuns": router_pb2.ListRunsResponse(runs=[run])})
    near, far = pty.openpty()
    async with routed(fake) as env:
        process = await start("runs", env={**env, "NO_COLOR": "1", "COLUMNS": str(columns)}, stdout=far)
        os.close(far)
        await finish(process)
    text = written_to(near)
    os.close(near)
    assert text.endswith(shown)
    assert all(count_columns(line) <= columns for line in text.splitlines())


async def test_labels_have_a_column_where_a_run_has_some() -> None:
    runs = [
        router_pb2.RunSummary(run_id="run-2", adapter="fake", labels={"team": "blue", "a": "b c"}, task_key="T-1"),
        router_pb2.RunSummary(run_id="run-1", adapter="fake", task_key="T-2"),
    ]
    async with routed(FakeAdapter(answers={"ListRuns": router_pb2.ListRunsResponse(runs=runs)})) as env:
        done = await dragoman("runs", env=env)
    first, second = done.out.splitlines()
    assert first.endswith("  a=b c,team=blue  T-1")
    assert second.endswith(f"{' ' * len('a=b c,team=blue')}  T-2")


async def test_a_list_of_runs_that_is_cut_says_so_at_a_terminal() -> None:
    runs = [router_pb2.RunSummary(run_id=f"run-{number}", adapter="fake") for number in range(3)]
    fake = FakeAdapter(answers={"ListRuns": router_pb2.ListRunsResponse(runs=runs)})
    near, far = pty.openpty()
    async with routed(fake) as env:
        piped = await dragoman("runs", "--limit", "2", env=env)
        process = await start("runs", "--limit", "2", env={**env, "NO_COLOR": "1"}, stdout=far)
        os.close(far)
        await finish(process)
    text = written_to(near)
    os.close(near)
    assert "run-2" not in text
    assert text.endswith("the newest 2 of more runs; --limit N lists N\n")
    assert len(piped.out.splitlines()) == 2


def test_settings_have_type_default_and_meaning() -> None:
    schema = {
        "required": ["command"],
        "properties": {
            "command": {"type": "string", "title": "Program", "description": "A name on PATH."},
            "graceSec": {
                "type": ["number", "null"],
                "default": 15,
                "description": "Seconds to wait. Then it is killed.",
            },
            "output": {"type": "string", "enum": ["", "text", "jsonl"], "default": "text"},
            "other": {"description": "One of many, e.g. this. Or not."},
            "titled": {"title": "A title"},
            "odd": True,
        },
    }
    assert list(_settings(json.dumps(schema))) == [
        "command (string, required): A name on PATH",
        "graceSec (number or null, default 15): Seconds to wait",
        'output (one of text, jsonl, default "text")',
        "other (any): One of many, e.g. this",
        "titled (any): A title",
        "odd (any)",
    ]
    assert [*_settings("{"), *_settings("[]"), *_settings('{"properties": 1}')] == []


async def test_no_runs_are_nothing_for_programs() -> None:
    async with routed(FakeAdapter(answers={"ListRuns": router_pb2.ListRunsResponse()})) as env:
        done = await dragoman("runs", env=env)
    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (pb.InputRequest(id="q", kind=pb.INPUT_KIND_SCHEMA), "--value JSON"),
        (pb.InputRequest(id="q", kind=pb.INPUT_KIND_TEXT), "--text ANSWER"),
        # Agents choose the IDs, and people paste the command into a shell.
        (pb.InputRequest(id="q", options=[pb.InputOption(id="a|b; c")]), "--option 'a|b; c'"),
    ],
)
async def test_show_says_how_other_questions_are_answered(asked: pb.InputRequest, answer: str) -> None:
    response = router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id="run-2"), pending_requests=[asked])
    async with routed(FakeAdapter(answers={"GetRun": response})) as env:
        done = await dragoman("show", "run-2", env=env)
    assert done.out.endswith(f"dragoman respond run-2 q {answer}\n")


@pytest.mark.parametrize("command", ["attach run-1", "cancel run-1", "respond run-1 q --text t"])
async def test_the_adapter_of_a_run_of_others_is_named(command: str) -> None:
    emit = EventFactory()
    answers = {"Cancel": api.CancelResponse(), "Respond": api.RespondResponse(sequence=1)}
    fake = FakeAdapter([emit.started(), emit.succeeded()], answers=answers)
    async with routed(fake) as env:
        await dragoman(*command.split(), "--adapter", "fake", env=env)
    [(_name, request)] = fake.calls
    assert request.adapter == "fake"


async def test_runs_are_asked_for_by_agent_task_mark_and_end() -> None:
    fake = FakeAdapter(answers={"ListRuns": router_pb2.ListRunsResponse()})
    filters = ("--agent", "a", "--task", "T-1", "--label", "team=blue", "--outcome", "failed")
    async with routed(fake) as env:
        await dragoman("runs", *filters, env=env)
    asked = fake.requests("ListRuns")[0]
    assert (asked.agent_id, asked.task_key, dict(asked.labels)) == ("a", "T-1", {"team": "blue"})
    assert asked.outcome == pb.OUTCOME_FAILED


async def test_show_prints_all_that_is_known_and_how_to_answer() -> None:
    run = router_pb2.RunSummary(
        run_id="run-2", adapter="fake", phase=pb.RUN_PHASE_WAITING_FOR_INPUT, task_key="T-1", labels={"team": "blue"}
    )
    run.remarks.append("It was cut.")
    asked = pb.InputRequest(id="q1", title="May I?", options=[pb.InputOption(id="yes"), pb.InputOption(id="no")])
    response = router_pb2.GetRunResponse(run=run, pending_requests=[asked])
    fake = FakeAdapter(answers={"GetRun": response})
    async with routed(fake) as env:
        text = await dragoman("show", "run-2", env=env)
        machine = await dragoman("show", "run-2", "--json", env=env)
    assert text.out == (
        "run-2\nstate     waiting for input\nadapter   fake\nsequence  0\ntask      T-1\nlabels    team=blue\n"
        "warning   It was cut.\nrequest   q1: May I?\n          dragoman respond run-2 q1 --option yes\n"
        "          dragoman respond run-2 q1 --option no\n"
    )
    assert json.loads(machine.out)["run"]["runId"] == "run-2"


async def test_an_unserved_method_is_reported_as_such() -> None:
    async with routed(FakeAdapter()) as env:
        done = await dragoman("runs", env=env)
    assert done.code == 1
    assert done.err.startswith("error: the server does not implement this call\n")


async def test_show_prints_of_an_ended_run_what_run_prints_at_its_end() -> None:
    emit = EventFactory(run_id="run-2")
    failure = pb.Failure(
        kind=pb.FAILURE_KIND_QUOTA_EXCEEDED,
        message="Used up.",
        login_url="https://example.com/login",
        retry_not_before=timestamp_pb2.Timestamp(seconds=86_400),
    )
    usage = pb.Usage(tokens=pb.TokenCounts(input=12, output=3), cost=pb.Cost(amount="0.5", currency="USD"))
    result = pb.Result(outcome=pb.OUTCOME_FAILED, failure=failure, usage=usage, fallback_candidates=["three"])
    result.model, result.provider, result.tree_confirmed_dead = "m-1", "acme", False
    result.duration.FromSeconds(2)
    run = router_pb2.RunSummary(run_id="run-2", adapter="two", attempt=2, company_id="acme", result=result)
    run.finished_at.FromSeconds(60)
    ended = pb.AttemptEnded(reason="it falls back", next_adapter="two")
    ended.failure.kind = pb.FAILURE_KIND_NETWORK
    script: list[Action] = [emit.started("one"), emit.event(attempt_ended=ended)]
    again = emit.started("two")
    again.attempt = 2
    fake = FakeAdapter([*script, again, Until("never")], answers={"GetRun": router_pb2.GetRunResponse(run=run)})
    async with routed(fake) as env:
        done = await dragoman("show", "run-2", env=env)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "run-2\nstate     failed\nadapter   two\nended     1970-01-01 00:01:00 UTC\nsequence  0\nattempt   2\n"
        "company   acme\nmodel     m-1 of acme\n"
        "✗ network (network)\n… trying again with two: it falls back\n"
        "✗ Used up. (quota exceeded)\n  log in at https://example.com/login\n"
        "  retry after 1970-01-02 00:00:00 UTC\n  available for fallback: three\n"
        "run-2: its processes are NOT confirmed dead; check for them\n"
        "failed in 2.0 s · 12 in / 3 out tokens · $0.5000 · run run-2\n"
    )


async def test_show_waits_only_briefly_for_attempts_that_are_not_reported() -> None:
    run = router_pb2.RunSummary(run_id="run-2", adapter="two", attempt=2, phase=pb.RUN_PHASE_RUNNING)
    fake = FakeAdapter([Until("never")], answers={"GetRun": router_pb2.GetRunResponse(run=run)})
    async with routed(fake) as env:
        done = await dragoman("show", "run-2", env=env)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("attempt   2\n")


async def test_show_does_without_attempts_that_are_no_longer_retained() -> None:
    run = router_pb2.RunSummary(run_id="run-2", adapter="two", attempt=2, phase=pb.RUN_PHASE_RUNNING)
    gone = Fail(DragomanError(Reason.RUN_NOT_FOUND, "no run 'run-2' here"))
    async with routed(FakeAdapter([gone], answers={"GetRun": router_pb2.GetRunResponse(run=run)})) as env:
        done = await dragoman("show", "run-2", env=env)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("attempt   2\n")


@pytest.mark.parametrize(
    ("result", "line"),
    [(pb.Result(exit_code=3), "  exit code 3\n"), (pb.Result(signal="SIGTERM"), "  ended by SIGTERM\n")],
)
async def test_show_says_how_the_agent_ended(result: pb.Result, line: str) -> None:
    result.outcome = pb.OUTCOME_FAILED
    response = router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id="run-2", result=result))
    async with routed(FakeAdapter(answers={"GetRun": response})) as env:
        done = await dragoman("show", "run-2", env=env)
    assert line in done.out
