"""Whether Claude Code is logged in, by ``claude auth status``, and when its login expires, by its login file.

``claude auth status`` knows every way to log in, but not that a login has expired; the file has the times. The
command writes a first settings file where Claude Code was never used, and detection must change nothing: there, only
the file and the environment are read.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dragoman.adapters.claude_code.usage import PROVIDER
from dragoman.sdk.detection import (
    AuthFinding,
    Billing,
    RenewingLogin,
    SelectedModel,
    probe,
    stored_file,
    stored_object,
)
from dragoman.sdk.fields import Fields, count, inner, parse_json_object, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

STATUS_LIMIT_S: Final = 6.0
_SPEC: Final = agent_spec(__package__)
_STATE_FILE: Final = ".claude.json"
_LOGIN_FILE: Final = ".credentials.json"
_KEYS: Final = {
    "ANTHROPIC_API_KEY": "api_key",
    "ANTHROPIC_AUTH_TOKEN": "oauth_token",
    "CLAUDE_CODE_OAUTH_TOKEN": "oauth_token",
}
_CLOUDS: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "bedrock",
    "CLAUDE_CODE_USE_VERTEX": "vertex",
    "CLAUDE_CODE_USE_FOUNDRY": "foundry",
}
_SUBSCRIPTION: Final = "claude.ai"


async def find_login(executable: str, env: Mapping[str, str]) -> AuthFinding:
    """Return whether Claude Code is logged in, as it would see it with this environment."""
    stored = _stored_login(env)
    status: Fields | None = None
    if _state_file(env).is_file():
        answer = await probe([executable, "auth", "status"], env, STATUS_LIMIT_S)
        status = parse_json_object(answer.stdout.encode()) if not answer.timed_out else None
        if status is None:
            return AuthFinding(pb.AUTH_STATE_UNKNOWN, message="`claude auth status` gave no answer.")
    return judge(status, stored, env, now_ms=int(time.time() * 1000))


def find_billing(env: Mapping[str, str]) -> Billing:
    """Return who pays how with what Claude Code logs in with, by its variables and its login file."""
    for name, cloud in _CLOUDS.items():
        if env.get(name):
            return Billing(event_pb2.BILLING_TYPE_METERED_API, cloud)
    method = _method(_stored_login(env), env)
    if env.get("CLAUDE_CODE_OAUTH_TOKEN") and method == "oauth_token" and not env.get("ANTHROPIC_AUTH_TOKEN"):
        method = _SUBSCRIPTION  # `claude setup-token` makes one for a subscription
    if not method:
        return Billing()
    by_login = method == _SUBSCRIPTION
    return Billing(event_pb2.BILLING_TYPE_SUBSCRIPTION if by_login else event_pb2.BILLING_TYPE_API, PROVIDER)


def selected_model(env: Mapping[str, str]) -> SelectedModel:
    """Return what the variables and the user's settings select; a variable goes before the settings."""
    settings = stored_object(_SPEC, env, "settings.json")
    stored = inner(settings, "env")
    clouds = (cloud for name, cloud in _CLOUDS.items() if env.get(name) or text(stored, name))
    model = env.get("ANTHROPIC_MODEL") or text(stored, "ANTHROPIC_MODEL") or text(settings, "model")
    return SelectedModel(model, next(clouds, PROVIDER if model else ""))


def renewing_login(env: Mapping[str, str]) -> RenewingLogin | None:
    """Return the claude.ai login that would be used, if it is one in a file that Claude Code renews."""
    stored = _stored_login(env)
    if not text(stored, "refreshToken") or _method({}, env):  # a key or a cloud goes before it
        return None
    expires_at_ms = count(stored, "expiresAt")
    path = stored_file(_SPEC, env, _LOGIN_FILE)
    return RenewingLogin(path, None if expires_at_ms is None else expires_at_ms / 1000)


def judge(status: Fields | None, stored: Fields, env: Mapping[str, str], *, now_ms: int) -> AuthFinding:
    """Return the state of the login. Pure.

    Args:
        status: what ``claude auth status`` printed; None if it was not run.
        stored: the login file's part about claude.ai; empty if there is none.
        env: the environment of the run.
        now_ms: the present, in Unix milliseconds.
    """
    method = text(status, "authMethod") if status is not None else _method(stored, env)
    is_in = status.get("loggedIn") is True if status is not None else bool(method)
    if not is_in or method in {"", "none"}:
        return AuthFinding(pb.AUTH_STATE_MISSING)
    if method == _SUBSCRIPTION and _has_expired(stored, now_ms):
        return AuthFinding(pb.AUTH_STATE_EXPIRED, method)
    return AuthFinding(pb.AUTH_STATE_OK, method, subscription=method == _SUBSCRIPTION)


def _method(stored: Fields, env: Mapping[str, str]) -> str:
    """Return the method of the login, as ``claude auth status`` names it; empty without one."""
    if any(env.get(name) for name in _CLOUDS):
        return "third_party"
    for name, method in _KEYS.items():
        if env.get(name):
            return method
    return _SUBSCRIPTION if text(stored, "accessToken") else ""


def _has_expired(stored: Fields, now_ms: int) -> bool:
    expires_at = count(stored, "expiresAt")
    if expires_at is None or expires_at > now_ms:
        return False  # on macOS the key ring has it, where it cannot be read
    renewable_until = count(stored, "refreshTokenExpiresAt")
    can_renew = bool(text(stored, "refreshToken")) and (renewable_until is None or renewable_until > now_ms)
    return not can_renew


def _state_file(env: Mapping[str, str]) -> Path:
    directory = stored_file(_SPEC, env, "")
    return (directory if env.get(_SPEC.config_dir_variable) else directory.parent) / _STATE_FILE


def _stored_login(env: Mapping[str, str]) -> Fields:
    return inner(stored_object(_SPEC, env, _LOGIN_FILE), "claudeAiOauth")
