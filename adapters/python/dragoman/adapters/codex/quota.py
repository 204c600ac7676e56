"""How much of a ChatGPT account's rate limits is used: the app server asks the account's service."""

from typing import Final

from dragoman.adapters.codex.login import renewing_login
from dragoman.adapters.codex.plan import hello
from dragoman.adapters.codex.usage import rate_limits
from dragoman.sdk.account import (
    AgentProgram,
    LoginBusyError,
    account_turn,
    login_busy,
    quota_failed,
    quota_refused,
    quota_silent,
)
from dragoman.sdk.detection import LoginLocks, converse
from dragoman.sdk.fields import Fields, inner, parse_json_object, text
from dragoman.sdk.jsonrpc import Peer
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_SPEC: Final = agent_spec(__package__)
READ: Final = "account/rateLimits/read"
LIMIT_S: Final = 15.0
_ID: Final = 2
"""Of the second request."""


async def read_quota(program: AgentProgram, version: str, locks: LoginLocks) -> api.GetQuotaResponse:
    """Ask Codex, alone with its login if that is about to be renewed.

    Args:
        program: Codex.
        version: the adapter's.
        locks: the turns of those that share a login.
    """
    try:
        async with account_turn(renewing_login(program.env), locks):
            return answered(await _ask(program, version))
    except LoginBusyError:
        return quota_failed(login_busy(_SPEC))


def answered(line: str) -> api.GetQuotaResponse:
    """Return what the answer to the request means; an empty line is none. Pure."""
    answer = parse_json_object(line.encode()) or {}
    error = text(inner(answer, "error"), "message")
    if not error and "result" in answer:
        return api.GetQuotaResponse(windows=_windows(inner(answer, "result")))
    if not error:
        return quota_silent(_SPEC, LIMIT_S)
    return quota_refused(_SPEC, error)


def _windows(result: Fields) -> list[pb.RateLimit]:
    """Return the windows of all limits; those of another one than Codex's own bear its name."""
    found = rate_limits(inner(result, "rateLimits"))
    own = text(inner(result, "rateLimits"), "limitId")
    for name, limit in inner(result, "rateLimitsByLimitId").items():
        if name != own and isinstance(limit, dict):
            label = text(limit, "limitName") or name
            for window in rate_limits(limit):
                window.window = f"{label} {window.window}"
                found.append(window)
    return found


async def _ask(program: AgentProgram, version: str) -> str:
    peer = Peer[str](says_version=False)
    first = hello(peer, version)
    lines = first + peer.notify("initialized") + peer.request(READ, {}, READ)
    return await converse([program.executable, "app-server"], program.env, lines, _is_answer, LIMIT_S)


def _is_answer(line: str) -> bool:
    answer = parse_json_object(line.encode()) or {}
    return answer.get("id") == _ID and "method" not in answer
