"""The chart as helm renders it."""

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "dragoman"
SHAPES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
GOLDEN = Path(__file__).parent / "golden"
RELEASE = ("rel", str(CHART), "--namespace", "agents", "--kube-version", "1.33.0")

Object: TypeAlias = dict[str, Any]


class Failed(Exception):  # noqa: N818 - what helm did
    """Helm failed; the text is what it says."""


@functools.cache
def helm(*arguments: str) -> str:
    """Run helm, and return what it prints; the same for the same arguments.

    Raises:
        Failed: it failed.
    """
    program = shutil.which("helm")
    assert program is not None, "run these by make test-helm, which builds helm"
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True, timeout=50)
    if done.returncode:
        raise Failed(done.stderr)
    return done.stdout


def values_of(shape: str) -> Path:
    return CHART / "ci" / f"{shape}-values.yaml"


def render(shape: str = "", **sets: Any) -> dict[str, Object]:
    """Return the objects that the chart makes, by kind and name.

    Args:
        shape: whose values to begin with; empty for none.
        sets: further values, as JSON, by their path with ``__`` for the dot.
    """
    arguments = ["--values", str(values_of(shape))] if shape else []
    for path, value in sets.items():
        arguments += ["--set-json", f"{path.replace('__', '.')}={json.dumps(value)}"]
    return objects(helm("template", *RELEASE, *arguments))


def objects(text: str) -> dict[str, Object]:
    """Return the objects of a text, by kind and name."""
    found = [one for one in yaml.safe_load_all(text) if one]
    named = {f"{one['kind']}/{one['metadata']['name']}": one for one in found}
    assert len(named) == len(found), "two objects have the same name"
    return named


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    """Each shape of values in ci/."""
    return str(request.param)
