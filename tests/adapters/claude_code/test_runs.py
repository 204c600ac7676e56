"""Whole runs of a program that passes for Claude Code: its recordings, and the ways in which programs fail."""

from pathlib import Path

import pytest
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.claude_code.pretender import Pretender
from tests.adapters.claude_code.replay import INDEX, recorded, replay, resumes

SUCCEEDED, FAILED = pb.OUTCOME_SUCCEEDED, pb.OUTCOME_FAILED
OLD_ID = "22222222-2222-4222-8222-222222222222"
RESULT = b'{"type":"result","subtype":"success","is_error":false,"result":"Done."}\n'


@pytest.fixture
def claude(tmp_path: Path) -> Pretender:
    return Pretender(tmp_path)


def kinds(events: list[pb.AgentEvent]) -> list[str]:
    return [event.WhichOneof("body") or "" for event in events]


@pytest.mark.parametrize(
    "name",
    [
        *("text", "thinking", "write", "parallel_tools", "subagent", "tasks", "compact", "retry_cut", "background"),
        *("permission_denied_by_mode", "error_401", "error_quota", "error_refusal", "max_turns", "unicode"),
    ],
)
async def test_a_recorded_run_ends_as_it_did(claude: Pretender, name: str) -> None:
    claude.acts(claude.says("out", recorded(name)), f"exit {INDEX[name]['exit_code']}")
    events = await claude.run()
    outputs, report = replay(name)
    assert report.terminal is not None
    result = events[-1].result
    assert (result.outcome == SUCCEEDED) == report.terminal.succeeded
    assert result.exit_code == INDEX[name]["exit_code"]
    if report.terminal.failure is not None:
        assert (result.failure.kind, result.failure.code) == (
            report.terminal.failure.kind,
            report.terminal.failure.code,
        )
    assert result.summary == report.summary
    assert result.counters.unparsed_lines == 0
    emitted = {kind for kind in kinds(events) if kind not in {"started", "state", "result"}}
    assert emitted == {output.WhichOneof("body") for output in outputs if isinstance(output, pb.AgentEvent)} - {
        "state"
    }


@pytest.mark.parametrize(
    ("script", "outcome", "kind", "code"),
    [
        # Its word outranks its exit code, in both directions.
        ("cat result; exit 1", SUCCEEDED, "UNSPECIFIED", ""),
        ("exit 0", FAILED, "NO_RESULT", "no_result"),
        ("exit 3", FAILED, "PROCESS_CRASHED", "exit_code"),
        ("kill -9 $$", FAILED, "PROCESS_CRASHED", "signal"),
        ("cat init; kill -9 $$", FAILED, "PROCESS_CRASHED", "signal"),
        ("cat init; exit 0", FAILED, "NO_RESULT", "no_result"),
        ("echo 'Killed by a bug at line 7'; exit 1", FAILED, "UNPARSEABLE_OUTPUT", "exit_code"),
        ("echo \"error: unknown option '--x'\" >&2; exit 1", FAILED, "INVALID_CONFIG", "claude_bad_option"),
        # What it prints besides does not matter.
        ("echo noise >&2; cat result; echo more noise >&2", SUCCEEDED, "UNSPECIFIED", ""),
        ("echo not JSON; cat result", SUCCEEDED, "UNSPECIFIED", ""),
        ("cat result; echo after; cat init", SUCCEEDED, "UNSPECIFIED", ""),
        ("cat result; cat failed", SUCCEEDED, "UNSPECIFIED", ""),
        ("cat failed; cat result", FAILED, "NO_RESULT", "claude_error"),
        ("printf '\\303'; printf '\\n'; cat result; printf '\\303'", SUCCEEDED, "UNSPECIFIED", ""),
        ("head -c 20971520 /dev/zero | tr '\\0' x; echo; cat result", SUCCEEDED, "UNSPECIFIED", ""),
        # The run ends with its final message, even if the process lives on.
        ("cat result; sleep 1000", SUCCEEDED, "UNSPECIFIED", ""),
        ("cat result; exec >&- 2>&-; sleep 1000", SUCCEEDED, "UNSPECIFIED", ""),
        ("sleep 1000 & cat result", SUCCEEDED, "UNSPECIFIED", ""),
    ],
)
async def test_however_it_ends_there_is_one_end(
    claude: Pretender, script: str, outcome: int, kind: str, code: str
) -> None:
    claude.says("result", RESULT)
    claude.says("failed", RESULT.replace(b"false", b"true"))
    claude.says("init", recorded("text").splitlines(keepends=True)[0])
    claude.acts(script)
    result = (await claude.run())[-1].result
    assert (result.outcome, pb.FailureKind.Name(result.failure.kind)) == (outcome, f"FAILURE_KIND_{kind}")
    assert result.failure.code == code
    assert result.tree_confirmed_dead


def resuming() -> api.SessionSelector:
    return api.SessionSelector(handle=pb.SessionHandle(adapter="claude_code", native_id=OLD_ID))


@pytest.mark.parametrize("way", ["frame", "standard error", "plain text"])
async def test_a_lost_session_is_begun_anew_however_it_is_reported(claude: Pretender, way: str) -> None:
    lost = f"No conversation found with session ID: {OLD_ID}"
    report = {
        "frame": claude.says("lost", recorded("resume_unknown")),
        "standard error": f"echo '{lost}' >&2",
        "plain text": f"echo '{lost}'",
    }[way]
    text = claude.says("text", recorded("text"))
    claude.acts(f'case "$*" in *--resume*) {report}; exit 1;; esac', text)
    assert resumes("resume_unknown")
    events = await claude.run(session=resuming())
    assert kinds(events).count("started") == 2
    (ended,) = [event.attempt_ended for event in events if event.WhichOneof("body") == "attempt_ended"]
    assert ended.failure.kind == pb.FAILURE_KIND_SESSION_LOST
    assert ended.session.change == pb.SESSION_CHANGE_CLEAR
    assert events[-1].result.outcome == SUCCEEDED
    first, second = (claude.root / "argv").read_text().splitlines()
    assert f"--resume {OLD_ID}" in first
    assert "--resume" not in second
    assert "--session-id" in second


async def test_another_failure_of_a_resumed_run_is_not_tried_again(claude: Pretender) -> None:
    claude.acts(claude.says("out", recorded("error_401")), "exit 1")
    events = await claude.run(session=resuming())
    assert kinds(events).count("started") == 1
    assert events[-1].result.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED
    assert not events[-1].result.HasField("session"), "the session is as good as before"


async def test_another_version_is_reported(claude: Pretender) -> None:
    claude.version = "9.9.9 (Claude Code)"
    claude.acts(claude.says("out", recorded("text").replace(b"2.1.330", b"9.9.9")))
    events = await claude.run()
    assert [event.notice.code for event in events if event.WhichOneof("body") == "notice"] == ["version_untested"]
    assert events[0].started.agent_version == "9.9.9"
    assert events[-1].result.outcome == SUCCEEDED


async def test_the_prompt_reaches_its_standard_input_and_no_argument(claude: Pretender) -> None:
    claude.acts('printf "%s\\n" "$prompt" > prompt', claude.says("result", RESULT))
    events = await claude.run()
    assert '"content": "Do it."' in (claude.root / "prompt").read_text()
    assert "Do it." not in (claude.root / "argv").read_text()
    assert "Do it." not in " ".join(events[0].started.argv)
