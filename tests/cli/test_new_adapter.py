"""``dragoman adapter new``: the project of each language does what its README says, as it is written."""

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from dragoman.cli.commands import new_adapter
from dragoman.cli.dispatch import cli

ROOT = Path(__file__).parents[2]
MOST_LINES = 100
LIMIT_S = 600


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
    done = new("my_agent", "--language", language, "--directory", target)
    assert done.exit_code == 0, done.output
    own = [path for path in files(target) if target / "dragoman" not in path.parents]
    assert f"{len(own)} files" in done.output
    for path in own:
        text = path.read_text(encoding="utf-8")
        assert not re.search(f"newagent|/path/of|{ROOT}", f"{path}{text}", re.IGNORECASE), path
    assert (target / ".gitignore").is_file()
    assert (target / "my_agent").stat().st_mode & stat.S_IXUSR
    adapter = target / PROJECTS[language].adapter
    assert "MyAgent" in adapter.read_text(encoding="utf-8")
    assert len(adapter.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


NEEDED = {
    "go": {"LICENSE", "adapters/go/go.mod", "adapters/go/internal/guard/guard.go", "clients/go/tls.go"},
    "rust": {"LICENSE", "adapters/rust/Cargo.toml", "adapters/rust/build.rs", "proto/dragoman/v1/adapter.proto"},
    "typescript": {
        "LICENSE",
        "adapters/typescript/package.json",
        "clients/typescript/src/gen/dragoman/v1/event_pb.ts",
    },
}


@pytest.mark.parametrize("language", NEEDED)
def test_a_project_has_a_copy_of_the_sdk(language: str, tmp_path: Path) -> None:
    target = tmp_path / "new"
    assert new("my_agent", "--language", language, "--directory", target).exit_code == 0
    copied = {path.relative_to(target / "dragoman").as_posix() for path in files(target / "dragoman")}
    for name in copied:
        assert (target / "dragoman" / name).read_bytes() == (ROOT / name).read_bytes()
    assert NEEDED[language] <= copied
    unused = re.compile(
        r"_test\.go$|/(examples|cmd|scripted|test|dist|node_modules|claude-agent)/|/(duties|order)\.json$|buf\.gen"
    )
    assert [name for name in copied if unused.search(name)] == []


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
    done = new("my_agent", "--language", "go", "--directory", tmp_path)
    assert f"{tmp_path} exists already" in str(done.exception)
    assert files(tmp_path) == []


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment outside the checkout, with the wheel.

    What the wheel requires is that of this environment, as downloading it again would take minutes.
    """
    folder = tmp_path_factory.mktemp("installed")
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    build = (*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, ROOT)
    subprocess.run([sys.executable, *build], check=True, cwd=folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (wheel,) = folder.glob("dragoman-*.whl")
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    # A path file adds a folder, and reads none of the path files in it: that of the checkout has no effect.
    (packages / "required.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    python = folder / "venv/bin/python"
    install = (*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    subprocess.run([sys.executable, *install], check=True, cwd=folder)
    return python.parent


@pytest.mark.timeout(700)
@pytest.mark.parametrize("language", [pytest.param(name, marks=MARKS[name]) for name in PROJECTS])
def test_its_readme_is_true(language: str, installed: Path, tmp_path: Path) -> None:
    """Do what the README says, in its order: build, test, examine, register, run; from a wheel."""
    target = tmp_path / "my_agent"
    written = shell(f"dragoman adapter new my_agent --language {language}", tmp_path, tmp_path, installed)
    assert written.returncode == 0, written.stdout
    named = [path for path in files(target) if str(ROOT).encode() in path.read_bytes()]
    assert named == []
    if language == "rust":
        (ROOT / "build/rust").mkdir(parents=True, exist_ok=True)
        (target / "target").symlink_to(ROOT / "build/rust")  # the SDK is built there already
    readme = (target / "README.md").read_text(encoding="utf-8")
    commands = "".join(re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL))
    done = shell(commands, target, tmp_path, installed)
    assert done.returncode == 0, done.stdout
    assert PROJECTS[language].passed in done.stdout
    assert re.search(r"my_agent 0\.1\.0, revision \d+: \d{3} passed, \d+ skipped", done.stdout), done.stdout
    assert re.search("^● list .*^succeeded in ", done.stdout, re.MULTILINE | re.DOTALL), done.stdout


def shell(commands: str, folder: Path, state: Path, programs: Path) -> "subprocess.CompletedProcess[str]":
    """Run commands in one shell, with a router of their own; what goes into the background has time to serve."""
    listing = 'dragoman adapters --router "unix:$XDG_RUNTIME_DIR/dragoman/router.sock"'
    serving = f"timeout 60 sh -c 'until {listing} >/dev/null 2>&1; do sleep 0.1; done'"
    background = re.sub(r" &$", f" >router.log 2>&1 &\n{serving}", commands, flags=re.MULTILINE)
    script = f"set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n{background}"
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # for sockets
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DRAGOMAN_", "PYTHON"))},
            "XDG_RUNTIME_DIR": short,
            "XDG_STATE_HOME": str(state),
            "XDG_DATA_HOME": str(state),
            "PATH": f"{programs}:{os.environ['PATH']}",
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
