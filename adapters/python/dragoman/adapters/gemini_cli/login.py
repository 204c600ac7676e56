"""Whether Gemini CLI is logged in, by its files and the environment: it has no command for that."""

import time
from collections.abc import Mapping
from typing import Final

from dragoman.adapters.gemini_cli.home_overlay import CONFIG_DIR, read_settings, user_home
from dragoman.adapters.gemini_cli.plan import auth_type_of
from dragoman.sdk import FailureError, fields
from dragoman.sdk.detection import AuthFinding, Billing, RenewingLogin, SelectedModel
from dragoman.sdk.fields import Fields, read_json_object
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_LOGIN_FILE: Final = "oauth_creds.json"
_BILLING: Final = {
    "gemini-api-key": Billing(event_pb2.BILLING_TYPE_API, "google"),
    "vertex-ai": Billing(event_pb2.BILLING_TYPE_METERED_API, "vertex"),
    "oauth-personal": Billing(event_pb2.BILLING_TYPE_SUBSCRIPTION, "google"),
}
"""By login method."""


def find_login(env: Mapping[str, str]) -> AuthFinding:
    """Return whether Gemini CLI is logged in, as it would see it with this environment."""
    folder = user_home(env) / CONFIG_DIR
    try:
        settings = read_settings(folder / "settings.json")
    except FailureError as error:
        return AuthFinding(pb.AUTH_STATE_UNKNOWN, message=str(error))
    return judge(settings, read_json_object(folder / _LOGIN_FILE), env, now_ms=int(time.time() * 1000))


def renewing_login(env: Mapping[str, str]) -> RenewingLogin | None:
    """Return the Google login that would be used, if it is one in a file that Gemini CLI renews."""
    folder = user_home(env) / CONFIG_DIR
    stored = read_json_object(folder / _LOGIN_FILE)
    try:
        method = _selected(read_settings(folder / "settings.json"), env)
    except FailureError:
        return None  # it would not start either
    if method != "oauth-personal" or not fields.text(stored, "refresh_token"):
        return None
    expires_at_ms = fields.count(stored, "expiry_date")
    return RenewingLogin(folder / _LOGIN_FILE, None if expires_at_ms is None else expires_at_ms / 1000)


def selected_model(env: Mapping[str, str]) -> SelectedModel:
    """Return what the variables and the user's settings select; a variable goes before the settings."""
    try:
        settings = read_settings(user_home(env) / CONFIG_DIR / "settings.json")
    except FailureError:
        return SelectedModel()  # it would not start either
    model = env.get("GEMINI_MODEL") or fields.text(fields.inner(settings, "model"), "name")
    billing = _BILLING.get(_selected(settings, env), Billing())
    return SelectedModel(model, (billing.biller or "google") if model else "")


def _selected(settings: Fields, env: Mapping[str, str]) -> str:
    auth = fields.inner(fields.inner(settings, "security"), "auth")
    return fields.text(auth, "selectedType") or auth_type_of(env)


def judge(settings: Fields, stored: Fields, env: Mapping[str, str], *, now_ms: int) -> AuthFinding:
    """Return the state of the login. Pure.

    Args:
        settings: the user's settings; empty if there are none.
        stored: the login file; empty if there is none.
        env: the environment of the run.
        now_ms: the present, in Unix milliseconds.
    """
    method = _selected(settings, env)
    if method == "gemini-api-key":
        has_key = bool(env.get("GEMINI_API_KEY"))
        # A key in the key ring is not looked for.
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


def find_billing(env: Mapping[str, str]) -> Billing:
    """Return who pays how, by Gemini CLI's login method."""
    return _BILLING.get(find_login(env).method, Billing())
