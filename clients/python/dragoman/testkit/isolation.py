"""The environment under which a real agent program may be tested: nobody's home, login or network.

What an agent needs is data (`dragoman.testkit.family`); nothing of the caller's environment but PATH is inherited.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.testkit.families import FAMILIES
from dragoman.testkit.family import AgentFamily

#: A key in the vendor's shape that opens nothing.
FAKE_KEY = "sk-ant-fake-0000-dragoman-testkit"

#: 1 January 2100.
FAR_FUTURE_MS = 4_102_444_800_000


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


def isolate(
    family: str | AgentFamily, root: Path, *, model_url: str | None = None, bin_dir: Path | None = None
) -> Isolation:
    """Lay out an isolated home below ``root`` and say which environment goes with it.

    Args:
        family: The agent, or its key in `dragoman.testkit.families.FAMILIES`.
        root: An existing folder of the caller's, such as pytest's ``tmp_path``.
        model_url: Base address of the model server, on loopback; None leaves the agent logged out.
        bin_dir: Folder put before PATH, where the agent is installed; None leaves PATH as it is.

    Returns:
        The folders, which exist, and the environment.

    Raises:
        KeyError: Unknown family.
        ValueError: The model server is not on loopback.
    """
    facts = FAMILIES[family] if isinstance(family, str) else family
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
        family=facts,
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
    if family.login_expiry:
        *way, last = family.login_expiry
        place = login
        for key in way:
            place = place[key]
        place[last] = expires_at_ms
    path = isolation.config / family.login_file
    path.write_text(json.dumps(login), encoding="utf-8")
    path.chmod(0o600)
    return path
