"""Server reflection in both versions, so that every grpcurl finds its way.

grpcio-reflection serves v1alpha only. v1 has the same messages under another package, so one servicer answers
both; what is missing for the v1 service to be *described* is its descriptor, which is made here from v1alpha's.
The library also finds services but not their methods; here a method's name finds its service's file.
"""

from collections.abc import Sequence

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

__all__ = [
    "REFLECTION_SERVICES",
    "reflection_handlers",
]

REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The names under which reflection is served."""


class _Pool:
    """The default pool, with the v1 reflection service added and methods found by name."""

    def __init__(self) -> None:
        self._default = descriptor_pool.Default()
        proto = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(proto)
        as_v1 = text_format.MessageToString(proto).replace("v1alpha", "v1")
        self._v1 = descriptor_pool.DescriptorPool()
        self._v1.AddSerializedFile(text_format.Parse(as_v1, descriptor_pb2.FileDescriptorProto()).SerializeToString())

    # The library calls these five, and knows no other type than its own pool.

    def FindFileByName(self, name: str) -> FileDescriptor:  # noqa: N802 - the library's name
        try:
            return self._default.FindFileByName(name)
        except KeyError:
            return self._v1.FindFileByName(name)

    def FindFileContainingSymbol(self, name: str) -> FileDescriptor:  # noqa: N802 - the library's name
        for candidate in (name, name.rpartition(".")[0]):
            for pool in (self._default, self._v1):
                try:
                    return pool.FindFileContainingSymbol(candidate)
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
