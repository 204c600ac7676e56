"""How much of a ChatGPT account's rate limits is used: the app server asks the account's service."""

from typing import Final

from dragoman.adapters.codex.plan import hello
from dragoman.adapters.codex.usage import rate_limits
from dragoman.sdk.account import AgentProgram, quota_refused, quota_silent
from dragoman.sdk.detection import converse
from dragoman.sdk.fields import Fields, inner, parse_json_object, text
from dragoman.sdk.jsonrpc import Peer, answer_to
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_SPEC: Final = agent_spec(__package__)
READ: Final = "account/rateLimits/read"
LIMIT_S: Final = 15.0
_ID: Final = 2
"""Of the second request."""


async def read_quota(program: AgentProgram) -> api.GetQuotaResponse:
    """Ask Codex."""
    peer = Peer[str](says_version=False)
    lines = hello(peer, _SPEC.version) + peer.notify("initialized") + peer.request(READ, {}, READ)
    argv = [program.executable, "app-server"]
    return answered(await converse(argv, program.env, lines, lambda line: bool(answer_to(_ID, line)), LIMIT_S))


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
