"""What the agents' own names mean: tools, errors, and messages that say nothing new. One row for each name."""

from collections.abc import Callable
from typing import Any

import pytest
from dragoman.adapters.claude_code.classify import Wrong, failure_of_result
from dragoman.adapters.claude_code.system import SystemFrames
from dragoman.adapters.claude_code.tools import tool_kind as claude_kind
from dragoman.adapters.codex.classify import failure_of as codex_failure
from dragoman.adapters.codex.thread import ThreadEvents
from dragoman.adapters.codex.tools import Calls
from dragoman.adapters.codex.usage import RunTotals
from dragoman.adapters.copilot.classify import failure_of_error as copilot_failure
from dragoman.adapters.copilot.tools import subject
from dragoman.adapters.copilot.tools import tool_kind as copilot_kind
from dragoman.adapters.cursor.parse import CursorParser
from dragoman.adapters.gemini_cli.tools import KINDS as GEMINI_KINDS
from dragoman.adapters.openclaw.classify import failure_of as openclaw_failure
from dragoman.adapters.openclaw.classify import failure_of_stop, retry_cause
from dragoman.adapters.openclaw.tools import kind_of as openclaw_kind
from dragoman.adapters.opencode.tools import KINDS as OPENCODE_KINDS
from dragoman.adapters.qwen.plan import KINDS as QWEN_KINDS
from dragoman.v1 import event_pb2 as pb

from tests.adapters.copilot.replay import event, feed, of_kind, parser

TOOLS = {
    "claude_code": {
        "READ": "Read NotebookRead",
        "EDIT": "Write Edit MultiEdit NotebookEdit",
        "SEARCH": "Glob Grep LS ToolSearch WebSearch web_search",
        "FETCH": "WebFetch web_fetch",
        "EXECUTE": "Bash BashOutput KillBash KillShell PowerShell Monitor",
        "SUBAGENT": "Agent Task TaskOutput TaskStop SendMessage Workflow",
        "SKILL": "Skill SlashCommand",
        "TODO": "TodoWrite TaskCreate TaskUpdate TaskGet TaskList",
        "SWITCH_MODE": "EnterPlanMode ExitPlanMode EnterWorktree ExitWorktree",
        "MCP": "ListMcpResources ReadMcpResource mcp__words__find",
        "ASK_USER": "AskUserQuestion",
        "OTHER": "Sunset mcp__words",
    },
    "copilot": {
        "READ": "view read_bash list_bash read_agent list_agents",
        "EDIT": "create edit apply_patch str_replace_editor",
        "SEARCH": "grep glob rg web_search",
        "EXECUTE": "bash write_bash stop_bash powershell",
        "SUBAGENT": "task write_agent",
        "TODO": "sql update_todo",
        "FETCH": "web_fetch",
        "SKILL": "skill",
        "ASK_USER": "ask_user",
        "OTHER": "sunset",
    },
    "cursor": {
        "READ": "read ls",
        "EDIT": "write edit applyPatch editNotebook",
        "SEARCH": "glob grep semSearch webSearch",
        "DELETE": "delete",
        "EXECUTE": "shell",
        "FETCH": "webFetch",
        "MCP": "mcp",
        "SUBAGENT": "task",
        "TODO": "updateTodos readTodos",
        "OTHER": "sunset",
    },
    "gemini_cli": {
        "READ": "read_file read_many_files list_directory",
        "SEARCH": "glob grep_search search_file_content google_web_search",
        "EDIT": "write_file replace",
        "EXECUTE": "run_shell_command",
        "FETCH": "web_fetch",
        "THINK": "update_topic",
        "SWITCH_MODE": "enter_plan_mode exit_plan_mode",
        "SKILL": "activate_skill",
    },
    "openclaw": {
        "READ": "read memory_get",
        "EDIT": "write edit apply_patch",
        "EXECUTE": "exec process",
        "SEARCH": "ls find grep memory_search tool_search web_search",
        "FETCH": "web_fetch browser",
        "SUBAGENT": "sessions_spawn sessions_send subagents sessions_yield",
        "TODO": "update_plan",
        "OTHER": "sunset",
    },
    "opencode": {
        "READ": "read list",
        "SEARCH": "glob grep lsp codesearch websearch",
        "EDIT": "edit write patch apply_patch multiedit",
        "EXECUTE": "bash",
        "FETCH": "webfetch",
        "SUBAGENT": "task",
        "SKILL": "skill",
        "TODO": "todowrite todoread",
        "ASK_USER": "question",
        "SWITCH_MODE": "plan_enter plan_exit",
    },
    "qwen": {
        "READ": "read_file",
        "SEARCH": "glob grep_search",
        "EDIT": "write_file edit notebook_edit",
        "EXECUTE": "run_shell_command",
        "FETCH": "web_fetch",
        "SKILL": "skill",
        "SUBAGENT": "agent",
    },
}


