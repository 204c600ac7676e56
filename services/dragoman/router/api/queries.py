"""The calls of ``AdapterService`` that are about adapters and their agents, not about runs."""

from typing import Final, TypeAlias

from dragoman.protocol import audit
from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.logs import bind_context
from dragoman.protocol.server import Context
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.channel import addressed, is_cut, unavailable
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.adapters.registry import without_process
from dragoman.router.adapters.relay import relay
from dragoman.router.api.authorization import allow
from dragoman.router.api.calls import read, remaining_s
from dragoman.router.api.detection import AgentDetector
from dragoman.router.api.drain import Drain
from dragoman.router.model.ports import RequestPolicy
from dragoman.v1 import adapter_pb2 as pb
from google.protobuf.message import DecodeError

_Checked: TypeAlias = (
    pb.DetectRequest
    | pb.TestEnvironmentRequest
    | pb.ListModelsRequest
    | pb.GetQuotaRequest
    | pb.LoginRequest
    | pb.ListSkillsRequest
    | pb.SyncSkillsRequest
)
"""Requests, other than Execute, by which an adapter starts an agent's program or reads and writes its files."""
_Named: TypeAlias = pb.DescribeRequest | _Checked
"""Requests to the adapter that they name."""
_SHARED: Final = ("env", "config", "workspace", "model", "skills")
"""Fields that requests of these kinds may share with one to run."""


class QueryServicer:
    """Forwards queries to the adapters that they name; see ``AdapterServicer`` for the arguments."""

    def __init__(self, adapters: AdapterPool, policy: RequestPolicy, detector: AgentDetector, drain: Drain) -> None:
        self._adapters = adapters
        self._policy = policy
        self._detector = detector
        self._drain = drain

    async def Describe(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Return the description of an adapter."""
        self._drain.refuse_new()
        backend = await self._adapters.get(read(pb.DescribeRequest, data).adapter)
        known = backend.record.description
        if known is not None and not backend.is_up and not backend.record.is_rejected:
            # Callers ask before each run what the adapter can do, which does not change while no process runs.
            bind_context(adapter=backend.record.type)
            return without_process(known).SerializeToString()
        return await self._forward("Describe", pb.DescribeRequest, data, context)

    async def Detect(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Detect the agent of one adapter, or of all."""
        self._drain.refuse_new()
        request = read(pb.DetectRequest, data)
        has_settings = bool(request.env) or request.HasField("config")  # which may name a program
        if not request.adapter:
            self._check(request, "", is_plain=not has_settings)
            return (await self._detector.all(request)).SerializeToString()
        backend = await self._adapters.get(request.adapter)
        self._check(request, backend.record.type, is_plain=not has_settings)
        bind_context(adapter=backend.record.type)
        return await self._detector.one(backend, request, data, remaining_s(context))

    async def TestEnvironment(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Check the environment of an agent."""
        return await self._forward("TestEnvironment", pb.TestEnvironmentRequest, data, context)

    async def ListModels(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """List models."""
        return await self._forward("ListModels", pb.ListModelsRequest, data, context)

    async def GetQuota(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Return how much of an account's rate limits is used."""
        return await self._forward("GetQuota", pb.GetQuotaRequest, data, context)

    async def Login(self, data: bytes, context: Context) -> None:  # noqa: N802 - the contract's name
        """Stream a login of an agent; ending the call ends it there."""
        self._drain.refuse_new()
        request = read(pb.LoginRequest, data)
        backend = await self._adapters.get(request.adapter)
        self._check(request, backend.record.type)
        bind_context(adapter=backend.record.type)
        data = addressed(pb.LoginRequest, data, request.adapter, backend.record.type)
        is_own = not request.env and not request.HasField("config")  # else the login may be kept elsewhere

        def note(message: bytes) -> None:
            if is_own and _has_logged_in(message):
                self._detector.logged_in(backend)

        with self._drain.stream(), await backend.use() as instance:
            await relay(instance.channel.stream("Login", data), context, self._drain.ending, note)

    async def ListSkills(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """List skills."""
        return await self._forward("ListSkills", pb.ListSkillsRequest, data, context)

    async def SyncSkills(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Install skills."""
        return await self._forward("SyncSkills", pb.SyncSkillsRequest, data, context)

    def _check(self, request: _Checked, adapter: str, *, is_plain: bool = False) -> None:
        """Refuse a call, other than Execute, that the operator's policy does not allow.

        Args:
            request: the caller's.
            adapter: the type of the adapter that it is for; empty for all.
            is_plain: whether the policy has nothing against it, as it asks for nothing of its own.

        Raises:
            DragomanError: NOT_PERMITTED, or POLICY_DENIED.
        """
        audit.about(adapter=adapter)
        current_caller().check_adapter(adapter)
        if not is_plain:
            shared = [name for name in _SHARED if name in request.DESCRIPTOR.fields_by_name]
            self._policy.check(pb.ExecuteRequest(**{name: getattr(request, name) for name in shared}), adapter)
        allow(adapter=adapter)

    async def _forward(self, method: str, kind: type[_Named], data: bytes, context: Context) -> bytes:
        self._drain.refuse_new()
        request = read(kind, data)
        backend = await self._adapters.get(request.adapter)
        if not isinstance(request, pb.DescribeRequest):
            self._check(request, backend.record.type)
        return await call(backend, method, addressed(kind, data, request.adapter, backend.record.type), context)


def _has_logged_in(message: bytes) -> bool:
    try:
        event = pb.LoginResponse.FromString(message)
    except DecodeError:
        return False  # the caller's parser will say so
    return event.HasField("outcome") and not event.outcome.HasField("failure")


async def call(backend: AdapterBackend, method: str, data: bytes, context: Context) -> bytes:
    """Return an adapter's answer to a unary call.

    Raises:
        DragomanError: its status, or ADAPTER_UNAVAILABLE.
    """
    bind_context(adapter=backend.record.type)
    with await backend.use() as instance:
        try:
            return await instance.channel.answer(method, data, timeout_s=remaining_s(context))
        except DragomanError as error:
            if is_cut(error):
                raise lost(backend) from error
            raise


def lost(backend: AdapterBackend) -> DragomanError:
    """Return the error for a call whose connection to an adapter was lost."""
    return unavailable(f"The connection to adapter {backend.record.type!r} was lost; try again.")
