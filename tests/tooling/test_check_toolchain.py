"""The check of toolchains, with programs of our own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .programs import ROOT

PINS = "golang 1.26.6\njava 17\nmaven 3.8\nnodejs 20\n"
PRINTS = {
    "java": ("java", 'openjdk version "17.0.15" 2025-04-15'),
    "maven": ("mvn", "Apache Maven 3.8.7\nJava version: 17.0.15"),
    "nodejs": ("node", "v20.20.2"),
    "rust": ("cargo", "cargo 1.95.0 (f2d3ce0bd 2026-03-21)"),
}
OTHER = {
    "java": 'openjdk version "21.0.2"',
    "maven": "Apache Maven 3.9.1",
    "nodejs": "v200.1.0",
    "rust": "cargo 1.95.1",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the script with its pins, and a toolchain that fits them."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/check-toolchain", tmp_path / "scripts")
    (tmp_path / ".tool-versions").write_text(PINS, encoding="utf-8")
    (tmp_path / "adapters/rust").mkdir(parents=True)
    (tmp_path / "adapters/rust/rust-toolchain.toml").write_text('[toolchain]\nchannel = "1.95.0"\n', encoding="utf-8")
    (tmp_path / "bin").mkdir()
    for program, printed in PRINTS.values():
        add(tmp_path, program, printed)
    return tmp_path


def add(checkout: Path, program: str, printed: str) -> None:
    path = checkout / "bin" / program
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n", encoding="utf-8")
    path.chmod(0o755)


def check(checkout: Path, *tools: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [checkout / "scripts/check-toolchain", *tools],
        env={"PATH": f"{checkout}/bin{os.pathsep}/usr/bin{os.pathsep}/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_pinned_ones_pass(checkout: Path) -> None:
    done = check(checkout, *PRINTS)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("tool", PRINTS)
def test_another_one_is_named(tool: str, checkout: Path) -> None:
    add(checkout, PRINTS[tool][0], OTHER[tool])
    done = check(checkout, *PRINTS)
    assert done.returncode == 1
    assert done.stderr.count(" is needed") == 1
    assert done.stderr.startswith(f"{tool} ")
    assert check(checkout, *PRINTS, ANY_TOOLCHAIN="1").returncode == 0


def test_one_that_is_missing_or_broken_is_named(checkout: Path) -> None:
    add(checkout, "cargo", "error: toolchain is not installed")
    done = check(checkout, "rust")
    assert done.returncode == 1
    assert "rust 1.95.0 is needed, and there is none" in done.stderr


def test_the_pins_of_this_checkout_are_complete() -> None:
    pinned = {line.split()[0] for line in (ROOT / ".tool-versions").read_text().splitlines() if line[0] != "#"}
    assert pinned | {"rust"} == {"golang", *PRINTS}
    assert "scripts/check-toolchain java maven nodejs rust" in (ROOT / ".ci/run").read_text()
