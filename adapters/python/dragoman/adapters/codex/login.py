"""Whether Codex can reach a model: a provider of its user's own, or a login. Looks, and changes nothing."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dragoman.sdk import AuthFinding, probe
from dragoman.sdk.fields import Fields, inner, text
from dragoman.v1 import adapter_pb2 as pb

CONFIG_DIR: Final = ".codex"
CONFIG_DIR_VARIABLE: Final = "CODEX_HOME"
PROVIDER_KEYS: Final = ("OPENAI_API_KEY", "CODEX_API_KEY")

_STATUS_LIMIT_S: Final = 6.0
_MOST_BYTES: Final = 1024 * 1024


async def find_login(executable: str, env: Mapping[str, str]) -> AuthFinding:
    """Return whether Codex is logged in, as it would see it with this environment."""
    provider = own_provider(read_config(env))
    if provider is not None:
        return judge_provider(provider, env)
    if not config_dir(env).is_dir():
        return AuthFinding(pb.AUTH_STATE_MISSING)  # Codex refuses to run without it
    answer = await probe([executable, "login", "status"], env, _STATUS_LIMIT_S)
    if answer.timed_out:
        return AuthFinding(pb.AUTH_STATE_UNKNOWN, message="`codex login status` gave no answer.")
    return judge_status(answer.exit_code, f"{answer.stdout}\n{answer.stderr}")


def judge_provider(provider: Fields, env: Mapping[str, str]) -> AuthFinding:
    """Sum up what a provider of the user's own needs. Pure."""
    name = text(provider, "env_key")
    if not name:
        return AuthFinding(pb.AUTH_STATE_UNKNOWN, "provider", "The provider of config.toml names no key.")
    if env.get(name):
        return AuthFinding(pb.AUTH_STATE_OK, f"provider key in {name}")
    return AuthFinding(pb.AUTH_STATE_MISSING, message=f"The provider of config.toml wants its key in {name}.")


def judge_status(exit_code: int | None, said: str) -> AuthFinding:
    """Sum up what ``codex login status`` said. Pure."""
    if exit_code == 0:
        lowered = said.lower()
        method = "chatgpt" if "chatgpt" in lowered else "api_key" if "api key" in lowered else "login"
        return AuthFinding(pb.AUTH_STATE_OK, method, subscription=method == "chatgpt")
    if "not logged in" in said.lower():
        return AuthFinding(pb.AUTH_STATE_MISSING)
    return AuthFinding(pb.AUTH_STATE_UNKNOWN, message=said.strip()[:400])


def own_provider(config: Fields) -> Fields | None:
    """Return the provider that ``config.toml`` selects, if it is one of its own. Pure."""
    providers = inner(config, "model_providers")
    provider = inner(providers, text(config, "model_provider"))
    return provider or None


def read_config(env: Mapping[str, str]) -> Fields:
    """Return the user's ``config.toml``; empty if there is none that can be read."""
    try:
        return tomllib.loads(_read(config_dir(env) / "config.toml"))
    except ValueError:
        return {}


def config_dir(env: Mapping[str, str]) -> Path:
    """Return where Codex keeps its configuration, its login and its threads."""
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    return Path(env.get(CONFIG_DIR_VARIABLE) or home / CONFIG_DIR)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
