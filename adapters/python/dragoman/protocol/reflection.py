"""Server reflection in both versions, so that every grpcurl finds its way.

grpcio-reflection serves v1alpha only. v1 has the same messages under another package, so one servicer answers
both; what is missing for the v1 service to be *described* is its descriptor, which is made here from v1alpha's.
The library also finds services but not their methods; here a method's name finds its service's file.

Generated modules have no comments. Those of the contract come from a file beside them, read at the first request.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import dragoman.v1
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The names under which reflection is served."""


_COMMENTED = Path(dragoman.v1.__file__).with_name("descriptors.binpb")
"""The contract's files as a ``FileDescriptorSet`` with the comments."""


class _CommentedFile:
    """A file of the contract, with its comments; has what the library uses of a ``FileDescriptor``.

    Args:
        file: the file as it is in the pool.
        contract: the contract's files with their comments, by name.
    """

    def __init__(self, file: FileDescriptor, contract: Mapping[str, descriptor_pb2.FileDescriptorProto]) -> None:
        self.name = file.name
        self._file = file
        self._contract = contract

    @property
    def dependencies(self) -> Sequence["FileDescriptor | _CommentedFile"]:
        """The files that it imports."""
        return [_commented(file, self._contract) for file in self._file.dependencies]

    def CopyToProto(self, proto: descriptor_pb2.FileDescriptorProto) -> None:  # noqa: N802 - the library's name
        """Copy it into ``proto``."""
        proto.CopyFrom(self._contract[self.name])


def _commented(
    file: FileDescriptor, contract: Mapping[str, descriptor_pb2.FileDescriptorProto]
) -> FileDescriptor | _CommentedFile:
    return _CommentedFile(file, contract) if file.name in contract else file


class _Pool:
    """The default pool, with the contract's comments, the v1 reflection service, and methods found by name."""

    def __init__(self) -> None:
        self._default = descriptor_pool.Default()
        proto = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(proto)
        as_v1 = text_format.MessageToString(proto).replace("v1alpha", "v1")
        self._v1 = descriptor_pool.DescriptorPool()
        self._v1.AddSerializedFile(text_format.Parse(as_v1, descriptor_pb2.FileDescriptorProto()).SerializeToString())

    @functools.cached_property
    def _contract(self) -> Mapping[str, descriptor_pb2.FileDescriptorProto]:
        files = descriptor_pb2.FileDescriptorSet.FromString(_COMMENTED.read_bytes())
        return {file.name: file for file in files.file}

    # The library calls these five, and knows no other type than its own pool.

    def FindFileByName(self, name: str) -> FileDescriptor | _CommentedFile:  # noqa: N802 - the library's name
        try:
            return _commented(self._default.FindFileByName(name), self._contract)
        except KeyError:
            return self._v1.FindFileByName(name)

    def FindFileContainingSymbol(self, name: str) -> FileDescriptor | _CommentedFile:  # noqa: N802 - the library's name
        for candidate in (name, name.rpartition(".")[0]):
            for pool in (self._default, self._v1):
                try:
                    return _commented(pool.FindFileContainingSymbol(candidate), self._contract)
                except KeyError:
                    continue
        raise KeyError(name)

    def FindMessageTypeByName(self, name: str) -> Descriptor:  # noqa: N802 - the library's name
        return self._default.FindMessageTypeByName(name)

    def FindExtensionByNumber(self, message: Descriptor, number: int) -> FieldDescriptor:  # noqa: N802 - the library's name
        return self._default.FindExtensionByNumber(message, number)

    def FindAllExtensions(self, message: Descriptor) -> list[FieldDescriptor]:  # noqa: N802 - the library's name
        return self._default.FindAllExtensions(message)


def reflection_handlers(service_names: Sequence[str]) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of reflection, in both versions.

    Args:
        service_names: full names of the services to list; reflection itself is added.
    """
    servicer = ReflectionServicer([*service_names, *REFLECTION_SERVICES], pool=_Pool())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return tuple(
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler}) for name in REFLECTION_SERVICES
    )
