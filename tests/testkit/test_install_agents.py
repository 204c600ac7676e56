"""The installer of pinned agents, with an npm of our own: nothing is downloaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install-agents"

# What npm would do, and a journal of each call.
NPM = """#!/bin/sh
echo called >> "$JOURNAL"
[ -z "$NPM_FAILS" ] || { echo "no such package" >&2; exit 7; }
while [ "$1" != "--prefix" ]; do shift; done
mkdir -p "$2/node_modules/@anthropic-ai/claude-code-test"
printf '#!/bin/sh\\necho "%s (Claude Code)"\\n' "$SAYS" > "$2/node_modules/@anthropic-ai/claude-code-test/claude"
chmod +x "$2/node_modules/@anthropic-ai/claude-code-test/claude"
"""


class Checkout:
    """A copy of the script in a tree of its own, so that its .agents folder is, too."""

    def __init__(self, root: Path) -> None:
        self.script = root / "scripts" / "install-agents"
        self.script.parent.mkdir()
        shutil.copy(SCRIPT, self.script)
        self.agents = root / ".agents"
        self.journal = root / "journal"
        self.bin = root / "bin"
        self.bin.mkdir()
        (self.bin / "npm").write_text(NPM)
        (self.bin / "npm").chmod(0o755)

    def run(self, *arguments: str, path: str | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
        search = path if path is not None else f"{self.bin}{os.pathsep}{os.defpath}"
        return subprocess.run(
            [sys.executable, self.script, *arguments],
            check=False,
            capture_output=True,
            text=True,
            env={"PATH": search, "JOURNAL": str(self.journal), "SAYS": "2.1.330", **env},
        )

    @property
    def installs(self) -> int:
        return len(self.journal.read_text().splitlines()) if self.journal.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_installs_once_and_links_the_executable(checkout: Checkout) -> None:
    first = checkout.run()
    assert first.returncode == 0, first.stderr
    link = checkout.agents / "bin" / "claude"
    assert not link.readlink().is_absolute()
    assert "2.1.330" in subprocess.check_output([link], text=True)
    assert checkout.run("claude").returncode == 0
    assert checkout.installs == 1
    assert "installed" in checkout.run("--list").stdout


def test_another_pin_or_a_missing_link_installs_again(checkout: Checkout) -> None:
    checkout.run()
    (checkout.agents / "claude" / "stamp").write_text("@anthropic-ai/claude-code@0.0.1")
    assert checkout.run().returncode == 0
    (checkout.agents / "bin" / "claude").unlink()
    assert checkout.run().returncode == 0
    assert checkout.installs == 3


def test_an_executable_of_another_version_is_refused_and_nothing_is_left(checkout: Checkout) -> None:
    done = checkout.run(SAYS="9.9.9")
    assert done.returncode == 1
    assert "expected 2.1.330" in done.stderr
    assert not (checkout.agents / "claude").exists()
    assert sorted(path.name for path in checkout.agents.iterdir()) == ["lock"]


def test_the_old_one_stays_when_the_new_one_fails(checkout: Checkout) -> None:
    checkout.run()
    (checkout.agents / "claude" / "stamp").write_text("older")
    done = checkout.run(NPM_FAILS="1")
    assert (done.returncode, "exit 7" in done.stderr, "no such package" in done.stderr) == (1, True, True)
    assert (checkout.agents / "bin" / "claude").exists()


def test_without_npm_it_says_what_to_install(checkout: Checkout) -> None:
    done = checkout.run(path="/nowhere")
    assert done.returncode == 1
    assert "npm is not on PATH" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_name_is_a_usage_error(checkout: Checkout) -> None:
    done = checkout.run("clod")
    assert (done.returncode, "known: claude" in done.stderr) == (2, True)
