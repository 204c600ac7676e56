"""Whether Codex can reach a model: a provider of its user's own, or a login. Changes nothing."""

import base64
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from dragoman.sdk.detection import (
    AuthFinding,
    Billing,
    RenewingLogin,
    SelectedModel,
    probe,
    stored_file,
    stored_object,
)
from dragoman.sdk.fields import Fields, count, inner, number, parse_json_object, read_json_object, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_SPEC: Final = agent_spec(__package__)
_LOGIN_FILE: Final = "auth.json"
_OPENAI: Final = "openai"
_RENEWED_AFTER: Final = timedelta(days=8)
"""The lifetime of a login whose access token does not have one."""
_STATUS_LIMIT_S: Final = 6.0
_MOST_BYTES: Final = 1024 * 1024


async def find_login(executable: str, env: Mapping[str, str]) -> AuthFinding:
    """Return whether Codex is logged in, as it would see it with this environment."""
    provider = own_provider(read_config(env))
    if provider is not None:
        return judge_provider(provider, env)
    if not stored_file(_SPEC, env, "").is_dir():
        return AuthFinding(pb.AUTH_STATE_MISSING)  # Codex refuses to run without it
    answer = await probe([executable, "login", "status"], env, _STATUS_LIMIT_S)
    if answer.timed_out:
        return AuthFinding(pb.AUTH_STATE_UNKNOWN, message="`codex login status` gave no answer.")
    return judge_status(answer.exit_code, f"{answer.stdout}\n{answer.stderr}")


def find_billing(env: Mapping[str, str]) -> Billing:
    """Return who pays how with what Codex logs in with, by its variables and its files."""
    config = read_config(env)
    provider = own_provider(config)
    if provider is not None:
        has_key = bool(env.get(text(provider, "env_key")))
        return Billing(event_pb2.BILLING_TYPE_API, text(config, "model_provider")) if has_key else Billing()
    stored = stored_object(_SPEC, env, _LOGIN_FILE)
    if env.get("CODEX_API_KEY") or text(stored, "OPENAI_API_KEY"):
        return Billing(event_pb2.BILLING_TYPE_API, _OPENAI)
    if text(inner(stored, "tokens"), "access_token"):
        return Billing(event_pb2.BILLING_TYPE_SUBSCRIPTION, _OPENAI)
    return Billing(event_pb2.BILLING_TYPE_API, _OPENAI) if env.get("OPENAI_API_KEY") else Billing()


def renewing_login(env: Mapping[str, str]) -> RenewingLogin | None:
    """Return the ChatGPT login that would be used: Codex renews it with a token that is good for one use."""
    path = stored_file(_SPEC, env, _LOGIN_FILE)
    stored = read_json_object(path)
    tokens = inner(stored, "tokens")
    is_key = text(stored, "OPENAI_API_KEY") and text(stored, "auth_mode") != "chatgpt"
    if not text(tokens, "refresh_token") or is_key or env.get("CODEX_API_KEY"):
        return None
    provider = own_provider(read_config(env))
    if provider is not None and provider.get("requires_openai_auth") is not True:
        return None
    return RenewingLogin(path, login_expiry(stored))


def login_expiry(stored: Fields) -> float | None:
    """Return when the login of ``auth.json`` expires, in Unix seconds; None if the file does not have it. Pure."""
    claims = text(inner(stored, "tokens"), "access_token").split(".")
    if len(claims) == 3:
        try:
            payload = parse_json_object(base64.urlsafe_b64decode(claims[1] + "=" * (-len(claims[1]) % 4)))
        except ValueError:
            payload = None
        if (expires_at := number(payload or {}, "exp")) is not None:
            return expires_at
    try:
        return (datetime.fromisoformat(text(stored, "last_refresh")) + _RENEWED_AFTER).timestamp()
    except (ValueError, OverflowError):
        return None


def judge_provider(provider: Fields, env: Mapping[str, str]) -> AuthFinding:
    """Return the state of the login at a provider of the user's own. Pure."""
    name = text(provider, "env_key")
    if not name:
        return AuthFinding(pb.AUTH_STATE_UNKNOWN, "provider", "The provider of config.toml names no key.")
    if env.get(name):
        return AuthFinding(pb.AUTH_STATE_OK, f"provider key in {name}")
    return AuthFinding(pb.AUTH_STATE_MISSING, message=f"The provider of config.toml wants its key in {name}.")


def judge_status(exit_code: int | None, output: str) -> AuthFinding:
    """Return the state of the login that ``codex login status`` reports. Pure."""
    if exit_code == 0:
        lowered = output.lower()
        method = "chatgpt" if "chatgpt" in lowered else "api_key" if "api key" in lowered else "login"
        return AuthFinding(pb.AUTH_STATE_OK, method, subscription=method == "chatgpt")
    if "not logged in" in output.lower():
        return AuthFinding(pb.AUTH_STATE_MISSING)
    return AuthFinding(pb.AUTH_STATE_UNKNOWN, message=output.strip()[:400])


def own_provider(config: Fields) -> Fields | None:
    """Return the provider that ``config.toml`` selects, if it is one of its own. Pure."""
    providers = inner(config, "model_providers")
    provider = inner(providers, text(config, "model_provider"))
    return provider or None


def read_config(env: Mapping[str, str]) -> Fields:
    """Return the user's ``config.toml``; empty if there is none that can be read."""
    try:
        with stored_file(_SPEC, env, "config.toml").open("rb") as file:
            return tomllib.loads(file.read(_MOST_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError):
        return {}


def selected_model(config: Fields) -> SelectedModel:
    """Return what ``config.toml`` selects: by its profile, if it has one that is used. Pure."""
    profile = inner(inner(config, "profiles"), text(config, "profile"))
    model, provider = (text(profile, key) or text(config, key) for key in ("model", "model_provider"))
    return SelectedModel(model, provider or (_OPENAI if model else ""))


def default_model(config: Fields, models: Sequence[Fields]) -> str:
    """Return the model that Codex uses where none is asked for: its user's, else the first by its own order. Pure."""
    ranked = [(rank, text(model, "slug")) for model in models if (rank := count(model, "priority")) is not None]
    return text(config, "model") or (min(ranked)[1] if ranked else "")
