"""How much of a ChatGPT account's rate limits is used: the app server asks the account's service."""

from collections.abc import Mapping
from typing import Final

from dragoman.adapters.codex.classify import LOGIN_HINT
from dragoman.adapters.codex.plan import hello
from dragoman.adapters.codex.turn import BUSY, LoginBusyError, turn
from dragoman.adapters.codex.usage import rate_limits
from dragoman.sdk import FailureInfo
from dragoman.sdk.detection import LoginLocks, converse
from dragoman.sdk.failures import classify_text, failure_message, sentence
from dragoman.sdk.fields import Fields, inner, parse_json_object, text
from dragoman.sdk.jsonrpc import Peer
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

READ: Final = "account/rateLimits/read"
LIMIT_S: Final = 15.0
_ID: Final = 2
"""Of the second request."""


async def read_quota(
    executable: str, env: Mapping[str, str], version: str, locks: LoginLocks
) -> api.GetQuotaResponse:
    """Ask Codex, alone with its login if that is about to be renewed.

    Args:
        executable: Codex.
        env: its whole environment.
        version: the adapter's.
        locks: the turns of those that share a login.
    """
    try:
        async with turn(env, locks):
            return answered(await _ask(executable, env, version))
    except LoginBusyError:
        return _failed(BUSY)


def answered(line: str) -> api.GetQuotaResponse:
    """Return what the answer to the request means; an empty line is none. Pure."""
    answer = parse_json_object(line.encode()) or {}
    error = text(inner(answer, "error"), "message")
    if not error and "result" in answer:
        return api.GetQuotaResponse(windows=_windows(inner(answer, "result")))
    if not error:
        message = f"Codex did not report its rate limits within {LIMIT_S:.0f} s."
        return _failed(FailureInfo(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, message, "codex_no_answer"))
    known = classify_text(error)
    if known is None:
        kind = pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE
        return _failed(FailureInfo(kind, sentence("Codex", error), "codex_quota"))
    advice = LOGIN_HINT if known.kind == pb.FAILURE_KIND_AUTH_REQUIRED else ""
    return _failed(replace(known, message=sentence("Codex", error, advice), code="codex_quota"))


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


def _failed(info: FailureInfo) -> api.GetQuotaResponse:
    return api.GetQuotaResponse(failure=failure_message(info))


async def _ask(executable: str, env: Mapping[str, str], version: str) -> str:
    peer = Peer[str](says_version=False)
    first = hello(peer, version)
    lines = first + peer.notify("initialized") + peer.request(READ, {}, READ)
    return await converse([executable, "app-server"], env, lines, _is_answer, LIMIT_S)


def _is_answer(line: str) -> bool:
    answer = parse_json_object(line.encode()) or {}
    return answer.get("id") == _ID and "method" not in answer
