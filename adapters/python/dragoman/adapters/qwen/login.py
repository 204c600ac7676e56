"""Whether Qwen Code knows a provider: a look at its variables and its settings. Changes nothing, asks nobody."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dragoman.sdk import AuthFinding, read_json_object
from dragoman.sdk.fields import inner, text
from dragoman.v1 import adapter_pb2 as pb

_KEYS: Final = ("OPENAI_API_KEY", "DASHSCOPE_API_KEY")
_OAUTH: Final = "qwen-oauth"


def find_login(env: Mapping[str, str]) -> AuthFinding:
    """Return whether it could reach a model, as far as its files and variables tell."""
    home = Path(env.get("QWEN_HOME") or Path(env.get("HOME") or Path.home()) / ".qwen")
    settings = read_json_object(home / "settings.json")
    auth = inner(inner(settings, "security"), "auth")
    method = text(auth, "selectedType")
    if method == _OAUTH:
        is_in = bool(text(read_json_object(home / "oauth_creds.json"), "access_token"))
        state = pb.AUTH_STATE_OK if is_in else pb.AUTH_STATE_MISSING
        return AuthFinding(state, method, subscription=is_in)
    stored = inner(settings, "env")
    if any(env.get(name) or text(stored, name) for name in _KEYS) or text(auth, "apiKey"):
        return AuthFinding(pb.AUTH_STATE_OK, method or "openai")
    # A provider of its user's own may name any variable, or need none.
    known = bool(inner(settings, "modelProviders"))
    return AuthFinding(pb.AUTH_STATE_UNKNOWN if known else pb.AUTH_STATE_MISSING, method if known else "")
