"""The environment in which a real agent program is tested: no user's home, no login, no network but loopback.

What an agent needs is data (`dragoman.testkit.profiles`); of the caller's environment only PATH is inherited.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.testkit.profiles import PROFILES
from dragoman.testkit.profiles.agent_profile import AgentProfile
from msgspec import Struct

#: A key in the vendor's shape that opens nothing.
FAKE_KEY = "sk-ant-fake-0000-dragoman-testkit"

#: 1 January 2100.
FAR_FUTURE_MS = 4_102_444_800_000


class Isolation(Struct, frozen=True):
    """Folders and variables of isolated runs; made by `isolate`.

    Attributes:
        profile: What was isolated.
        home: The home, empty but for the configuration folder.
        config: The configuration folder.
        tmp: The folder for temporary files.
        environment: The whole environment of the child; pass it as it is, add to a copy.
    """

    profile: AgentProfile
    home: Path
    config: Path
    tmp: Path
    environment: Mapping[str, str]


def isolate(
    profile: str | AgentProfile, root: Path, *, model_url: str | None = None, bin_dir: Path | None = None
) -> Isolation:
    """Lay out an isolated home below ``root`` and return its environment.

    Args:
        profile: The agent, or its key in `dragoman.testkit.profiles.PROFILES`.
        root: An existing folder of the caller's, such as pytest's ``tmp_path``.
        model_url: Base address of the model server, on loopback; None leaves the agent logged out.
        bin_dir: Folder put before PATH, where the agent is installed; None leaves PATH as it is.

    Returns:
        The folders, which exist, and the environment.

    Raises:
        KeyError: Unknown profile.
        ValueError: The model server is not on loopback.
    """
    facts = PROFILES[profile] if isinstance(profile, str) else profile
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
        "bin": str(bin_dir or ""),
        "url": model_url or "",
        "key": FAKE_KEY,
    }
    files = {**facts.files, **(facts.model_files if model_url else {})}
    for relative, text in files.items():
        path = home / relative.format_map(values)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format_map(values), encoding="utf-8")
    templates = {**facts.environment, **(facts.model if model_url else {})}
    search_path = os.environ.get("PATH", os.defpath)
    return Isolation(
        profile=facts,
        home=home,
        config=config,
        tmp=tmp,
        environment={
            "PATH": f"{bin_dir}{os.pathsep}{search_path}" if bin_dir else search_path,
            "HOME": str(home),
            "TMPDIR": str(tmp),
            "LANG": "C.UTF-8",
            **{name: text.format_map(values) for name, text in templates.items()},
        },
    )


def log_in(isolation: Isolation, *, expires_at_ms: int = FAR_FUTURE_MS) -> Path:
    """Write a fake login into an isolated home, as after a sign-in.

    With a login that has expired, do not start a run: it would try to renew it with the vendor, not with
    the model server. Asking the agent for its status is safe.

    Args:
        isolation: Where to.
        expires_at_ms: Its expiry, in Unix milliseconds.

    Returns:
        The file written.

    Raises:
        ValueError: The profile has no such file.
    """
    profile = isolation.profile
    if not profile.login_file:
        raise ValueError(f"{profile.executable} stores no login in a file")
    login: dict[str, Any] = json.loads(json.dumps(profile.login))
    if profile.login_expiry:
        *way, last = profile.login_expiry
        node = login
        for key in way:
            node = node[key]
        node[last] = expires_at_ms
    path = isolation.config / profile.login_file
    path.write_text(json.dumps(login), encoding="utf-8")
    path.chmod(0o600)
    return path
