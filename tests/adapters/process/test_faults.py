"""The fault matrix: programs that behave badly, through a real server. What holds after each, the arena checks."""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from dragoman.adapters.process.adapter import ProcessAdapter
from dragoman.protocol.errors import Reason
from dragoman.protocol.limits import MAX_EVENT_BYTES, MAX_LINE_BYTES, MIB
from dragoman.sdk import Job, Plan
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.adapters.process.arena import SECRETS, Arena, duration
from tests.adapters.process.journal import facts, journalled, received
from tests.hostile import hostile
from tests.sdk.running import kinds
from tests.sdk.serving import DEADLINE_S, refusal

S, F, C, T = pb.OUTCOME_SUCCEEDED, pb.OUTCOME_FAILED, pb.OUTCOME_CANCELLED, pb.OUTCOME_TIMED_OUT
JSON = {"output": "jsonl"}


def names(result: pb.Result) -> tuple[str, str]:
    """Return outcome and failure kind in words, for readable assertions."""
    return (
        pb.Outcome.Name(result.outcome).removeprefix("OUTCOME_"),
        pb.FailureKind.Name(result.failure.kind).removeprefix("FAILURE_KIND_"),
    )


# Programs that will not die.


async def test_one_that_ignores_every_signal_is_killed_after_the_grace(arena: Arena) -> None:
    stream = arena.begin(arena.agent("deaf", "out=ready", "hang"))
    run_id = (await stream.until("log")).run_id
    answer = await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id), timeout=DEADLINE_S)
    result = (await stream.until("result")).result
    assert answer.outcome == result.outcome == C
    assert answer.tree_confirmed_dead
    assert result.tree_confirmed_dead
    assert result.signal == "SIGKILL"
    assert not result.HasField("exit_code")


async def test_one_that_obeys_ends_by_the_first_signal(arena: Arena) -> None:
    stream = arena.begin(arena.agent("out=ready", "hang"))
    run_id = (await stream.until("log")).run_id
    await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id, grace=duration(DEADLINE_S)), timeout=DEADLINE_S)
    assert (await stream.until("result")).result.signal == "SIGTERM"


async def test_a_second_cancel_without_grace_kills_now(arena: Arena) -> None:
    stream = arena.begin(arena.agent("deaf", "out=ready", "hang"))
    run_id = (await stream.until("log")).run_id
    cancel = arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id, grace=duration(1000)))
    await stream.until("state")
    now = await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id, grace=duration(0)), timeout=DEADLINE_S)
    assert now == await cancel
    assert now.tree_confirmed_dead


@pytest.mark.parametrize("how", ["daemon", "daemon=wiped"])
@pytest.mark.parametrize("deaf", [[], ["deaf"]], ids=["", "deaf"])
async def test_daemons_do_not_outlive_their_run(arena: Arena, how: str, deaf: list[str]) -> None:
    result = await arena.result(arena.agent(*deaf, how, how, "out=done", "exit=0"))
    assert names(result) == ("SUCCEEDED", "UNSPECIFIED")
    assert result.exit_code == 0
    assert result.tree_confirmed_dead
    assert len(facts(arena.entries(), "daemon")) == 2


async def test_daemons_are_cancelled_too(arena: Arena) -> None:
    stream = arena.begin(arena.agent("deaf", "daemon=wiped", "out=ready", "hang"))
    run_id = (await stream.until("log")).run_id
    await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id), timeout=DEADLINE_S)
    assert (await stream.until("result")).result.tree_confirmed_dead


@pytest.mark.parametrize(("script", "args"), [("forkers", ["3"]), ("respawner", []), ("respawner", ["sessions"])])
async def test_what_forks_faster_than_it_dies_is_ended_whole(arena: Arena, script: str, args: list[str]) -> None:
    stream = arena.begin(arena.hostile(script, *args))
    run_id = (await stream.until("log")).run_id
    answer = await arena.sidecar.stub.Cancel(api.CancelRequest(run_id=run_id, grace=duration(0)), timeout=DEADLINE_S)
    assert answer.tree_confirmed_dead


