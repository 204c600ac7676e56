"""The environment under which a real agent program may be tested: nobody's home, login or network.

What an agent family needs is data here; nothing of the caller's environment but PATH is inherited.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: A key in the vendor's shape that opens nothing.
FAKE_KEY = "sk-ant-fake-0000-dragoman-testkit"

#: 1 January 2100.
FAR_FUTURE_MS = 4_102_444_800_000


@dataclass(frozen=True, slots=True)
class AgentFamily:
    """What isolating one agent program takes.

    Attributes:
        executable: Its command name.
        environment: Variables of every run. ``{home}``, ``{config}`` and ``{tmp}`` stand for the
            folders below, made absolute.
        login_file: File below the configuration folder that holds a login; empty if there is none.
        login: What `log_in` writes into it.
        login_expiry: Where in that its expiry is, in Unix milliseconds.
        model: Variables of a run against a model server; ``{url}`` is its base address, ``{key}`` a
            fake key. Left out, the agent is logged out.
        config: The configuration folder, relative to the home.
    """

    executable: str
    config: str
    environment: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, str] = field(default_factory=dict)
    login_file: str = ""
    login: Mapping[str, object] = field(default_factory=dict)
    login_expiry: tuple[str, ...] = ()


FAMILIES: Mapping[str, AgentFamily] = {
    "claude": AgentFamily(
        executable="claude",
        config=".claude",
        environment={
            "CLAUDE_CONFIG_DIR": "{config}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MAX_RETRIES": "2",
        },
        model={"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{key}"},
        login_file=".credentials.json",
        login={
            "claudeAiOauth": {
                "accessToken": "sk-ant-oat01-fake",
                "refreshToken": "sk-ant-ort01-fake",
                "scopes": ["user:inference", "user:profile"],
                "subscriptionType": "max",
            }
        },
        login_expiry=("claudeAiOauth", "expiresAt"),
    ),
}


@dataclass(frozen=True, slots=True)
class Isolation:
    """Folders and variables of isolated runs; made by `isolate`.

    Attributes:
        family: What was isolated.
        home: The home, empty but for the configuration folder.
        config: The configuration folder.
        tmp: The folder for temporary files.
        environment: The whole environment of the child; pass it as it is, add to a copy.
    """

    family: AgentFamily
    home: Path
    config: Path
    tmp: Path
    environment: Mapping[str, str]


def isolate(family: str, root: Path, *, model_url: str | None = None, bin_dir: Path | None = None) -> Isolation:
    """Lay out an isolated home below ``root`` and say which environment goes with it.

    Args:
        family: Key of `FAMILIES`.
        root: An existing folder of the caller's, such as pytest's ``tmp_path``.
        model_url: Base address of the model server, on loopback; None leaves the agent logged out.
        bin_dir: Folder put before PATH, where the agent is installed; None leaves PATH as it is.

    Returns:
        The folders, which exist, and the environment.

    Raises:
        KeyError: Unknown family.
        ValueError: The model server is not on loopback.
    """
    facts = FAMILIES[family]
    if model_url is not None and not model_url.startswith("http://127.0.0.1:"):
        raise ValueError(f"isolated agents only talk to http://127.0.0.1, not to {model_url}")
    home = root.resolve() / "home"
    config, tmp = home / facts.config, root.resolve() / "tmp"
    for folder in (config, tmp):
        folder.mkdir(parents=True, exist_ok=True)
    values = {
        "home": str(home),
        "config": str(config),
        "tmp": str(tmp),
        "url": model_url or "",
        "key": FAKE_KEY,
    }
    templates = {**facts.environment, **(facts.model if model_url else {})}
    path = os.environ.get("PATH", os.defpath)
    return Isolation(
        family=facts,
        home=home,
        config=config,
        tmp=tmp,
        environment={
            "PATH": f"{bin_dir}{os.pathsep}{path}" if bin_dir else path,
            "HOME": str(home),
            "TMPDIR": str(tmp),
            "LANG": "C.UTF-8",
            **{name: text.format_map(values) for name, text in templates.items()},
        },
    )


def log_in(isolation: Isolation, *, expires_at_ms: int = FAR_FUTURE_MS) -> Path:
    """Leave a fake login in an isolated home, as if somebody had signed in there.

    With a login that has expired, do not start a run: it would try to renew it with the vendor, not with
    the model server. Asking the agent for its status is safe.

    Args:
        isolation: Where to.
        expires_at_ms: Its expiry, in Unix milliseconds.

    Returns:
        The file written.

    Raises:
        ValueError: The family has no such file.
    """
    family = isolation.family
    if not family.login_file:
        raise ValueError(f"{family.executable} keeps no login in a file")
    login: dict[str, Any] = json.loads(json.dumps(family.login))
    *way, last = family.login_expiry
    place = login
    for key in way:
        place = place[key]
    place[last] = expires_at_ms
    path = isolation.config / family.login_file
    path.write_text(json.dumps(login), encoding="utf-8")
    path.chmod(0o600)
    return path
