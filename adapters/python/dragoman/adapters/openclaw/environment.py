"""The directories of a user's OpenClaw, and the configuration of the adapter's gateway. Pure but for reading."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dragoman.sdk.detection import SelectedModel
from dragoman.sdk.fields import Fields, JsonValue, inner, text
from dragoman.sdk.spec import agent_spec

STATE_VARIABLE: Final = agent_spec(__package__).config_dir_variable
CONFIG_VARIABLE: Final = "OPENCLAW_CONFIG_PATH"
STATE_DIR: Final = agent_spec(__package__).config_dir_name
CONFIG_FILE: Final = "openclaw.json"
PLUGIN: Final = "plugin"
RUNS: Final = "runs"
"""Folders of the adapter's gateway: the plugin, and the files of single runs."""

_COMMON: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "DO_NOT_TRACK"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    }
)
_FAMILIES: Final = ("OPENCLAW_", "LC_", "XDG_")
_NAMED: Final = re.compile(r"\$\{([A-Z_][A-Z0-9_]{0,127})\}")
_FIXED: Final = {
    "OPENCLAW_DISABLE_BONJOUR": "1",  # it must not be announced on the network
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
    """What a gateway is started with. Runs with equal settings share one; a state directory has one at a time."""

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


def selected_model(config: Fields) -> SelectedModel:
    """Return the model of ``agents.defaults``, which is a text, or has one in ``primary``. Pure."""
    defaults = inner(inner(config, "agents"), "defaults")
    name = text(defaults, "model") or text(inner(defaults, "model"), "primary")
    provider, slash, model = name.partition("/")
    return SelectedModel(model, provider) if slash else SelectedModel(provider)


def read_setting(executable: str, env: Mapping[str, str]) -> Setting:
    """Return the setting of the gateway for an environment.

    A gateway outlives the run that it was started for, and serves others: of the run's variables it gets the
    common ones, OpenClaw's own, the keys of providers, and those in the configuration. All others are the run's, and
    reach its tools through the plugin.
    """
    config = config_file(env)
    try:
        content = config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        content = ""
    names = _COMMON | {*agent_spec(__package__).inherit, *_NAMED.findall(content)}
    shared = {name: value for name, value in env.items() if name in names or name.startswith(_FAMILIES)}
    return Setting(executable, state_dir(env), config, {**shared, **_FIXED})


def own_config(setting: Setting, port: int, folder: Path) -> dict[str, JsonValue]:
    """Return the configuration of the adapter's gateway: it includes the user's, which stays unchanged."""
    config: dict[str, JsonValue] = {
        "gateway": {
            "mode": "local",
            "port": port,
            "bind": "loopback",
            "auth": {"mode": "token", "token": "${OPENCLAW_GATEWAY_TOKEN}"},
            "tls": {"enabled": False},
            "controlUi": {"enabled": False},
        },
        "plugins": {
            "enabled": True,
            "load": {"paths": [str(folder / PLUGIN)]},
            "entries": {"dragoman": {"enabled": True, "config": {"runs": str(folder / RUNS)}}},
        },
        "logging": {"file": str(folder / "openclaw.log")},
        "update": {"checkOnStart": False},
    }
    if setting.config.is_file():
        config["$include"] = str(setting.config.resolve())
    return config


def run_file(key: str) -> str:
    """Return the name of the file in which the plugin finds the run of a session."""
    return f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def tool_environment(setting: Setting, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are the run's own, and that the gateway does not have."""
    return {name: value for name, value in env.items() if setting.environment.get(name) != value}