async def test_one_that_was_stopped_is_woken_to_die(arena: Arena) -> None:
    stream = arena.begin(arena.hostile("stops_itself"))
    run_id = (await stream.until("log")).run_id
    answer = await arena.sidecar.stub.Cancel(
        api.CancelRequest(run_id=run_id, grace=duration(DEADLINE_S)), timeout=DEADLINE_S
    )
    assert answer.outcome == C
    assert (await stream.until("result")).result.signal == "SIGTERM"


async def test_one_that_another_process_kills_has_crashed(arena: Arena) -> None:
    stream = arena.begin(arena.agent("out=ready", "hang"))
    pid = (await stream.until("state")).state.pid or (await stream.until("state")).state.pid
    await stream.until("log")
    os.kill(pid, signal.SIGKILL)
    result = (await stream.until("result")).result
    assert names(result) == ("FAILED", "PROCESS_CRASHED")
    assert result.signal == "SIGKILL"
    assert result.failure.retryable
    assert result.raw_head == "[1] ready\n"


async def test_one_that_crashes_by_itself(arena: Arena) -> None:
    result = await arena.result(arena.agent("err=final output", "kill=11"))
    assert names(result) == ("FAILED", "PROCESS_CRASHED")
    assert result.signal == "SIGSEGV"
    assert "final output" in result.failure.message


# Output.


async def test_a_flood_on_both_pipes_comes_through_whole(arena: Arena) -> None:
    events = await arena.run(arena.agent("flood=5000"))
    assert received(events) == journalled(arena.entries())
    counters = events[-1].result.counters
    assert counters.stdout_bytes + counters.stderr_bytes > 2 * 5000 * 200
    assert counters.dropped_bytes == 0


async def test_one_that_closes_its_output_and_lives_on(arena: Arena) -> None:
    events = await arena.run(arena.agent("out=bye", "close", "stdin", "exit=7"))
    assert [event.log.text for event in events if event.HasField("log")] == ["[1] bye"]
    assert events[-1].result.exit_code == 7
    assert names(events[-1].result) == ("FAILED", "PROCESS_CRASHED")


async def test_one_that_falls_silent_for_ever_is_ended_by_its_clock(arena: Arena) -> None:
    request = arena.agent("out=bye", "close", "hang")
    request.limits.idle.CopyFrom(duration(0.2))
    assert names(await arena.result(request)) == ("TIMED_OUT", "IDLE_TIMEOUT")


async def test_half_a_character_at_the_end(arena: Arena) -> None:
    events = await arena.run(arena.agent("raw=41e282"))
    (log,) = (event.log for event in events if event.HasField("log"))
    assert (log.text, log.raw, log.unterminated) == ("A\ufffd", b"A\xe2\x82", True)


async def test_a_character_in_two_writes_is_one(arena: Arena) -> None:
    events = await arena.run(arena.agent("raw=e2", "raw=82", "raw=ac0a"))
    (log,) = (event.log for event in events if event.HasField("log"))
    assert (log.text, log.raw) == ("€", b"")


async def test_bytes_that_are_no_text_at_all(arena: Arena) -> None:
    events = await arena.run(arena.agent("raw=00ff0a", "raw=80810a", "raw=0d0a", "raw=e280a80a", **JSON))
    logs = [event.log for event in events if event.HasField("log")]
    assert [log.raw or log.text.encode() for log in logs] == [b"\x00\xff", b"\x80\x81", b"", "\u2028".encode()]
    assert names(events[-1].result) == ("FAILED", "UNPARSEABLE_OUTPUT")


async def test_half_a_surrogate_pair_in_json(arena: Arena) -> None:
    line = b'{"type":"assistant","text":"a\\ud800b"}\n{"type":"result","text":"\\udfff"}\n'
    events = await arena.run(arena.agent(f"raw={line.hex()}", **JSON))
    assert [event.text.whole for event in events if event.HasField("text")] == ["a\ufffdb"]
    assert events[-1].result.summary == "\ufffd"


