"""scripts/install-cluster and scripts/build-images, as far as they go without building anything."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
PROGRAMS = ("coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler")


def run(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    environment = {**os.environ, **variables}
    command = [str(SCRIPTS / script), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=30)


def test_check_says_in_one_line_what_is_missing_and_makes_nothing(tmp_path: Path) -> None:
    done = run("install-cluster", "--check", DRAGOMAN_CLUSTER_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "10 of 10 programs are not in" in line
    assert "scripts/install-cluster builds" in line
    assert list(tmp_path.iterdir()) == []


def test_check_counts_the_programs_that_an_interrupted_build_left(tmp_path: Path) -> None:
    line = run("install-cluster", "--check", DRAGOMAN_CLUSTER_CACHE=str(tmp_path)).stderr
    folder = Path(line.partition("are not in ")[2].partition(",")[0])
    assert folder.parent == tmp_path
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).touch(mode=0o755)
    assert "4 of 10 programs" in run("install-cluster", "--check", DRAGOMAN_CLUSTER_CACHE=str(tmp_path)).stderr


@pytest.mark.parametrize(("script", "says"), [("install-cluster", "usage:"), ("build-images", "unknown image")])
def test_wrong_usage_is_refused(script: str, says: str, tmp_path: Path) -> None:
    done = run(script, "--nope", DRAGOMAN_CLUSTER_CACHE=str(tmp_path), DRAGOMAN_IMAGE_CACHE=str(tmp_path))
    assert done.returncode == 2
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []
