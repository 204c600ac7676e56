"""Whether Qwen Code knows a provider, by its variables and settings. Changes nothing, and uses no network."""

from collections.abc import Mapping
from typing import Final

from dragoman.sdk.detection import AuthFinding, Billing, RenewingLogin, SelectedModel, stored_file, stored_object
from dragoman.sdk.fields import count, inner, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_SPEC: Final = agent_spec(__package__)
_KEYS: Final = ("OPENAI_API_KEY", "DASHSCOPE_API_KEY")
_OAUTH: Final = "qwen-oauth"
_LOGIN_FILE: Final = "oauth_creds.json"


def find_login(env: Mapping[str, str]) -> AuthFinding:
    """Return whether it could reach a model, as far as its files and variables show."""
    settings = stored_object(_SPEC, env, "settings.json")
    auth = inner(inner(settings, "security"), "auth")
    method = text(auth, "selectedType")
    if method == _OAUTH:
        is_in = bool(text(stored_object(_SPEC, env, _LOGIN_FILE), "access_token"))
        state = pb.AUTH_STATE_OK if is_in else pb.AUTH_STATE_MISSING
        return AuthFinding(state, method, subscription=is_in)
    stored = inner(settings, "env")
    if any(env.get(name) or text(stored, name) for name in _KEYS) or text(auth, "apiKey"):
        return AuthFinding(pb.AUTH_STATE_OK, method or "openai")
    # A provider of its user's own may name any variable, or need none.
    known = bool(inner(settings, "modelProviders"))
    return AuthFinding(pb.AUTH_STATE_UNKNOWN if known else pb.AUTH_STATE_MISSING, method if known else "")


def find_billing(env: Mapping[str, str], provider: str) -> Billing:
    """Return who pays how with what Qwen Code logs in with."""
    found = find_login(env)
    if found.state != pb.AUTH_STATE_OK:
        return Billing()
    if found.method == _OAUTH:
        return Billing(event_pb2.BILLING_TYPE_SUBSCRIPTION, "qwen")
    return Billing(event_pb2.BILLING_TYPE_API, provider)


def selected_model(env: Mapping[str, str]) -> SelectedModel:
    """Return what the user's settings select, else the variable."""
    settings = stored_object(_SPEC, env, "settings.json")
    method = text(inner(inner(settings, "security"), "auth"), "selectedType")
    model = text(inner(settings, "model"), "name") or env.get("OPENAI_MODEL", "")
    return SelectedModel(model, "qwen" if method == _OAUTH else method if model else "")


def renewing_login(env: Mapping[str, str]) -> RenewingLogin | None:
    """Return the Qwen login that would be used: it is renewed with a token that is good for one use."""
    stored = stored_object(_SPEC, env, _LOGIN_FILE)
    auth = inner(inner(stored_object(_SPEC, env, "settings.json"), "security"), "auth")
    if text(auth, "selectedType") != _OAUTH or not text(stored, "refresh_token"):
        return None
    expires_at_ms = count(stored, "expiry_date")
    return RenewingLogin(
        stored_file(_SPEC, env, _LOGIN_FILE), None if expires_at_ms is None else expires_at_ms / 1000
    )
