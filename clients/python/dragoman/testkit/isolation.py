"""The environment under which a real agent program may be tested: nobody's home, login or network.

What an agent family needs is data here; nothing of the caller's environment but PATH is inherited.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: A key in the vendor's shape that opens nothing.
FAKE_KEY = "sk-ant-fake-0000-dragoman-testkit"


@dataclass(frozen=True, slots=True)
class AgentFamily:
    """What isolating one agent program takes.

    Attributes:
        executable: Its command name.
        environment: Variables of every run. ``{home}``, ``{config}`` and ``{tmp}`` stand for the
            folders below, made absolute.
        model: Variables of a run against a model server; ``{url}`` is its base address, ``{key}`` a
            fake key. Left out, the agent is logged out.
        config: The configuration folder, relative to the home.
    """

    executable: str
    config: str
    environment: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, str] = field(default_factory=dict)


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


def isolate(
    family: str, root: Path, *, model_url: str | None = None, bin_dir: Path | None = None
) -> Isolation:
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
