"""Whether Gemini CLI is logged in. It has no command that says so: its files and the environment tell."""

import time
from collections.abc import Mapping
from typing import Final

from dragoman.adapters.gemini_cli.home import CONFIG_DIR, read_settings, user_home
from dragoman.adapters.gemini_cli.plan import auth_type_of
from dragoman.sdk import AuthFinding, FailureError, fields, read_json_object
from dragoman.sdk.fields import Fields
from dragoman.v1 import adapter_pb2 as pb

_LOGIN_FILE: Final = "oauth_creds.json"


def find_login(env: Mapping[str, str]) -> AuthFinding:
    """Return whether Gemini CLI is logged in, as it would see it with this environment."""
    folder = user_home(env) / CONFIG_DIR
    try:
        settings = read_settings(folder / "settings.json")
    except FailureError as error:
        return AuthFinding(pb.AUTH_STATE_UNKNOWN, message=str(error))
    return judge(settings, read_json_object(folder / _LOGIN_FILE), env, now_ms=int(time.time() * 1000))


def judge(settings: Fields, stored: Fields, env: Mapping[str, str], *, now_ms: int) -> AuthFinding:
    """Sum up what was seen. Pure.

    Args:
        settings: the user's settings; empty if there are none.
        stored: the login file; empty if there is none.
        env: the environment of the run.
        now_ms: the present, in Unix milliseconds.
    """
    auth = fields.inner(fields.inner(settings, "security"), "auth")
    method = fields.text(auth, "selectedType") or auth_type_of(env)
    if method == "gemini-api-key":
        has_key = bool(env.get("GEMINI_API_KEY"))
        # A key may be in the key ring, which nobody is asked for here.
        return AuthFinding(pb.AUTH_STATE_OK if has_key else pb.AUTH_STATE_MISSING, method)
    if method == "vertex-ai":
        has_project = bool(env.get("GOOGLE_CLOUD_PROJECT")) and bool(env.get("GOOGLE_CLOUD_LOCATION"))
        return AuthFinding(
            pb.AUTH_STATE_OK if has_project or env.get("GOOGLE_API_KEY") else pb.AUTH_STATE_MISSING, method
        )
    if method == "oauth-personal":
        return AuthFinding(_login_state(stored, now_ms), method, subscription=True)
    if method:
        return AuthFinding(pb.AUTH_STATE_UNKNOWN, method)
    return AuthFinding(pb.AUTH_STATE_MISSING)


def _login_state(stored: Fields, now_ms: int) -> pb.AuthState.ValueType:
    if fields.text(stored, "refresh_token"):
        return pb.AUTH_STATE_OK
    if not fields.text(stored, "access_token"):
        return pb.AUTH_STATE_MISSING
    expires_at = fields.count(stored, "expiry_date")
    return pb.AUTH_STATE_EXPIRED if expires_at is not None and expires_at <= now_ms else pb.AUTH_STATE_OK
