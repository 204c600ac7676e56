"""The installer of Go, with programs of our own: nothing is downloaded."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install-go"

# What pip would do: the folder that --target names gets a Go.
PYTHON = """#!/bin/sh
case "$*" in *--require-hashes*) ;; *) exit 7 ;; esac
while [ "$1" != --target ]; do shift; done
[ -z "$PIP_FAILS" ] || { echo "no such package" >&2; exit 1; }
mkdir -p "$2/go/bin"
printf '#!/bin/sh\\necho go1.26.6\\n' > "$2/go/bin/go"
chmod +x "$2/go/bin/go"
"""


class Checkout:
    """A copy of the script in a tree of its own, and the programs it finds."""

    def __init__(self, root: Path) -> None:
        self.script = root / "scripts" / "install-go"
        self.script.parent.mkdir()
        shutil.copy(SCRIPT, self.script)
        (root / ".tool-versions").write_text("golang 1.26.6\n", encoding="utf-8")
        self.own = root / "build" / "go" / "go" / "bin" / "go"
        self.programs = root / "bin"
        self.programs.mkdir()
        self.add("python3", PYTHON)

    def add(self, name: str, text: str) -> Path:
        program = self.programs / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
        return program

    def run(self, **environment: str) -> "subprocess.CompletedProcess[str]":
        search = os.pathsep.join([str(self.programs), "/usr/bin", "/bin"])
        return subprocess.run(
            [self.script], env={"PATH": search, **environment}, capture_output=True, text=True, check=False
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_go_on_the_path_is_taken_if_it_is_the_pinned_one(checkout: Checkout) -> None:
    go = checkout.add("go", "#!/bin/sh\necho go1.26.6\n")

    assert checkout.run().stdout.strip() == str(go)
    assert not checkout.own.exists()


@pytest.mark.parametrize("version", ["go1.24.9", "go1.26.7", "go1.26.66", "devel", ""])
def test_the_pinned_go_is_installed_in_place_of_another_one(checkout: Checkout, version: str) -> None:
    checkout.add("go", f"#!/bin/sh\necho '{version}'\n")

    assert checkout.run().stdout.strip() == str(checkout.own)
    # It stays: the second time nothing is installed.
    assert checkout.run(PIP_FAILS="yes").stdout.strip() == str(checkout.own)


def test_says_so_if_go_is_not_to_be_had(checkout: Checkout) -> None:
    checkout.add("go", "#!/bin/sh\nexit 2\n")

    ended = checkout.run(PIP_FAILS="yes")

    assert ended.returncode == 1
    assert "Go 1.26.6 is needed" in ended.stderr
    assert not list((checkout.script.parents[1] / "build").iterdir())
