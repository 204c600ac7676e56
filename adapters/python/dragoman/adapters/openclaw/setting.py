"""Where a user's OpenClaw keeps its things, and what a gateway of ours for them is like. Pure but for reading."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dragoman.sdk import JsonValue

STATE_VARIABLE: Final = "OPENCLAW_STATE_DIR"
CONFIG_VARIABLE: Final = "OPENCLAW_CONFIG_PATH"
STATE_DIR: Final = ".openclaw"
CONFIG_FILE: Final = "openclaw.json"
PLUGIN: Final = "plugin"
RUNS: Final = "runs"
"""Folders of a gateway of ours: the plugin, and what belongs to single runs."""

INHERITED: Final = (
    *(STATE_VARIABLE, CONFIG_VARIABLE, "OPENCLAW_HOME", "OPENCLAW_NO_AUTO_UPDATE", "NODE_COMPILE_CACHE"),
    # Who pays, and where the model is.
    *("ANTHROPIC_API_KEY", "ANTHROPIC_OAUTH_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"),
    *("OPENROUTER_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY", "XAI_API_KEY", "DEEPSEEK_API_KEY", "ZAI_API_KEY"),
    *("MOONSHOT_API_KEY", "MINIMAX_API_KEY", "COPILOT_GITHUB_TOKEN", "OLLAMA_API_KEY"),
)
"""Variables that OpenClaw needs of the adapter's own environment, by name."""

_EVERYDAY: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "DO_NOT_TRACK"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    }
)
_FAMILIES: Final = ("OPENCLAW_", "LC_", "XDG_")
_NAMED: Final = re.compile(r"\$\{([A-Z_][A-Z0-9_]{0,127})\}")
_FIXED: Final = {
    "OPENCLAW_DISABLE_BONJOUR": "1",  # nobody on the network is to hear of it
    "OPENCLAW_SKIP_CHANNELS": "1",  # messengers belong to the user's own gateway
    "OPENCLAW_SKIP_CRON": "1",
    "OPENCLAW_NO_RESPAWN": "1",
    "OPENCLAW_NO_AUTO_UPDATE": "1",  # a program must not change while runs use it
    "OPENCLAW_HIDE_BANNER": "1",
    "OPENCLAW_SUPPRESS_NOTES": "1",
    "OPENCLAW_EXEC_SHELL_SNAPSHOT": "0",
    "NO_COLOR": "1",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a gateway is started with. Runs of equal settings share one; a state directory has one at a time."""

    executable: str
    state_dir: Path
    config: Path
    environment: Mapping[str, str] = field(repr=False)


def state_dir(env: Mapping[str, str]) -> Path:
    """Return the directory with sessions, logins and skills."""
    home = env.get("OPENCLAW_HOME") or env.get("HOME") or "/"
    return Path(env.get(STATE_VARIABLE) or Path(home) / STATE_DIR)


def config_file(env: Mapping[str, str]) -> Path:
    """Return the user's own configuration, which need not exist."""
    return Path(env.get(CONFIG_VARIABLE) or state_dir(env) / CONFIG_FILE)


def read_setting(executable: str, env: Mapping[str, str]) -> Setting:
    """Return what the gateway for an environment is started with.

    A gateway outlives the run that it was started for, and serves others: of the run's variables it gets those of
    everyday use, OpenClaw's own, the keys of providers, and what the configuration names. All others are the run's,
    and reach its tools by way of the plugin.
    """
    config = config_file(env)
    try:
        words = config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        words = ""
    wanted = _EVERYDAY | {*INHERITED, *_NAMED.findall(words)}
    kept = {name: value for name, value in env.items() if name in wanted or name.startswith(_FAMILIES)}
    return Setting(executable, state_dir(env), config, {**kept, **_FIXED})


def own_config(setting: Setting, port: int, folder: Path) -> dict[str, JsonValue]:
    """Return the configuration of a gateway of ours: the user's, which stays as it is, with what has to differ."""
    return {
        "gateway": {
            "mode": "local",
            "port": port,
            "bind": "loopback",
            "auth": {"mode": "token", "token": "${OPENCLAW_GATEWAY_TOKEN}"},
            "tls": {"enabled": False},
            "controlUi": {"enabled": False},
        },
        **_common_config(setting, folder),
    }


def local_config(setting: Setting, folder: Path, cwd: str) -> dict[str, JsonValue]:
    """Return the configuration of one run without a gateway: the user's, with what has to differ."""
    made = _common_config(setting, folder, local=True)
    if cwd:
        made["agents"] = {"defaults": {"cwd": cwd}}
    return made


def local_environment(setting: Setting, config: Path) -> dict[str, str]:
    """Return the variables of one run without a gateway, with ``config`` as its configuration."""
    return {
        **_FIXED,
        STATE_VARIABLE: str(setting.state_dir),
        CONFIG_VARIABLE: str(config),
        "OPENCLAW_INCLUDE_ROOTS": str(setting.config.resolve().parent),
    }


def _common_config(setting: Setting, folder: Path, *, local: bool = False) -> dict[str, JsonValue]:
    entry: dict[str, JsonValue] = {"enabled": True, "config": {"runs": str(folder / RUNS)}}
    if local:
        entry["config"] = {"runs": str(folder / RUNS), "local": True}
        entry["hooks"] = {"allowConversationAccess": True}  # to add to the system prompt
    made: dict[str, JsonValue] = {
        "plugins": {
            "enabled": True,
            "load": {"paths": [str(folder / PLUGIN)]},
            "entries": {"dragoman": entry},
        },
        "logging": {"file": str(folder / "openclaw.log")},
        "update": {"checkOnStart": False},
    }
    if setting.config.is_file():
        made["$include"] = str(setting.config.resolve())
    return made


def run_file(key: str) -> str:
    """Return the name of the file by which the plugin finds what belongs to a session."""
    return f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def tool_environment(setting: Setting, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are the run's own, and that the gateway does not have."""
    return {name: value for name, value in env.items() if setting.environment.get(name) != value}
