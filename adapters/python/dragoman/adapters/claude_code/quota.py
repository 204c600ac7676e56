"""How much of a claude.ai plan's rate limits is used: Claude Code asks Anthropic, on its control channel."""

from typing import Final

from dragoman.adapters.claude_code import control
from dragoman.sdk import FailureInfo
from dragoman.sdk.account import AgentProgram, quota_failed, quota_refused, quota_silent
from dragoman.sdk.detection import converse
from dragoman.sdk.fields import Fields, inner, iso_moment, number, objects, parse_json_object, text
from dragoman.sdk.parsing import rate_limit
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

LIMIT_S: Final = 20.0
OUTSIDE: Final = (
    *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
    *("--strict-mcp-config", "--no-session-persistence"),
)
"""Arguments outside of a run: it has no prompt, so that no model is called, and starts none of its user's servers."""
_SPEC: Final = agent_spec(__package__)
_ID: Final = "quota"
_CODE: Final = "claude_code_quota"


async def read_quota(program: AgentProgram) -> api.GetQuotaResponse:
    """Ask Claude Code."""
    asked = control.request(_ID, {"subtype": "get_usage", "skip_behaviors": True})
    return answered(await converse([program.executable, *OUTSIDE], program.env, asked, _is_answer, LIMIT_S))


def answered(line: str) -> api.GetQuotaResponse:
    """Return what the answer to the request means; an empty line is none. Pure."""
    response = inner(parse_json_object(line.encode()) or {}, "response")
    error = text(response, "error")
    if error:
        return quota_refused(_SPEC, error)
    usage = inner(response, "response")
    if not usage:
        return quota_silent(_SPEC, LIMIT_S)
    if usage.get("rate_limits_available") is not True:
        message = f"Claude Code has rate limits to report with a login of claude.ai only. {_SPEC.login_hint}"
        return quota_failed(FailureInfo(pb.FAILURE_KIND_AUTH_REQUIRED, message, _CODE))
    if not isinstance(usage.get("rate_limits"), dict):
        message = (
            "Claude Code did not get its rate limits from Anthropic. It does not ask where "
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC is set."
        )
        return quota_failed(FailureInfo(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, message, _CODE))
    return api.GetQuotaResponse(windows=_windows(inner(usage, "rate_limits")))


def _windows(limits: Fields) -> list[pb.RateLimit]:
    """Return the windows of the plan; those of one model bear its name."""
    plain = [_window(name, inner(limits, name)) for name in limits if inner(limits, name)]
    scoped = (_window(f"weekly {text(limit, 'display_name')}", limit) for limit in objects(limits, "model_scoped"))
    return [window for window in (*plain, *scoped) if window.HasField("used_percent")]


def _window(name: str, limit: Fields) -> pb.RateLimit:
    used = number(limit, "utilization")
    return rate_limit(name, None if used is None else min(used, 100), iso_moment(limit, "resets_at"))


def _is_answer(line: str) -> bool:
    frame = parse_json_object(line.encode()) or {}
    return text(frame, "type") == "control_response" and text(inner(frame, "response"), "request_id") == _ID
