"""The version that an adapter names as tested is the one that the tests on real programs drive."""

from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from dragoman.adapters.pi.adapter import PiAdapter
from dragoman.sdk import CommandLineAdapter
from dragoman.sdk._detection.agent import probed
from dragoman.v1 import event_pb2 as pb

INSTALLER = Path(__file__).parents[2] / "scripts/install-agents"
NOT_AGENTS = {"node", "cursor-sdk"}
"""What agents run on, and a library that no adapter starts."""


def pinned() -> dict[str, str]:
    """Return the version of each pinned agent, by the name of its executable."""
    spec = spec_from_loader("install_agents", SourceFileLoader("install_agents", str(INSTALLER)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: agent.package.rpartition("@")[2] for name, agent in module.AGENTS.items() if name not in NOT_AGENTS}


def named() -> dict[str, str]:
    """Return the version that each adapter names, by the executable it looks for first."""
    adapters = [entry.load()() for entry in entry_points(group="dragoman.adapters")]
    return {
        adapter.spec.executables[0]: adapter.spec.tested_version
        for adapter in adapters
        if isinstance(adapter, CommandLineAdapter) and adapter.spec.executables
    }


def test_each_adapter_names_the_pinned_version() -> None:
    """Red after a new pin? Name the new version once ``make test-agents AGENT=...`` has passed with it."""
    assert {name: version for name, version in named().items() if version} == pinned()


def test_only_cursors_adapter_has_no_program_to_be_tested_with() -> None:
    assert [name for name, version in named().items() if not version] == ["cursor-agent"]


def test_capabilities_are_probed_of_exactly_the_tested_version() -> None:
    declared = pb.Capabilities(
        items=[
            pb.Capability(feature=pb.FEATURE_PROMPT, origin=pb.CAPABILITY_ORIGIN_DECLARED),
            pb.Capability(feature=pb.FEATURE_RESUME, origin=pb.CAPABILITY_ORIGIN_DECLARED, note="sometimes"),
        ],
        resume_style=pb.RESUME_STYLE_CAPTURE,
    )
    expected = pb.Capabilities()
    expected.CopyFrom(declared)
    for version in ("1.2.4", "1.2", "1.2.3-beta.1", ""):
        assert probed(declared, version, "1.2.3") == expected
    assert probed(declared, "", "") == expected
    for item in expected.items:
        item.origin = pb.CAPABILITY_ORIGIN_PROBED
    assert probed(declared, "1.2.3", "1.2.3") == expected
    assert {item.origin for item in declared.items} == {pb.CAPABILITY_ORIGIN_DECLARED}


@pytest.mark.parametrize(
    ("version", "origin"),
    [(PiAdapter.spec.tested_version, pb.CAPABILITY_ORIGIN_PROBED), ("0.1.0", pb.CAPABILITY_ORIGIN_DECLARED)],
)
async def test_detect_compares_what_the_installed_program_says(
    tmp_path: Path, version: str, origin: pb.CapabilityOrigin.ValueType
) -> None:
    program = tmp_path / "pi"
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    found = await PiAdapter().look({"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}, {})
    assert found.version == version
    assert {item.origin for item in found.capabilities.items} == {origin}
