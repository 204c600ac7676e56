"""The committed stubs are what the oldest supported compiler makes of the contract."""

import base64
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

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


@pytest.mark.parametrize("file", [adapter_pb2.DESCRIPTOR, event_pb2.DESCRIPTOR, router_pb2.DESCRIPTOR])
def test_the_stubs_in_typescript_are_of_the_same_contract(file: FileDescriptor) -> None:
    """Red? ``make proto-typescript`` and commit. `make test-typescript` compares the comments, too."""
    name = Path(file.name).stem
    stubs = (ROOT / f"clients/typescript/src/gen/dragoman/v1/{name}_pb.ts").read_text(encoding="utf-8")
    embedded = re.search(r'fileDesc\("([^"]+)"', stubs)
    assert embedded is not None
    theirs = FileDescriptorProto.FromString(base64.b64decode(embedded[1] + "=" * (-len(embedded[1]) % 4)))
    ours = FileDescriptorProto()
    file.CopyToProto(ours)
    for proto in (theirs, ours):
        proto.ClearField("dependency")
        _forget_json_names(proto.message_type)
    assert theirs == ours


def _forget_json_names(messages: Sequence[DescriptorProto]) -> None:
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _forget_json_names(message.nested_type)
