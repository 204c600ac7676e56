"""``dragoman adapter new``: the project of each language does what its README says, as it is written."""

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from dragoman.cli.commands import new_adapter
from dragoman.cli.main import cli

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MOST_LINES = 100
LIMIT_S = 280


@dataclass(frozen=True)
class Project:
    """What the tests know of a language's template."""

    adapter: str
    """The file that an author changes."""
    passed: str
    """What the test's own tool prints when it passes."""


PROJECTS = {
    "python": Project("my_agent_adapter.py", "1 passed"),
    "go": Project("main.go", "ok  \tmy_agent_adapter"),
    "rust": Project("src/main.rs", "test result: ok. 1 passed"),
    "typescript": Project("src/adapter.ts", "ok 1 - a run succeeds and reports"),
}
MARKS = {
    "python": pytest.mark.conformance,
    "go": pytest.mark.go,
    "rust": pytest.mark.rust,
    "typescript": pytest.mark.typescript,
}
"""Which `make` target writes, tests and examines the project of a language."""


def new(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["adapter", "new", *map(str, arguments)])


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_each_language_is_known_here() -> None:
    assert new_adapter.languages() == sorted(PROJECTS) == sorted(MARKS)
    assert new("--help").output.count("Language of the project") == 1
    assert f"[{'|'.join(sorted(PROJECTS))}]" in new("--help").output


@pytest.mark.parametrize("language", PROJECTS)
def test_the_names_are_filled_in(language: str, tmp_path: Path) -> None:
    target = tmp_path / "made here"
    done = new("my_agent", "--language", language, "--directory", target, "--sdk", ROOT)
    assert done.exit_code == 0, done.output
    own = [path for path in files(target) if target / "dragoman" not in path.parents]
    assert f"{len(own)} files" in done.output
    for path in own:
        text = path.read_text(encoding="utf-8")
        assert not re.search("newagent|/path/of", f"{path}{text}", re.IGNORECASE), path
    assert str(ROOT) in "".join(path.read_text(encoding="utf-8") for path in files(target))
    assert (target / "my_agent").stat().st_mode & stat.S_IXUSR
    adapter = target / PROJECTS[language].adapter
    assert "MyAgent" in adapter.read_text(encoding="utf-8")
    assert len(adapter.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_a_project_in_go_has_a_copy_of_the_sdk(tmp_path: Path) -> None:
    target = tmp_path / "new"
    assert new("my_agent", "--language", "go", "--directory", target, "--sdk", ROOT).exit_code == 0
    assert str(ROOT) not in (target / "go.mod").read_text(encoding="utf-8")
    copied = {path.relative_to(target / "dragoman").as_posix() for path in files(target / "dragoman")}
    for name in copied:
        assert (target / "dragoman" / name).read_bytes() == (ROOT / name).read_bytes()
    assert {"LICENSE", "adapters/go/go.mod", "adapters/go/internal/guard/guard.go", "clients/go/tls.go"} <= copied
    assert not [name for name in copied if name.endswith("_test.go") or "examples" in name]


@pytest.mark.parametrize("name", ["My_agent", "my-agent", "1agent", "", "../agent", "a" * 65, "agent\n"])
def test_a_name_that_is_no_type_is_refused(name: str, tmp_path: Path) -> None:
    done = new("--language", "python", "--directory", tmp_path / "new", "--", name)
    assert "does not match [a-z][a-z0-9_]*" in str(done.exception)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [("class", "keyword"), ("claude", "called 'claude' already"), ("dragoman", "is that of a folder")],
)
def test_a_name_that_is_taken_is_refused(name: str, why: str, tmp_path: Path) -> None:
    done = new(name, "--language", "python", "--directory", tmp_path / "new")
    assert why in str(done.exception)
    assert files(tmp_path) == []


def test_an_existing_directory_is_refused(tmp_path: Path) -> None:
    done = new("my_agent", "--language", "go", "--directory", tmp_path, "--sdk", ROOT)
    assert f"{tmp_path} exists already" in str(done.exception)
    assert files(tmp_path) == []


def test_without_a_checkout_it_says_what_to_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "new"
    done = new("my_agent", "--language", "go", "--directory", target, "--sdk", tmp_path)
    assert f"{tmp_path} is no checkout of Dragoman" in str(done.exception)
    monkeypatch.setattr(new_adapter, "_installed_from", lambda: None)
    done = new("my_agent", "--language", "go", "--directory", target)
    assert "was not installed from a checkout" in str(done.exception)
    odd = tmp_path / 'a "quoted" one'
    odd.symlink_to(ROOT)
    assert new("my_agent", "--language", "go", "--directory", target, "--sdk", odd).exit_code == 0  # where it leads


def test_the_checkout_is_the_one_that_it_was_installed_from(tmp_path: Path) -> None:
    assert new("my_agent", "--language", "python", "--directory", tmp_path / "new").exit_code == 0
    assert ROOT.as_uri() in (tmp_path / "new/pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("language", [pytest.param(name, marks=MARKS[name]) for name in PROJECTS])
def test_its_readme_is_true(language: str, tmp_path: Path) -> None:
    """Do what the README says, in its order: build, test, examine, register, run."""
    target = tmp_path / "my_agent"
    assert new("my_agent", "--language", language, "--directory", target, "--sdk", ROOT).exit_code == 0
    if language == "rust":
        (ROOT / "build/rust").mkdir(parents=True, exist_ok=True)
        (target / "target").symlink_to(ROOT / "build/rust")  # the SDK is built there already
    readme = (target / "README.md").read_text(encoding="utf-8")
    commands = "".join(re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL))
    done = shell(commands, target, tmp_path)
    assert done.returncode == 0, done.stdout
    assert PROJECTS[language].passed in done.stdout
    assert re.search(r"my_agent 0\.1\.0, revision \d+: \d{3} passed, \d+ skipped", done.stdout), done.stdout
    assert re.search("^● list .*^succeeded in ", done.stdout, re.MULTILINE | re.DOTALL), done.stdout


def shell(commands: str, folder: Path, state: Path) -> "subprocess.CompletedProcess[str]":
    """Run commands in one shell, with a router of their own; what goes into the background has time to serve."""
    serving = "timeout 60 sh -c 'until dragoman adapters >/dev/null 2>&1; do sleep 0.1; done'"
    background = re.sub(r" &$", f" >router.log 2>&1 &\n{serving}", commands, flags=re.MULTILINE)
    script = f"set -eu\ntrap 'kill $(jobs -p); wait' EXIT\n{background}"
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # for sockets
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")},
            "XDG_RUNTIME_DIR": short,
            "XDG_STATE_HOME": str(state),
            "XDG_DATA_HOME": str(state),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "DRAGOMAN_DETECT": "0",
        }
        bash = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = bash.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bash.pid, signal.SIGTERM)
    return subprocess.CompletedProcess("bash", bash.returncode, output)
