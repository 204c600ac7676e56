"""How much of a Copilot plan is used: Copilot asks GitHub.

It reports a ``resetDate`` too, which is the time of the count (1.0.102), so that no window has an end.
"""

from math import isfinite
from typing import Final

from dragoman.adapters.copilot.plan import BASE, begin
from dragoman.sdk import FailureInfo, jsonrpc
from dragoman.sdk.account import AgentProgram, quota_failed, quota_refused, quota_silent
from dragoman.sdk.detection import converse
from dragoman.sdk.fields import Fields, inner, parse_json_object, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

LIMIT_S: Final = 20.0
_SPEC: Final = agent_spec(__package__)
_READ: Final = "account.getQuota"
_ID: Final = 2
"""Of the second request."""
_CODE: Final = "copilot_quota"
_NO_LOGIN: Final = "Not authenticated"


async def read_quota(program: AgentProgram) -> api.GetQuotaResponse:
    """Ask Copilot."""
    peer, hello = begin()
    lines = hello + jsonrpc.with_length(peer.request(_READ, {}, _READ))
    argv = [program.executable, *BASE]
    line = await converse(
        argv, program.env, lines, lambda line: bool(jsonrpc.answer_to(_ID, line)), LIMIT_S, "content-length"
    )
    return answered(line)


def answered(line: str) -> api.GetQuotaResponse:
    """Return what the answer to the request means; an empty line is none. Pure."""
    answer = parse_json_object(line.encode()) or {}
    error = text(inner(answer, "error"), "message")
    if not error and "result" in answer:
        return api.GetQuotaResponse(windows=_windows(inner(inner(answer, "result"), "quotaSnapshots")))
    if not error:
        return quota_silent(_SPEC, LIMIT_S)
    if _NO_LOGIN in error:
        return quota_failed(FailureInfo(pb.FAILURE_KIND_AUTH_REQUIRED, f"No login. {_SPEC.login_hint}", _CODE))
    return quota_refused(_SPEC, error)


def _windows(snapshots: Fields) -> list[pb.RateLimit]:
    """Return what is limited, by its name."""
    windows = []
    for name in snapshots:
        snapshot = inner(snapshots, name)
        left = _left(snapshot)
        if left is not None and snapshot.get("isUnlimitedEntitlement") is not True:
            windows.append(pb.RateLimit(window=name, used_percent=100 - left))
    return windows


def _left(snapshot: Fields) -> float | None:
    """Return the percentage that is left; Copilot reports less than none of it for what is overdrawn."""
    left = snapshot.get("remainingPercentage")
    if isinstance(left, bool) or not isinstance(left, int | float) or not isfinite(left):
        return None
    return min(max(left, 0), 100)