async def test_a_line_of_20_mib_is_cut_counted_and_reported(arena: Arena) -> None:
    events = await arena.run(arena.agent(f"long={20 * MIB}", "out=after"))
    first, second = (event for event in events if event.HasField("log"))
    assert first.ByteSize() <= MAX_EVENT_BYTES
    assert len(first.log.text) + first.log.truncated_bytes == 20 * MIB
    assert second.log.text == "[2] after"
    (notice,) = (event.notice for event in events if event.HasField("notice"))
    assert notice.code == "line_too_long"
    assert events[-1].result.counters.dropped_bytes == 20 * MIB - MAX_LINE_BYTES


async def test_a_json_line_of_20_mib_takes_nothing_with_it(arena: Arena) -> None:
    events = await arena.run(arena.agent("answer=before", f"long={20 * MIB}", "answer=after", "result=ok", **JSON))
    assert [event.text.whole for event in events if event.HasField("text")] == ["[1] before", "[3] after"]
    assert names(events[-1].result) == ("SUCCEEDED", "UNSPECIFIED")


async def test_more_output_than_allowed_is_dropped_counted_and_reported(arena: Arena) -> None:
    request = arena.agent("out=" + "a" * 50, "out=" + "b" * 50, "err=" + "c" * 50)
    request.limits.output_bytes = 70
    events = await arena.run(request)
    logs = [event.log for event in events if event.HasField("log")]
    assert sum(len(log.text) + (not log.unterminated) for log in logs) == 70
    (notice,) = (event.notice for event in events if event.HasField("notice"))
    assert notice.code == "output_cut"
    counters = events[-1].result.counters
    assert counters.stdout_bytes + counters.stderr_bytes == 3 * 55
    assert counters.dropped_bytes == 3 * 55 - 70
    assert names(events[-1].result)[0] == "SUCCEEDED"


# The reported end.


@pytest.mark.parametrize(
    ("steps", "config", "ended"),
    [
        (["result=ok", "exit=1"], JSON, ("SUCCEEDED", "UNSPECIFIED")),
        (["result=error", "exit=0"], JSON, ("FAILED", "PROCESS_CRASHED")),
        (["answer=hello", "exit=0"], JSON, ("SUCCEEDED", "UNSPECIFIED")),
        (["answer=hello", "exit=1"], JSON, ("FAILED", "PROCESS_CRASHED")),
        (["out=no JSON", "exit=1"], JSON, ("FAILED", "UNPARSEABLE_OUTPUT")),
        (["exit=0"], JSON, ("SUCCEEDED", "UNSPECIFIED")),
        (["exit=0"], {}, ("SUCCEEDED", "UNSPECIFIED")),
        (["out=hello", "exit=3"], {}, ("FAILED", "PROCESS_CRASHED")),
        (["err=noise", "err=more noise", "result=ok"], JSON, ("SUCCEEDED", "UNSPECIFIED")),
        (["err=panic: not really", "out=ok"], {}, ("SUCCEEDED", "UNSPECIFIED")),
    ],
)
async def test_the_word_the_exit_code_the_noise(
    arena: Arena, steps: list[str], config: dict[str, str], ended: tuple[str, str]
) -> None:
    result = await arena.result(arena.agent(*steps, **config))
    assert names(result) == ended
    code = next((int(step.removeprefix("exit=")) for step in steps if step.startswith("exit=")), 0)
    assert result.exit_code == code, "the code is data, whatever the outcome"


async def test_output_after_the_result_is_emitted_before_the_end(arena: Arena) -> None:
    events = await arena.run(arena.agent("result=ok", "answer=too late", "err=and this", "result=error", **JSON))
    emitted = received(events)
    assert emitted == journalled(arena.entries())
    assert kinds(events).count("result") == 1


@pytest.mark.own_adapter
async def test_one_that_lingers_after_its_last_word_has_succeeded(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessAdapter, "spec", replace(ProcessAdapter.spec, linger_s=0.2))
    result = await arena.result(arena.agent("deaf", "result=ok", "hang", **JSON))
    assert names(result) == ("SUCCEEDED", "UNSPECIFIED")
    assert result.signal == "SIGKILL"


async def test_the_summary_is_the_last_output(arena: Arena) -> None:
    lines = await arena.result(arena.agent(*(f"out=line {number}" for number in range(8))))
    assert lines.summary.split("\n") == [f"[{number + 1}] line {number}" for number in range(3, 8)]
    answers = await arena.result(arena.agent("answer=one", "piece=two", "piece= three", **JSON))
    assert answers.summary == "[2] two[3]  three"


