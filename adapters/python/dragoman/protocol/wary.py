"""Channels in the clear, over which requests with secrets go to authenticated peers alone."""

import os
from collections.abc import Callable
from typing import Any, Final, Self

import grpc
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2
from google.protobuf.message import DecodeError

INSECURE_VARIABLE: Final = "DRAGOMAN_INSECURE_SECRETS"
"""Environment variable: 1 sends requests with secrets to peers that are not authenticated."""

_REQUESTS: Final[dict[str, Any]] = {
    "Execute": adapter_pb2.ExecuteRequest,
    "Detect": adapter_pb2.DetectRequest,
    "TestEnvironment": adapter_pb2.TestEnvironmentRequest,
    "ListModels": adapter_pb2.ListModelsRequest,
    "GetQuota": adapter_pb2.GetQuotaRequest,
    "Login": adapter_pb2.LoginRequest,
    "ListSkills": adapter_pb2.ListSkillsRequest,
    "SyncSkills": adapter_pb2.SyncSkillsRequest,
}
"""The requests that may hold secrets, by their RPC."""


class WrappedChannel:
    """A channel that makes some calls in another way than the one it wraps."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:  # noqa: PYI036 - passed on
        await self._channel.__aexit__(*error)


class WaryChannel(WrappedChannel):
    """A channel that sends no secret unless its peer is authenticated.

    Args:
        channel: the channel.
        address: where to, for errors.
        is_trusted: returns whether the peer is authenticated now: who listens may be another by the next call.
    """

    def __init__(self, channel: grpc.aio.Channel, address: str, is_trusted: Callable[[], bool]) -> None:
        super().__init__(channel)
        self._address = address
        self._is_trusted = is_trusted

    def unary_unary(self, method: str, *args: Any, **named: Any) -> Callable[..., Any]:
        """Return what makes calls of a method."""
        return self._wary(method, self._channel.unary_unary(method, *args, **named))

    def unary_stream(self, method: str, *args: Any, **named: Any) -> Callable[..., Any]:
        """Return what makes calls of a method."""
        return self._wary(method, self._channel.unary_stream(method, *args, **named))

    def _wary(self, method: str, call: Any) -> Callable[..., Any]:
        kind = _REQUESTS.get(method.rpartition("/")[2])
        if kind is None:
            return call  # type: ignore[no-any-return]

        def checked(request: Any, **named: Any) -> Any:
            if _holds_secrets(kind, request) and not self._is_trusted():
                raise DragomanError(
                    Reason.ADDRESS_UNTRUSTED,
                    f"{self._address}: the request holds secrets, and who listens there is not authenticated; "
                    f"nothing was sent. Use TLS (DRAGOMAN_TLS_CA) or a Unix socket, or set {INSECURE_VARIABLE}=1",
                    {"address": self._address},
                )
            return call(request, **named)

        return checked


def _holds_secrets(kind: Any, request: Any) -> bool:
    from dragoman.protocol.redaction.sources import request_secrets  # noqa: PLC0415 - of use only in the clear

    if os.environ.get(INSECURE_VARIABLE) == "1":
        return False
    try:
        message = kind.FromString(request) if isinstance(request, bytes) else request
    except DecodeError:
        return False  # who gets it refuses it
    if isinstance(message, adapter_pb2.ExecuteRequest):
        return bool(request_secrets(message))
    run = adapter_pb2.ExecuteRequest(env=message.env)
    if "config" in message.DESCRIPTOR.fields_by_name:
        run.config.CopyFrom(message.config)
    return bool(request_secrets(run))