def cursor_kind(name: str) -> Any:
    line = f'{{"type": "tool_call", "call_id": "c", "subtype": "started", "tool_call": {{"{name}ToolCall": {{}}}}}}'
    (call,) = of_kind(feed(CursorParser(), [line.encode()]), "tool_call")  # type: ignore[arg-type] # a parser as well
    assert call.name == name
    return call.kind


KIND_OF: dict[str, Callable[[str], Any]] = {
    "claude_code": claude_kind,
    "copilot": lambda name: copilot_kind(name, ""),
    "cursor": cursor_kind,
    "gemini_cli": GEMINI_KINDS.__getitem__,
    "openclaw": openclaw_kind,
    "opencode": OPENCODE_KINDS.__getitem__,
    "qwen": QWEN_KINDS.__getitem__,
}


@pytest.mark.parametrize("agent", TOOLS)
def test_each_tool_has_a_kind(agent: str) -> None:
    expected = {name: kind for kind, names in TOOLS[agent].items() for name in names.split()}
    kinds = {name: pb.ToolKind.Name(KIND_OF[agent](name)).removeprefix("TOOL_KIND_") for name in expected}
    assert kinds == expected


@pytest.mark.parametrize(
    ("asked", "kind"),
    [("write", "EDIT"), ("shell", "EXECUTE"), ("read", "READ"), ("mcp", "MCP"), ("url", "FETCH"), ("sun", "OTHER")],
)
def test_a_permission_of_copilot_has_a_kind(asked: str, kind: str) -> None:
    assert pb.ToolKind.Name(subject({"kind": asked}, {}, "t").tool_kind) == f"TOOL_KIND_{kind}"


FAILURES = {
    "codex": {
        "CONTEXT_OVERFLOW": "contextWindowExceeded",
        "QUOTA_EXCEEDED": "sessionBudgetExceeded usageLimitExceeded",
        "RATE_LIMITED": "rateLimitExceeded",
        "UPSTREAM_UNAVAILABLE": "serverOverloaded flexUnavailable policyCapacityUnavailable internalServerError",
        "MODEL_NOT_FOUND": "modelNotFound",
        "AUTH_REQUIRED": "unauthorized",
        "MODEL_REFUSED": "cyberPolicy misalignmentPolicyViolation",
        "PERMISSION_DENIED": "tooManyDenials inferenceHookDenied",
        "NETWORK": "httpConnectionFailed responseStreamConnectionFailed responseStreamDisconnected "
        "responseTooManyFailedAttempts",
        "PROCESS_CRASHED": "sunset",
    },
    "copilot": {
        "AUTH_REQUIRED": "authentication authorization",
        "QUOTA_EXCEEDED": "quota",
        "RATE_LIMITED": "rate_limit",
        "CONTEXT_OVERFLOW": "context_limit",
        "NO_RESULT": "sunset",
    },
    "openclaw": {
        "AUTH_REQUIRED": "auth auth_permanent",
        "QUOTA_EXCEEDED": "billing",
        "RATE_LIMITED": "rate_limit",
        "UPSTREAM_UNAVAILABLE": "overloaded server_error",
        "NETWORK": "timeout network",
        "MODEL_NOT_FOUND": "model_not_found",
        "CONTEXT_OVERFLOW": "context_overflow",
        "SESSION_LOST": "session_expired",
        "INVALID_CONFIG": "format",
        "PROCESS_CRASHED": "sunset",
    },
}
FAILURE_OF: dict[str, Callable[[str], Any]] = {
    "codex": lambda name: codex_failure({"codexErrorInfo": name, "message": "It went wrong."}).kind,
    "copilot": lambda name: copilot_failure({"errorType": name, "message": "It went wrong."}, {}).kind,
    "openclaw": lambda name: openclaw_failure("It went wrong.", {"failoverReason": name}).kind,
}