# Clocks.


@pytest.mark.parametrize(
    ("clock", "steps", "kind"),
    [
        ("start_up", ["hang"], "START_TIMEOUT"),
        ("idle", ["out=ready", "hang"], "IDLE_TIMEOUT"),
        ("idle", ["hang"], "IDLE_TIMEOUT"),
        ("wall", ["out=ready", "hang"], "WALL_TIMEOUT"),
        ("wall", ["deaf", "daemon=wiped", "out=ready", "hang"], "WALL_TIMEOUT"),
    ],
)
async def test_each_clock_ends_its_run(arena: Arena, clock: str, steps: list[str], kind: str) -> None:
    request = arena.agent(*steps)
    getattr(request.limits, clock).CopyFrom(duration(0.4))
    events = await arena.run(request)
    result = events[-1].result
    assert names(result) == ("TIMED_OUT", kind)
    assert result.failure.code == f"{clock}_timeout"
    assert result.tree_confirmed_dead
    assert getattr(events[0].started.limits, clock) == duration(0.4)


async def test_paperclips_timeout_is_the_wall_clock(arena: Arena) -> None:
    result = await arena.result(arena.agent("hang", timeoutSec=0.3))
    assert names(result) == ("TIMED_OUT", "WALL_TIMEOUT")


async def test_a_program_that_ended_in_time_is_not_blamed_for_its_daemons(arena: Arena) -> None:
    """A deaf daemon takes a second to be swept; the clocks are not about it, and leave time to begin."""
    request = arena.agent("deaf", "daemon", "out=done", "exit=0")
    request.limits.idle.CopyFrom(duration(0.8))
    result = await arena.result(request)
    assert names(result) == ("SUCCEEDED", "UNSPECIFIED")


# Starting.


@pytest.mark.parametrize("command", ["no-such-program", "/nowhere/no-such-program"])
async def test_what_is_not_installed_is_reported_after_started(arena: Arena, command: str) -> None:
    events = await arena.run(arena.request(command))
    assert kinds(events) == ["started", "state", "result"]
    assert names(events[-1].result) == ("FAILED", "NOT_INSTALLED")
    assert events[0].started.command == command
    assert command in events[-1].result.failure.message
    assert events[-1].result.tree_confirmed_dead


async def test_a_program_of_the_workspace_is_not_run_by_its_name(arena: Arena) -> None:
    """A repository may hold programs of any name; a path runs them, a name only from the run's PATH."""
    request = arena.request("just-here")
    script = Path(request.workspace.cwd) / "just-here"
    script.write_text("#!/bin/sh\necho here\n")
    script.chmod(0o755)
    result = await arena.result(request)
    script.unlink()
    assert names(result) == ("FAILED", "NOT_INSTALLED")


