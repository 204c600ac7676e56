"""The installer of pinned agents, with an npm of our own: nothing is downloaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install-agents"

# What npm would do, and a journal of each call. Its Node.js runs a script as a shell would.
NPM = """#!/bin/sh
for package; do :; done
echo "$package $* on $PATH" >> "$JOURNAL"
[ "$NPM_FAILS" != "$package" ] || { echo "no such package" >&2; exit 7; }
while [ "$1" != "--prefix" ]; do shift; done
case $package in
  node@*) path=node/bin/node text='[ "$1" = --version ] && echo v24.21.0 || exec /bin/sh "$@"' ;;
  @google/*) path=@google/gemini-cli/bundle/gemini.js text='echo "0.61.0 $$ $*"' ;;
  *) path=@anthropic-ai/claude-code-test/claude text="echo '$SAYS (Claude Code)'" ;;
esac
mkdir -p "$2/node_modules/${path%/*}"
printf '#!/bin/sh\n%s\n' "$text" > "$2/node_modules/$path"
chmod +x "$2/node_modules/$path"
"""
CLAUDE = "@anthropic-ai/claude-code@2.1.330"
GEMINI = "@google/gemini-cli@0.61.0"


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
    def installs(self) -> list[str]:
        """Each call of npm, its package first."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_installs_once_and_links_the_executable(checkout: Checkout) -> None:
    first = checkout.run("claude")
    assert first.returncode == 0, first.stderr
    link = checkout.agents / "bin" / "claude"
    assert not link.readlink().is_absolute()
    assert "2.1.330" in subprocess.check_output([link], text=True)
    assert checkout.run("claude").returncode == 0
    assert len(checkout.installs) == 1
    assert f"claude\t{CLAUDE}\tinstalled" in checkout.run("--list").stdout


def test_another_pin_or_a_missing_link_installs_again(checkout: Checkout) -> None:
    checkout.run("claude")
    (checkout.agents / "claude" / "stamp").write_text("@anthropic-ai/claude-code@0.0.1")
    assert checkout.run("claude").returncode == 0
    (checkout.agents / "bin" / "claude").unlink()
    assert checkout.run("claude").returncode == 0
    assert len(checkout.installs) == 3


def test_an_executable_of_another_version_is_refused_and_nothing_is_left(checkout: Checkout) -> None:
    done = checkout.run("claude", SAYS="9.9.9")
    assert done.returncode == 1
    assert "expected 2.1.330" in done.stderr
    assert not (checkout.agents / "claude").exists()
    assert sorted(path.name for path in checkout.agents.iterdir()) == ["lock"]


def test_the_old_one_stays_when_the_new_one_fails(checkout: Checkout) -> None:
    checkout.run("claude")
    (checkout.agents / "claude" / "stamp").write_text("older")
    done = checkout.run("claude", NPM_FAILS=CLAUDE)
    assert (done.returncode, "exit 7" in done.stderr, "no such package" in done.stderr) == (1, True, True)
    assert (checkout.agents / "bin" / "claude").exists()


def test_a_script_brings_its_node_and_is_started_by_it(checkout: Checkout) -> None:
    done = checkout.run("gemini")
    assert done.returncode == 0, done.stderr
    node, gemini = checkout.installs
    assert (node.split()[0], gemini.split()[0]) == ("node@24.21.0", GEMINI)
    assert ("--ignore-scripts=false" in node, "--ignore-scripts=true" in gemini) == (True, True)
    assert f" on {checkout.agents / 'bin'}{os.pathsep}" in gemini, "npm was run by another Node.js"
    moved = checkout.agents.rename(checkout.agents.with_name("moved"))
    with subprocess.Popen([moved / "bin" / "gemini", "a b", "-c"], stdout=subprocess.PIPE, text=True) as started:
        output, _ = started.communicate(timeout=30)
    assert output == f"0.61.0 {started.pid} a b -c\n", "the launcher has to become the agent"


def test_what_needs_no_node_comes_without_it(checkout: Checkout) -> None:
    checkout.run("claude")
    assert [call.split()[0] for call in checkout.installs] == [CLAUDE]


def test_one_that_fails_does_not_keep_the_others_away(checkout: Checkout) -> None:
    done = checkout.run("gemini", "claude", NPM_FAILS=GEMINI)
    assert (done.returncode, f"npm install {GEMINI}: exit 7" in done.stderr) == (1, True)
    assert (checkout.agents / "bin" / "claude").exists()
    assert sorted(path.name for path in checkout.agents.iterdir()) == ["bin", "claude", "lock", "node"]


def test_without_node_no_script_is_tried(checkout: Checkout) -> None:
    assert checkout.run("gemini", NPM_FAILS="node@24.21.0").returncode == 1
    assert len(checkout.installs) == 1


def test_without_npm_it_says_what_to_install(checkout: Checkout) -> None:
    done = checkout.run("claude", path="/nowhere")
    assert done.returncode == 1
    assert "npm is not on PATH" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_name_is_a_usage_error(checkout: Checkout) -> None:
    done = checkout.run("clod")
    assert (done.returncode, "known: node, claude" in done.stderr) == (2, True)
