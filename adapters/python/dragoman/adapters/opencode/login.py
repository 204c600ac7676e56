"""Whether opencode can reach a model: its store of logins, the user's keys, and providers of the user's own.

Only files are looked at: ``opencode auth list`` says the same for people, and takes seconds.
"""

import json
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from dragoman.sdk import AuthFinding, JsonValue, as_int, as_object, as_string
from dragoman.v1 import adapter_pb2 as pb

_MOST_BYTES: Final = 1024 * 1024
_CONFIG_FILES: Final = ("opencode.jsonc", "opencode.json", "config.json")
_COMMENTS: Final = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMAS: Final = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*[}\]])')


def find_login(env: Mapping[str, str], keys: Collection[str]) -> AuthFinding:
    """Return whether there is a login.

    Args:
        env: the environment of the run.
        keys: variables with keys of providers.
    """
    stored = read_object(_data_dir(env) / "auth.json") | parse_jsonc(env.get("OPENCODE_AUTH_CONTENT", ""))
    return judge(stored, _providers(env), [name for name in keys if env.get(name)], now_ms=int(time.time() * 1000))


def judge(
    stored: Mapping[str, JsonValue], providers: Collection[str], keys: Collection[str], *, now_ms: int
) -> AuthFinding:
    """Sum up what was seen. Pure.

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


def _providers(env: Mapping[str, str]) -> list[str]:
    """Return the providers that the user's own configuration files describe."""
    places = [Path(env["OPENCODE_CONFIG"])] if env.get("OPENCODE_CONFIG") else []
    folders = [_base(env, "XDG_CONFIG_HOME", ".config") / "opencode"]
    folders += [Path(env["OPENCODE_CONFIG_DIR"])] if env.get("OPENCODE_CONFIG_DIR") else []
    places += [folder / name for folder in folders for name in _CONFIG_FILES]
    return [name for place in places for name in as_object(read_object(place).get("provider"), {})]


def _data_dir(env: Mapping[str, str]) -> Path:
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