@pytest.mark.parametrize("agent", FAILURES)
def test_each_code_of_an_error_has_a_kind(agent: str) -> None:
    expected = {name: kind for kind, names in FAILURES[agent].items() for name in names.split()}
    found = {name: pb.FailureKind.Name(FAILURE_OF[agent](name)) for name in expected}
    assert {name: kind.removeprefix("FAILURE_KIND_") for name, kind in found.items()} == expected


@pytest.mark.parametrize("agent", ["codex", "openclaw"])
def test_the_code_of_a_failure_is_the_agents_own(agent: str) -> None:
    codes = {
        "codex": codex_failure({"codexErrorInfo": "inferenceHookDenied"}).code,
        "openclaw": openclaw_failure("", {"failoverReason": "auth_permanent"}).code,
    }
    assert codes[agent] == {"codex": "codex_inference_hook_denied", "openclaw": "openclaw_auth_permanent"}[agent]
    codes = {"codex": codex_failure({}).code, "openclaw": openclaw_failure("", {}).code}
    assert codes[agent] == f"{agent}_error"


def test_a_retry_of_openclaw_has_the_kind_of_its_reason() -> None:
    assert [retry_cause(name) for name in ("auth_permanent", "sunset")] == [
        pb.FAILURE_KIND_AUTH_REQUIRED,
        pb.FAILURE_KIND_UNSPECIFIED,
    ]
    failure = failure_of_stop("length")
    assert failure is not None
    assert (failure.kind, failure.code) == (pb.FAILURE_KIND_OUTPUT_LIMIT, "openclaw_output_limit")
    assert failure_of_stop("stop") is None


CLAUDE_ERRORS = {
    "usage_limit_reached": ("QUOTA_EXCEEDED", "claude_usage_limit_reached", "Wait for the reset, or use an API key."),
    "connection_failed": ("NETWORK", "claude_connection_failed", "See whether the model's service can be reached."),
    "max_output_tokens": ("OUTPUT_LIMIT", "claude_max_output_tokens", "set CLAUDE_CODE_MAX_OUTPUT_TOKENS in env."),
    "authentication_failed": ("AUTH_REQUIRED", "claude_auth_required", "claude"),
    "oauth_org_not_allowed": ("AUTH_REQUIRED", "claude_auth_required", "claude"),
    "billing_error": ("QUOTA_EXCEEDED", "claude_billing_error", "Pay, or use another account."),
    "model_not_found": ("MODEL_NOT_FOUND", "claude_model_not_found", "Choose another model, or another account."),
    "rate_limit": ("RATE_LIMITED", "claude_rate_limited", "Wait a while."),
    "overloaded": ("UPSTREAM_UNAVAILABLE", "claude_overloaded", "Wait a while."),
    "server_error": ("UPSTREAM_UNAVAILABLE", "claude_server_error", "Wait a while."),
}


@pytest.mark.parametrize("error", CLAUDE_ERRORS)
def test_each_error_of_claude_code_has_a_kind_and_advice(error: str) -> None:
    kind, code, advice = CLAUDE_ERRORS[error]
    for wrong in (Wrong(error=error), Wrong(api_error=error)):
        failure = failure_of_result({"subtype": "success", "is_error": True, "result": "No."}, wrong, resumed=False)
        assert (pb.FailureKind.Name(failure.kind), failure.code) == (f"FAILURE_KIND_{kind}", code)
        assert advice in failure.message


