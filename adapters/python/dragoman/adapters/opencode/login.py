"""Whether opencode can reach a model: its store of logins, the user's keys, and providers of the user's own.

Only files are read: ``opencode auth list`` shows the same, and takes seconds.
"""

import json
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from dragoman.sdk.detection import AuthFinding, Billing, RenewingLogin
from dragoman.sdk.fields import JsonValue, as_int, as_object, as_string
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_MOST_BYTES: Final = 1024 * 1024
_CONFIG_FILES: Final = ("opencode.jsonc", "opencode.json", "config.json")
_COMMENTS: Final = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMAS: Final = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])')


def find_login(env: Mapping[str, str], keys: Collection[str]) -> AuthFinding:
    """Return whether there is a login."""
    stored = _stored(env)
    return judge(stored, _providers(env), [name for name in keys if env.get(name)], now_ms=int(time.time() * 1000))


def find_billing(env: Mapping[str, str], provider: str, keys: Collection[str]) -> Billing:
    """Return who pays how for a provider's models, by the login stored for it, else by the keys of ``env``.

    Args:
        env: the environment of the run.
        provider: whose models were used; empty if that is not known.
        keys: variables with keys of providers.
    """
    if not provider:
        return Billing()
    kind = as_string(as_object(_stored(env).get(provider), {}).get("type"), "")
    if kind == "oauth":
        return Billing(event_pb2.BILLING_TYPE_SUBSCRIPTION, provider)
    name = provider.replace("-", "_").upper()
    has_key = kind == "api" or any(env.get(key) and key.startswith(f"{name}_") for key in keys)
    return Billing(event_pb2.BILLING_TYPE_API if has_key else event_pb2.BILLING_TYPE_UNSPECIFIED, provider)


def _stored(env: Mapping[str, str]) -> dict[str, JsonValue]:
    return read_object(data_dir(env) / "auth.json") | parse_jsonc(env.get("OPENCODE_AUTH_CONTENT", ""))


def renewing_login(env: Mapping[str, str], *, provider: str = "") -> RenewingLogin | None:
    """Return the store of logins, if opencode renews the one that would be used.

    Args:
        env: the environment of the run.
        provider: the model's provider; empty if opencode chooses, so that any login may be used.
    """
    path = data_dir(env) / "auth.json"
    stored = {name: as_object(entry, {}) for name, entry in read_object(path).items()}
    used = [entry for name, entry in stored.items() if provider in {"", name} and entry.get("refresh")]
    return RenewingLogin(path, min(as_int(entry.get("expires"), 0) for entry in used) / 1000) if used else None


def judge(
    stored: Mapping[str, JsonValue], providers: Collection[str], keys: Collection[str], *, now_ms: int
) -> AuthFinding:
    """Return the state of the login. Pure.

    Args:
        stored: the logins by provider, each with its ``type``.
        providers: the providers that the user's configuration describes.
        keys: the variables with keys that are set.
        now_ms: the present, in Unix milliseconds.
    """
    entries = {name: as_object(entry, {}) for name, entry in stored.items()}
    working = {name: entry for name, entry in entries.items() if not _has_expired(entry, now_ms)}
    if working:
        kinds = sorted({as_string(entry.get("type"), "stored") for entry in working.values()})
        return AuthFinding(pb.AUTH_STATE_OK, "+".join(kinds))
    if keys:
        return AuthFinding(pb.AUTH_STATE_OK, "api_key")
    if providers:
        return AuthFinding(pb.AUTH_STATE_OK, "config")
    return AuthFinding(pb.AUTH_STATE_EXPIRED, "oauth") if entries else AuthFinding(pb.AUTH_STATE_MISSING)


def _has_expired(entry: Mapping[str, JsonValue], now_ms: int) -> bool:
    expires_at = as_int(entry.get("expires"), 0)
    can_renew = bool(entry.get("refresh"))
    return bool(expires_at) and expires_at <= now_ms and not can_renew


def configured_model(env: Mapping[str, str]) -> str:
    """Return the model that the user's own configuration files choose; empty if opencode decides."""
    return next((name for path in _config_files(env) if (name := as_string(read_object(path).get("model"), ""))), "")


def _providers(env: Mapping[str, str]) -> list[str]:
    """Return the providers that the user's own configuration files describe."""
    return [name for path in _config_files(env) for name in as_object(read_object(path).get("provider"), {})]


def _config_files(env: Mapping[str, str]) -> list[Path]:
    """Return where the user's own configuration may be."""
    paths = [Path(env["OPENCODE_CONFIG"])] if env.get("OPENCODE_CONFIG") else []
    folders = [_base(env, "XDG_CONFIG_HOME", ".config") / "opencode"]
    folders += [Path(env["OPENCODE_CONFIG_DIR"])] if env.get("OPENCODE_CONFIG_DIR") else []
    return [*paths, *(folder / name for folder in folders for name in _CONFIG_FILES)]


def data_dir(env: Mapping[str, str]) -> Path:
    """Return where opencode keeps logins and sessions, with this environment."""
    return _base(env, "XDG_DATA_HOME", ".local/share") / "opencode"


def _base(env: Mapping[str, str], variable: str, default: str) -> Path:
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    return Path(env[variable]) if env.get(variable) else home / default


def read_object(path: Path) -> dict[str, JsonValue]:
    """Return the JSON object in a file, comments allowed; empty if there is none."""
    try:
        with path.open("rb") as file:
            return parse_jsonc(file.read(_MOST_BYTES).decode("utf-8", "replace"))
    except OSError:
        return {}


def parse_jsonc(text: str) -> dict[str, JsonValue]:
    """Return the JSON object in a text with comments and trailing commas; empty if there is none. Pure."""
    plain = _COMMENTS.sub(lambda found: found[1] or "", text)
    plain = _TRAILING_COMMAS.sub(lambda found: found[1] or "", plain)
    try:
        value = json.loads(plain)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