async def test_what_cannot_be_started(arena: Arena, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    assert names(await arena.result(arena.request(str(script)))) == ("FAILED", "NOT_INSTALLED")
    script.chmod(0o644)
    assert names(await arena.result(arena.request(str(script)))) == ("FAILED", "SPAWN_FAILED")
    result = await arena.result(arena.agent("out={{prompt}}", prompt="x" * MIB, promptVia="args"))
    assert names(result) == ("FAILED", "SPAWN_FAILED")
    assert "E2BIG" in result.failure.message


@pytest.mark.own_adapter
async def test_a_workspace_that_vanishes_before_the_start(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing = tmp_path / "vanishing"
    vanishing.mkdir()
    request = arena.agent("out=hello")
    request.workspace.cwd = str(vanishing)
    plan = ProcessAdapter.plan

    def plan_and_remove(self: ProcessAdapter, job: Job) -> Plan:
        vanishing.rmdir()
        return plan(self, job)

    monkeypatch.setattr(ProcessAdapter, "plan", plan_and_remove)
    assert names(await arena.result(request)) == ("FAILED", "WORKSPACE_FAILED")


@pytest.mark.parametrize(
    ("spoil", "path"),
    [
        (lambda r: r.ClearField("workspace"), "workspace.cwd"),
        (lambda r: setattr(r.workspace, "cwd", "relative"), "workspace.cwd"),
        (lambda r: setattr(r.workspace, "cwd", "/nowhere"), "workspace.cwd"),
        (lambda r: r.config.update({"cmmand": "x"}), "config.cmmand"),
        (lambda r: r.config.update({"args": "x"}), "config.args"),
        (lambda r: r.config.update({"output": "xml"}), "config.output"),
        (lambda r: r.config.update({"env": {"A=B": "x"}}), "config.env"),
    ],
)
async def test_a_wrong_request_is_a_status_and_starts_nothing(
    arena: Arena, spoil: Callable[[api.ExecuteRequest], None], path: str
) -> None:
    request = arena.agent("out=hello")
    spoil(request)
    error = await refusal(arena.run(request))
    assert error.reason is Reason.INVALID_REQUEST
    assert [item.path for item in error.violations] == [path]
    assert arena.entries() == []
    if path == "config.cmmand":
        assert "did you mean command?" in error.message


# Prompt and environment.


@pytest.mark.parametrize("prompt", ["", "do it\n", "ü" * (MIB // 2)], ids=["empty", "short", "1 MB"])
async def test_the_prompt_arrives_whole_by_standard_input(arena: Arena, prompt: str) -> None:
    events = await arena.run(arena.agent("stdin", prompt=prompt))
    (got,) = facts(arena.entries(), "stdin")
    assert got == {"is": "stdin", **_digest(prompt)}
    assert events[0].started.prompt_bytes["prompt"] == len(prompt.encode())


async def test_a_prompt_of_a_megabyte_by_file(arena: Arena) -> None:
    prompt = "ü" * (MIB // 2)
    request = arena.agent("cat=PAPERCLIP_PROMPT_FILE", "stdin", prompt=prompt, promptVia="file")
    request.brand.env_prefix = "PAPERCLIP"
    await arena.run(request)
    assert facts(arena.entries(), "cat") == [{"is": "cat", **_digest(prompt)}]
    assert facts(arena.entries(), "stdin") == [{"is": "stdin", **_digest("")}]


async def test_one_that_does_not_read_its_prompt(arena: Arena) -> None:
    assert names(await arena.result(arena.agent("out=done", prompt="x" * MIB)))[0] == "SUCCEEDED"


async def test_a_prompt_as_an_argument_is_masked(arena: Arena) -> None:
    request = arena.agent("args", "out={{prompt}}", "out={{cwd}} {{runId}}", prompt="write a poem", promptVia="args")
    request.run_id = "run-7"
    events = await arena.run(request)
    (entry,) = facts(arena.entries(), "args")
    assert entry["args"][-2:] == ["out=write a poem", f"out={arena.workspace} run-7"]
    assert list(events[0].started.argv)[-2] == "out=[prompt: 12 bytes]"


@pytest.mark.parametrize(
    ("brand", "prefix"), [("Paperclip", "PAPERCLIP"), ("Galyarder", "GALYARDER"), ("CoHalo", "COHALO")]
)
async def test_every_variable_arrives_in_the_program(
    arena: Arena, brand: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{prefix}_STRAY", "of the server")
    monkeypatch.setenv("SERVER_ONLY", "of the server")
    request = arena.agent(f"env={prefix}_", "env=SERVER_ONLY", "env=CONFIG_", "env=ENV_")
    request.brand.name, request.brand.env_prefix = brand, prefix
    request.run_id = "run-7"
    request.agent.id, request.agent.company_id = "agent-1", "company-1"
    request.api_url = "http://127.0.0.1:3100"
    request.context.MergeFrom(
        api.Context(
            task_id="task-1",
            wake_reason="comment",
            wake_comment_id="comment-1",
            approval_id="approval-1",
            approval_status="approved",
            linked_issue_ids=["issue-1", "issue-2"],
        )
    )
    events = await arena.run(request)
    branded, server, config, env = (entry["env"] for entry in facts(arena.entries(), "env"))
    described = await arena.sidecar.stub.Describe(api.DescribeRequest())
    if pb.FEATURE_ARTIFACTS in {item.feature for item in described.capabilities.items}:
        assert Path(branded.pop(f"{prefix}_ARTIFACTS")).name == "artifacts"
    assert branded == {
        f"{prefix}_AGENT_ID": "agent-1",
        f"{prefix}_COMPANY_ID": "company-1",
        f"{prefix}_API_URL": "http://127.0.0.1:3100",
        f"{prefix}_RUN_ID": "run-7",
        f"{prefix}_TASK_ID": "task-1",
        f"{prefix}_WAKE_REASON": "comment",
        f"{prefix}_WAKE_COMMENT_ID": "comment-1",
        f"{prefix}_APPROVAL_ID": "approval-1",
        f"{prefix}_APPROVAL_STATUS": "approved",
        f"{prefix}_LINKED_ISSUE_IDS": "issue-1,issue-2",
        f"{prefix}_API_KEY": SECRETS[0],
    }
    assert server == {}
    assert config == {"CONFIG_SECRET": SECRETS[2]}
    assert env == {"ENV_SECRET": SECRETS[1]}
    shown = events[0].started.env
    assert shown[f"{prefix}_API_KEY"] == shown["ENV_SECRET"] == shown["CONFIG_SECRET"] == "[redacted]"
    assert shown[f"{prefix}_TASK_ID"] == "task-1"


# Secrets.


async def test_a_secret_on_both_streams_is_redacted(arena: Arena) -> None:
    steps = ["out=$ENV_SECRET", "err=$CONFIG_SECRET", "out=$DRAGOMAN_API_KEY", "exit=1"]
    events = await arena.run(arena.agent(*steps))
    shown = [event.log.text for event in events if event.HasField("log")]
    assert sorted(shown) == ["[1] [redacted]", "[2] [redacted]", "[3] [redacted]"]
    result = events[-1].result
    assert "[redacted]" in result.raw_head
    assert "[redacted]" in result.failure.message


@pytest.mark.parametrize("secret", SECRETS, ids=["token", "env", "config.env"])
async def test_a_secret_is_in_no_label_and_no_refusal(arena: Arena, secret: str) -> None:
    """The arena looks for it in the log, too."""
    request = arena.agent("out=x")
    request.labels["note"] = f"made with {secret}"
    started = (await arena.run(request))[0].started
    assert dict(started.labels) == {"note": "made with [redacted]"}
    request = arena.agent("out=x")
    request.config.update({secret: 1, "output": secret, "timeoutSec": secret})
    error = await refusal(arena.begin(request).rest())
    assert error.reason is Reason.INVALID_REQUEST
    assert any(item.path == "config.[redacted]" for item in error.violations)
    assert secret not in f"{error}{error.metadata}{error.details}"


async def test_a_secret_in_two_writes_is_redacted(arena: Arena) -> None:
    first, second = SECRETS[1][:7], SECRETS[1][7:]
    events = await arena.run(arena.agent(f"raw={first.encode().hex()}", f"raw={second.encode().hex()}0a"))
    assert [event.log.text for event in events if event.HasField("log")] == ["[redacted]"]


async def test_a_secret_in_two_pieces_of_an_answer_is_redacted(arena: Arena) -> None:
    lines = [f'{{"type":"assistant","delta":true,"text":"{part}"}}\n' for part in (SECRETS[1][:7], SECRETS[1][7:])]
    steps = [f"raw={line.encode().hex()}" for line in lines]
    request = arena.agent(
        *steps, "answer=$ENV_SECRET", "thinking=$ENV_SECRET", "tool=$ENV_SECRET", "result=ok", **JSON
    )
    request.include_native = True
    events = await arena.run(request)
    assert received(events)["stdout"][0].text == "[redacted]"
    assert all("very-secret" not in event.native.text for event in events)
    assert any(event.native.text for event in events)


async def test_a_secret_at_every_cut_is_redacted_whole(arena: Arena) -> None:
    """Heads, tails, summaries and budgets cut; half a secret must not stand at any edge."""
    secret = SECRETS[1]
    for pad in range(16 * 1024 - len(secret) - 2, 16 * 1024, 11):
        events = await arena.run(arena.agent(f"raw={(b'x' * pad + secret.encode() + b'y' * 40_000).hex()}", "exit=1"))
        assert not any(secret[:6].encode() in event.SerializeToString() for event in events)
    for pad in (385, 395, 399):
        events = await arena.run(arena.agent(f"out={'w ' * (pad // 2)}{secret} and more", "out=x"))
        assert not any(secret[:6].encode() in event.SerializeToString() for event in events)
    for budget in range(10, 10 + len(secret), 3):
        request = arena.agent(f"out=12345{secret}")
        request.limits.output_bytes = budget
        events = await arena.run(request)
        assert not any(secret[:6].encode() in event.SerializeToString() for event in events)


async def test_a_secret_too_short_to_be_looked_for_is_hidden_by_its_name(arena: Arena) -> None:
    request = arena.agent("exit=0", env={"MY_API_KEY": "abc", "PLAIN": "abc"})
    shown = (await arena.run(request))[0].started.env
    assert (shown["MY_API_KEY"], shown["PLAIN"]) == ("[redacted]", "abc")


async def test_no_secret_is_on_any_command_line(arena: Arena) -> None:
    stream = arena.begin(arena.agent("out=ready", "await"))
    await stream.until("log")
    assert arena.secrets_in_command_lines() == []
    await stream.rest()


async def test_a_secret_that_the_caller_puts_into_the_arguments_is_not_emitted(arena: Arena) -> None:
    request = arena.request("true", f"--token={SECRETS[1]}", "--api-key", "unknown-0815", SECRETS[2])
    started = (await arena.run(request))[0].started
    assert list(started.argv)[1:] == ["--token=[redacted]", "--api-key", "[redacted]", "[redacted]"]


# Several at once, and callers that leave.


async def test_two_runs_at_once_have_nothing_in_common(arena: Arena, tmp_path: Path) -> None:
    requests = []
    for number in (1, 2):
        arena.journal = tmp_path / f"journal-{number}"
        requests.append(arena.agent(*[f"out=of {number}"] * 200, "env=TMPDIR"))
    streams = await asyncio.gather(*(arena.run(request) for request in requests))
    directories = set()
    for number, events in enumerate(streams, 1):
        arena.journal = tmp_path / f"journal-{number}"
        assert received(events) == journalled(arena.entries())
        directories.add(facts(arena.entries(), "env")[0]["env"]["TMPDIR"])
    assert len(directories) == 2


async def test_a_caller_who_leaves_leaves_nothing(arena: Arena) -> None:
    request = arena.agent("deaf", "daemon=wiped", "out=ready", "hang")
    request.ClearField("orphan_after")
    stream = arena.begin(request)
    run_id = (await stream.until("log")).run_id
    stream.cancel()
    assert names((await arena.sidecar.attach(run_id))[-1].result)[0] == "CANCELLED"
    assert arena.left() == []


async def test_a_caller_who_comes_back_misses_nothing(arena: Arena) -> None:
    stream = arena.begin(arena.agent("out=one", "await", "out=two"))
    seen = [await stream.until("started"), await stream.until("log")]
    run_id = seen[0].run_id
    stream.cancel()
    rest = await arena.sidecar.attach(run_id, seen[-1].sequence)
    assert [event.log.text for event in rest if event.HasField("log")] == ["[2] two"]


async def test_what_an_agent_leaves_in_its_temporary_directory_goes(arena: Arena) -> None:
    code = (
        "import os, pathlib; root = pathlib.Path(os.environ['TMPDIR']);"
        "(root / 'deep' / 'er').mkdir(parents=True); (root / 'deep' / 'er' / 'f').write_text('x');"
        "(root / 'deep').chmod(0); print(root)"
    )
    result = await arena.result(arena.request(sys.executable, "-c", code))
    assert result.summary.startswith(str(arena.run_directories))


async def test_the_workspace_is_the_working_directory_and_its_new_files_stay(arena: Arena) -> None:
    await arena.run(arena.agent("write=made.txt"))
    written = arena.workspace / "made.txt"
    assert written.read_text() == "written by the agent"
    written.unlink()


def test_hostile_scripts_are_where_they_are_looked_for() -> None:
    assert Path(hostile("floods")[-1]).is_file()


def _digest(text: str) -> dict[str, object]:
    return {"bytes": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}