CLAUDE_STATUSES = {
    401: "claude_auth_required",
    402: "claude_billing_error",
    403: "claude_auth_required",
    404: "claude_model_not_found",
    408: "claude_server_error",
    413: "claude_request_too_large",
    429: "claude_rate_limited",
    529: "claude_overloaded",
}


@pytest.mark.parametrize("status", CLAUDE_STATUSES)
def test_a_status_alone_has_a_code(status: int) -> None:
    failure = failure_of_result(
        {"subtype": "success", "is_error": True, "result": "No.", "api_error_status": status}, Wrong(), resumed=False
    )
    assert (failure.code, failure.http_status) == (CLAUDE_STATUSES[status], status)


@pytest.mark.parametrize(
    ("result", "code", "advice"),
    [
        ({"terminal_reason": "max_turns"}, "claude_max_turns", "Raise config.maxTurnsPerRun"),
        ({"terminal_reason": "budget_exhausted"}, "claude_max_budget_usd", "Raise config.maxBudgetUsd"),
        ({"terminal_reason": "prompt_too_long"}, "claude_prompt_too_long", "Start a new session"),
        ({"subtype": "error_max_turns"}, "claude_max_turns", "Raise config.maxTurnsPerRun"),
        ({"subtype": "error_max_budget_usd"}, "claude_max_budget_usd", "Raise config.maxBudgetUsd"),
        ({"subtype": "error_max_structured_output_retries"}, "claude_max_structured_output_retries", "JSON Schema"),
    ],
)
def test_how_claude_code_ended_comes_first(result: dict[str, str], code: str, advice: str) -> None:
    failure = failure_of_result(result, Wrong(error="server_error"), resumed=False)
    assert failure.code == code
    assert advice in failure.message


SILENT = {
    "codex": "thread/started thread/status/changed thread/goal/cleared thread/goal/updated thread/settings/updated "
    "thread/closed turn/started turn/diff/updated skills/changed remoteControl/status/changed item/plan/delta "
    "item/fileChange/outputDelta item/fileChange/patchUpdated account/updated hook/started hook/completed "
    "thread/compacted",
    "claude_code": "thinking_tokens task_updated background_tasks_changed hook_progress ui_invalidate",
    "copilot": "agent.interrupted assistant.idle assistant.intent assistant.streaming_delta assistant.turn_end "
    "capabilities.changed commands.changed human_response.recorded model.call_final_result model.call_finished "
    "model.call_start pending_messages.modified permission.completed prompt_cache_break sandbox.decision "
    "session.background_tasks_changed session.completion_receipt session.context_changed "
    "session.custom_agents_updated session.indexed_search session.managed_settings_resolved "
    "session.mcp_server_status_changed session.mode_changed session.mcp_server_tools_loaded session.model_change "
    "session.permissions_changed session.plan_changed session.quota_observation session.shutdown "
    "session.todos_changed session.tools_updated session.usage_checkpoint session.usage_record "
    "session.workspace_file_changed skill.context_delivered skill.context_delivered_ref skill.invoked "
    "skill.invoked_ref subagent.configured system.message system.notification tool.execution_partial_result "
    "tool.execution_progress user_input.completed user_input.requested assistant.message_start model.any_other",
}


def _taken(agent: str, name: str) -> object:
    if agent == "codex":
        return ThreadEvents(Calls("/"), RunTotals()).take(name, {})
    if agent == "claude_code":
        taken = SystemFrames().take({"subtype": name})
        return None if taken is None else list(taken)
    logs = of_kind(feed(parser(), [event(name, {})]), "log")
    return None if logs else []


@pytest.mark.parametrize("agent", SILENT)
def test_what_others_say_as_well_is_silent(agent: str) -> None:
    assert [name for name in SILENT[agent].split() if _taken(agent, name) != []] == []
    assert _taken(agent, "sunset") is None, "what is unknown is a log"
