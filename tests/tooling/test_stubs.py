"""The committed stubs are what the oldest supported compiler makes of the contract."""

from importlib.metadata import version
from pathlib import Path

from .programs import ROOT, program, run

COMMITTED = ROOT / "adapters/python/dragoman/v1"


DESCRIPTORS = "descriptors.binpb"
"""The contract's descriptors with its comments."""


def generated(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*_pb2*.py*")}


def test_the_stubs_are_what_the_contract_makes(tmp_path: Path) -> None:
    """Red? ``make proto`` and commit."""
    floor = program(ROOT / ".venv-floor/bin/python")
    done = run(str(ROOT / "scripts/generate-stubs"), str(tmp_path), PYTHON=floor, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    stubs = generated(tmp_path / "dragoman/v1")
    assert len(stubs) == 12
    assert stubs == generated(COMMITTED)
    assert (tmp_path / "dragoman/v1" / DESCRIPTORS).read_bytes() == (COMMITTED / DESCRIPTORS).read_bytes()


def test_they_need_no_newer_runtime_than_we_say() -> None:
    """The generated code names the versions it needs; they are the floor of pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stubs = "".join(generated(COMMITTED).values())
    assert "# Protobuf Python Version: 6.31.1" in stubs
    assert '"protobuf>=6.31.1,' in project
    assert "GRPC_GENERATED_VERSION = '1.76.0'" in stubs
    assert '"grpcio>=1.76.0"' in project
    assert version("grpcio").split(".") >= ["1", "76", "0"]
