"""OpenClaw without a gateway: the command line, and the document at the end, on recordings of OpenClaw 2026.9.6."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.openclaw import local_mode
from dragoman.adapters.openclaw.environment import Setting, local_config, local_environment, run_file
from dragoman.protocol.errors import DragomanError
from dragoman.sdk import Evidence, FailureError, Line, Output, Report
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from .planning import ADAPTER, NEW_ID, OLD_ID, RESUMED, job_of, request

RECORDINGS = Path(__file__).parent / "recordings"
LOCAL = {"transport": "local"}
ALLOWED = pb.Permissions(auto_approve=True)


def recorded(name: str) -> bytes:
    return (RECORDINGS / f"local_{name}.json").read_bytes()


def feed(parser: local_mode.LocalParser, data: bytes, stream: Any = "stdout") -> list[Output]:
    outputs: list[Output] = []
    for line in data.split(b"\n"):
        outputs += parser.line(stream, Line(line, 0, complete=True))
    return outputs


def new_parser() -> local_mode.LocalParser:
    parser = ADAPTER.parser(job_of(request(LOCAL)))
    assert isinstance(parser, local_mode.LocalParser)
    return parser


def kinds(outputs: Iterable[Output]) -> list[str | None]:
    return [item.WhichOneof("body") for item in outputs if isinstance(item, pb.AgentEvent)]


def test_the_command_line() -> None:
    run_request = request(
        {**LOCAL, "thinking": "low", "agent": "ops"}, prompt="/new", model="a/b", permissions=ALLOWED
    )
    planned = ADAPTER.plan(job_of(run_request))
    assert planned.argv == (
        *("/opt/openclaw", "agent", "--local", "--json", "--agent", "ops", "--session-id", NEW_ID),
        *("--message-file", "/run/dir/message.txt", "--timeout", "0", "--model", "a/b", "--thinking", "low"),
    )
    assert planned.files["message.txt"] == b" /new"
    assert {"plugin/index.mjs", "plugin/openclaw.plugin.json", "plugin/package.json"} < set(planned.files)
    assert planned.stdin == b""
    assert not planned.keep_stdin_open
    assert planned.notices == ()
    assert ADAPTER.plan(job_of(request(LOCAL), RESUMED)).argv[7] == OLD_ID


@pytest.mark.parametrize(("permissions", "refuses"), [(pb.Permissions(), True), (ALLOWED, False)])
def test_what_the_plugin_gets(permissions: pb.Permissions, refuses: bool) -> None:
    run_request = request(LOCAL, permissions=permissions, system_prompt="Be Ada.")
    planned = ADAPTER.plan(job_of(run_request))
    run = json.loads(planned.files[f"runs/{run_file(f'agent:main:explicit:{NEW_ID}')}"])
    assert ("refuses" in run) is refuses
    assert run["system"] == "Be Ada."
    assert [code for code, _ in planned.notices] == (["tools_withheld"] if refuses else [])


def test_what_cannot_be_had_is_refused() -> None:
    rule = pb.PermissionRule(decision=pb.PERMISSION_DECISION_ALLOW)
    copied = api.SessionSelector(handle=pb.SessionHandle(adapter="openclaw", native_id=OLD_ID, cwd="/"), fork=True)
    for fields in (
        {"permissions": pb.Permissions(native_mode="full")},
        {"permissions": pb.Permissions(rules=[rule])},
        {"permissions": pb.Permissions(default_decision=pb.PERMISSION_DECISION_ALLOW)},
        {"session": copied},
    ):
        with pytest.raises(DragomanError, match="local"):
            job_of(request(LOCAL, **fields))
        job_of(request(**fields))
    with pytest.raises(DragomanError, match="taken for an option"):
        job_of(request(LOCAL, model="--local"))
    job_of(request(LOCAL, permissions=pb.Permissions(rules=[rule], auto_approve=True)))


def test_the_configuration_is_the_users_with_the_run_in_it(tmp_path: Path) -> None:
    setting = Setting("openclaw", tmp_path, tmp_path / "openclaw.json", {})
    configuration: Any = local_config(setting, Path("/own"), "/work")
    assert configuration["agents"] == {"defaults": {"cwd": "/work"}}
    assert configuration["plugins"]["entries"]["dragoman"]["config"] == {"runs": "/own/runs", "local": True}
    assert "$include" not in configuration
    assert "gateway" not in configuration
    setting.config.write_text("{}")
    assert local_config(setting, Path("/own"), "")["$include"] == str(setting.config)
    env = local_environment(setting, Path("/own/openclaw.json"))
    assert env["OPENCLAW_CONFIG_PATH"] == "/own/openclaw.json"
    assert env["OPENCLAW_STATE_DIR"] == str(tmp_path)


@pytest.mark.parametrize(
    "plugins",
    [
        "",
        '{"enabled": false}',
        '{"enabled": true, "allow": ["openai"]}',
        '{"enabled": true, "allow": "x"}',
        '{"enabled": true, "deny": ["dragoman"]}',
    ],
)
def test_no_run_without_the_plugin(plugins: str) -> None:
    with pytest.raises(FailureError) as raised:
        local_mode.check_plugin(plugins)
    assert raised.value.info.kind == pb.FAILURE_KIND_INVALID_CONFIG


def test_a_run_with_the_plugin() -> None:
    local_mode.check_plugin('{"enabled": true}')
    local_mode.check_plugin('{"enabled": true, "allow": ["openai", "dragoman"], "deny": ["x"]}')


def test_a_session_is_looked_for() -> None:
    listing = recorded("sessions").decode()
    known = job_of(request(LOCAL), RESUMED)
    local_mode.check_session(known, listing.replace("11111111-2222-3333-4444-555555555555", OLD_ID))
    with pytest.raises(FailureError) as raised:
        local_mode.check_session(known, listing)
    assert raised.value.info.code == "openclaw_session_unknown"
    assert raised.value.info.kind == pb.FAILURE_KIND_SESSION_LOST
    with pytest.raises(FailureError) as raised:
        local_mode.check_session(known, "Error")
    assert raised.value.info.code == "openclaw_sessions_unknown"
    assert raised.value.info.kind == pb.FAILURE_KIND_PROCESS_CRASHED


def test_the_document() -> None:
    parser = new_parser()
    outputs = feed(parser, b"[memory] degraded\n{ no document }\n" + recorded("text") + b"[late] words")
    assert kinds(outputs) == ["log", "log", "session", "text", "log"]
    report = parser.report
    assert report.terminal is not None
    assert report.terminal.succeeded
    assert (report.session_id, report.summary) == (NEW_ID, "Hello from the mock.")
    assert (report.provider, report.model, report.turns) == ("mock", "mock-model", 1)
    assert report.usage is not None
    assert (report.usage.tokens.input, report.usage.tokens.cache_read) == (90, 10)
    assert report.usage.cost.amount == "0.000131"
    assert list(parser.finish()) == []


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("refused_key", pb.FAILURE_KIND_AUTH_REQUIRED, "openclaw_error"),
        ("cooldown", pb.FAILURE_KIND_AUTH_REQUIRED, "openclaw_error"),
        ("rate_limit", pb.FAILURE_KIND_RATE_LIMITED, "openclaw_error"),
        ("busy", pb.FAILURE_KIND_SPAWN_FAILED, "openclaw_state_dir_busy"),
    ],
)
def test_a_failure(name: str, kind: pb.FailureKind.ValueType, code: str) -> None:
    parser = new_parser()
    assert feed(parser, recorded(name).rstrip()) == []
    terminal = parser.report.terminal
    assert terminal is not None
    assert not terminal.succeeded
    assert terminal.failure is not None
    assert (terminal.failure.kind, terminal.failure.code) == (kind, code)


def test_every_payload_is_shown() -> None:
    payloads = [{"text": "First."}, {"text": "An error.", "isError": True}, {"mediaUrl": "x"}, {"text": "Second."}]
    document = {"payloads": payloads, "meta": {"finalAssistantVisibleText": "Second.", "stopReason": "stop"}}
    parser = new_parser()
    events = [output for output in feed(parser, json.dumps(document).encode()) if isinstance(output, pb.AgentEvent)]
    texts = {event.text.item_id: event.text.whole for event in events if event.HasField("text")}
    assert list(texts.values()) == ["First.", "Second."]
    assert parser.report.summary == "Second."


def test_an_answer_cut_by_the_output_limit_has_failed() -> None:
    document = {"payloads": [{"text": "Half an"}], "meta": {"stopReason": "length"}}
    parser = new_parser()
    feed(parser, json.dumps(document).encode())
    terminal = parser.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind == pb.FAILURE_KIND_OUTPUT_LIMIT


def test_a_turn_without_an_answer_has_failed() -> None:
    document = {"payloads": [{"text": "No answer.", "isError": True}], "meta": {"error": {"kind": "incomplete_turn"}}}
    parser = new_parser()
    feed(parser, json.dumps(document).encode())
    assert parser.report.terminal is not None
    assert not parser.report.terminal.succeeded


def test_a_run_that_was_killed_has_no_output() -> None:
    parser = new_parser()
    half = b"\n".join(recorded("text").splitlines()[:20])
    assert feed(parser, half) == []
    assert set(kinds(parser.finish())) == {"log"}
    assert parser.report.terminal is None
    noise = "Authentication failed (HTTP 401)"
    assert ADAPTER.classify(Evidence(parser.report, stderr_tail=noise)) is None
    assert ADAPTER.classify(Evidence(Report(), stderr_tail=noise)) is not None
    lost = ADAPTER.classify(Evidence(Report(), stderr_tail="Something broke."))
    assert lost is not None
    assert (lost.code, lost.message) == ("openclaw_gateway_lost", "The gateway was lost: Something broke.")


def test_a_refusal_is_reported() -> None:
    line = {"dragoman": "refused", "tool": "write", "call": "c1", "params": {"path": "a.txt"}}
    call, result = feed(new_parser(), json.dumps(line).encode(), "stderr")
    assert isinstance(call, pb.AgentEvent)
    assert isinstance(result, pb.AgentEvent)
    assert (call.tool_call.id, call.tool_call.name, call.tool_call.kind) == ("c1", "write", pb.TOOL_KIND_EDIT)
    assert (result.tool_result.tool_call_id, result.tool_result.status) == ("c1", pb.TOOL_STATUS_DENIED)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["text", "busy"]), st.integers(0, 4000), st.sampled_from([1, 2]))
def test_nothing_raises_and_nothing_is_lost(garbage: bytes, name: str, place: int, stream: int) -> None:
    whole = recorded(name)
    parser = new_parser()
    feed(parser, whole[:place] + garbage + whole[place:], "stdout" if stream == 1 else "stderr")
    list(parser.finish())


@settings(max_examples=50, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)))
def test_odd_values_in_the_document(value: Any) -> None:
    for document in (
        {"meta": value},
        {"meta": {"agentMeta": value, "error": value, "stopReason": value}, "payloads": value},
        {"ok": False, "error": value},
        {"dragoman": "refused", "tool": value, "call": value, "params": value},
    ):
        for stream in ("stdout", "stderr"):
            feed(new_parser(), json.dumps(document).encode(), stream)
