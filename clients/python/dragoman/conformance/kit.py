"""What a check works with: the target's stubs, its description, requests for scripted runs, and streams."""

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

import grpc
from dragoman.conformance.check import Skip, Violation
from dragoman.conformance.launch import left_running
from dragoman.conformance.script import END, MARK, VARIABLE
from dragoman.conformance.streams import Stream, shown
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.statuses import from_rpc_error
from dragoman.protocol.texts import enum_name
from dragoman.protocol.tracing import TRACEPARENT
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import adapter_pb2_grpc, router_pb2, router_pb2_grpc
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2
from msgspec import Struct, field

AgentKind = Literal["script", "model", "none"]

SECRET_VARIABLE = "CONFORMANCE_TOKEN"  # noqa: S105 - the name of a variable
RUN_VARIABLE = "DRAGOMAN_CONFORMANCE_RUN"
"""The variable by which the processes of a run on a scripted model are found."""
KIT_VARIABLE = "DRAGOMAN_CONFORMANCE"
"""The variable by which the agents of all runs of one kit are found."""
_ORPHAN_AFTER_S = 20
_GRACE_S = 2
_POLL_S = 0.02


def _no_model() -> list[str]:
    raise Skip("the kit does not see what the agent asks its model: use {model_url} in --config or --env")


class Setup(Struct, frozen=True):
    """What the kit was started with.

    Attributes:
        adapter: the adapter's type; empty for the only one of a sidecar.
        config: the ``config`` of every run.
        env: variables of every run.
        agent: which deterministic agent the adapter runs with this configuration.
        folder: a directory for the kit's files, on the adapter's machine too.
        command: how to start the target; empty if the kit did not start it.
        model_requests: returns what the scripted model server was asked, as text. Raises `Skip` if there is none.
        mark: the value of `KIT_VARIABLE` in the environment of every run.
        script: the path of the scripted agent, which stands for ``{script}``; empty if there is none.
        slowness: how many times as long as usual a check may take, and waits for what the target has to do.
    """

    adapter: str
    config: dict[str, Any]
    env: dict[str, str]
    agent: AgentKind
    folder: Path
    command: tuple[str, ...] = ()
    model_requests: Callable[[], list[str]] = _no_model
    mark: str = ""
    script: str = ""
    slowness: float = 1.0


class Seen(Struct):
    """What all checks have seen together."""

    streams: list[Stream] = field(default_factory=list)
    statuses: list[tuple[str, DragomanError]] = field(default_factory=list)


class Kit:
    """A target, as a check sees it."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        channel: grpc.aio.Channel,
        setup: Setup,
        seen: Seen,
        connect: Callable[[str, Setup, Seen], AbstractAsyncContextManager["Kit"]],
    ) -> None:
        self.channel = channel
        self.stub: Any = adapter_pb2_grpc.AdapterServiceStub(channel)
        self.router: Any = router_pb2_grpc.RouterServiceStub(channel)
        self.setup = setup
        self.seen = seen
        self.is_router = False
        self.described = api.DescribeResponse()
        self.address = ""
        self._connect = connect
        self._token = secrets.token_hex(4)

    @property
    def adapter(self) -> str:
        """The adapter's type."""
        return self.setup.adapter or self.described.adapter

    def beside(self, address: str = "") -> AbstractAsyncContextManager["Kit"]:
        """Return a kit for another process of the same target, whose streams are not examined further.

        Without an address: for the same process, on a connection of its own.
        """
        return self._connect(address or self.address, self.setup, Seen())

    def has(self, *features: pb.Feature.ValueType) -> bool:
        """Return whether the adapter declares all these features."""
        declared = {item.feature for item in self.described.capabilities.items}
        return declared >= set(features)

    def does(self, duty: api.Duty.ValueType) -> bool:
        """Return whether a duty is done for the runs of the kit: by a router, or by an adapter that declares it."""
        return self.is_router or duty in self.described.duties

    def path(self, name: str) -> Path:
        """Return a path for a file, different in each call."""
        return self.setup.folder / f"{name}-{next(self._numbers)}"

    def request(self, *steps: str, model: str = "", prompt: str = "Hello.") -> api.ExecuteRequest:
        """Return a request for a scripted run.

        Args:
            steps: what the scripted agent does; see ``script``. A run that needs no agent has none.
            model: the word that makes the scripted model server do something equivalent.
            prompt: the prompt proper.

        Raises:
            Skip: the agent cannot do that.
        """
        setup = self.setup
        if steps and (setup.agent == "none" or (setup.agent == "model" and not model)):
            step = steps[0].partition("=")[0]
            if setup.agent == "model":
                raise Skip(f"scripted model cannot do this ({step}, …)")
            how = "use {script} in --config, or --agent script for a stand-in of your own"
            raise Skip(f"no scripted agent is configured ({step}, …); {how}")
        request = api.ExecuteRequest(adapter=self.adapter, run_id=f"conformance-{self._token}-{next(self._numbers)}")
        if setup.agent == "model":
            # By the ID a request to the model shows whose it is.
            request.prompt = f"{model or 'MOCK_TEXT'} {request.run_id} {prompt}"
            request.env[RUN_VARIABLE] = request.run_id
        else:
            request.prompt = "\n".join([MARK, *steps, END, prompt]) if steps else prompt
            request.env[VARIABLE] = "\n".join(steps)
        request.env[KIT_VARIABLE] = setup.mark
        request.env.update(setup.env)
        if setup.config:
            request.config.update(setup.config)
        if self.has(pb.FEATURE_WORKSPACE):
            request.workspace.cwd = directory(self, "workspace")
        request.orphan_after.seconds = _ORPHAN_AFTER_S
        if self.does(api.DUTY_LIMITS):
            request.limits.grace.seconds = _GRACE_S
        return request

    def execute(self, request: api.ExecuteRequest, *, timeout: float | None = None, trace: str = "") -> Stream:
        """Call Execute, with a ``traceparent`` in the metadata if there is one."""
        metadata = ((TRACEPARENT, trace),) if trace else ()
        return self._stream("Execute", self.stub.Execute(request, timeout=timeout, metadata=metadata), 0)

    def attach(self, run_id: str, after: int = 0, **fields: Any) -> Stream:
        """Call Attach."""
        request = api.AttachRequest(run_id=run_id, adapter=self.adapter, after_sequence=after, **fields)
        return self._stream("Attach", self.stub.Attach(request), after)

    def _stream(self, rpc: str, call: Any, after: int) -> Stream:
        stream = Stream(rpc, call, after, lambda error: self.seen.statuses.append((rpc, error)))
        stream.is_of_router = self.is_router
        self.seen.streams.append(stream)
        return stream

    async def run(self, request: api.ExecuteRequest) -> Stream:
        """Run to the end.

        Raises:
            Violation: the stream did not end with status OK.
        """
        return await self.execute(request).rest()

    async def call(self, rpc: str, request: Any) -> Any:
        """Return the answer of a unary RPC.

        Raises:
            DragomanError: it failed.
        """
        return await self.answer(rpc, getattr(self.stub, rpc)(request))

    async def answer(self, rpc: str, call: Awaitable[Any]) -> Any:
        """Return the answer of a call.

        Raises:
            DragomanError: it failed.
        """
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            converted = from_rpc_error(error)
            self.seen.statuses.append((rpc, converted))
            raise converted from error

    async def cancel(self, run_id: str, grace_s: float | None = None) -> api.CancelResponse:
        """Call Cancel."""
        request = api.CancelRequest(run_id=run_id, adapter=self.adapter)
        if grace_s is not None:
            request.grace.CopyFrom(seconds(grace_s))
        answer: api.CancelResponse = await self.call("Cancel", request)
        return answer

    async def rejected(self, request: api.ExecuteRequest) -> DragomanError:
        """Return the status with which Execute rejects a request.

        Raises:
            Violation: it was accepted.
        """
        stream = self.execute(request)
        try:
            first = await stream.read()
        except DragomanError as error:
            return error
        stream.cancel()
        kind = first.WhichOneof("body") if first else "the end of the stream"
        raise Violation(f"the request was accepted: {kind} followed")


def directory(kit: Kit, name: str) -> str:
    """Return the path of a new directory."""
    path = kit.path(name)
    path.mkdir()
    return str(path)


class Late(Violation):
    """What is due does not come in time."""


@contextlib.asynccontextmanager
async def within(kit: Kit, usual_s: float, fault: str) -> AsyncIterator[None]:
    """Require that the block ends in time.

    Args:
        kit: the kit.
        usual_s: the time limit, in seconds, of a target that is not slow.
        fault: what is wrong if it does not.

    Raises:
        Late: it does not.
    """
    limit_s = usual_s * kit.setup.slowness
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise Late(f"{fault} ({limit_s:g} s)") from None


@contextlib.contextmanager
def gate(kit: Kit) -> Iterator[Path]:
    """Yield the path of a file that an agent waits for; it is created when the block ends."""
    path = kit.path("gate")
    try:
        yield path
    finally:
        path.touch()


@contextlib.asynccontextmanager
async def working(
    kit: Kit, *first: str, then: str = "say=done", model: str = ""
) -> AsyncIterator[tuple[api.ExecuteRequest, Stream]]:
    """Yield a run whose agent works until the block ends, and read on to its end then.

    Args:
        kit: the kit.
        first: the steps before the work.
        then: the step after it.
        model: what a scripted model does instead, for a while.
    """
    with gate(kit) as path:
        request = kit.request(*first, "say=ready", f"wait={path}", then, model=model)
        stream = kit.execute(request)
        await until_ready(kit, stream, request)
        yield request, stream
    await stream.rest()


async def until_ready(kit: Kit, stream: Stream, request: api.ExecuteRequest) -> None:
    """Read until the agent has said "ready"; with a scripted model, wait until the agent has asked it."""
    if kit.setup.agent != "model":
        await stream.until_text("ready")
        return
    requests = kit.setup.model_requests
    while not any(request.run_id in text for text in requests()):  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(_POLL_S)


async def has_stopped(kit: Kit, request: api.ExecuteRequest, lock: Path, limit_s: float) -> bool:
    """Return whether the agent ended within the limit, by its lock, or on a scripted model by its processes."""
    if kit.setup.agent == "model":
        return not await left_running(request.run_id, RUN_VARIABLE, limit_s)
    return await until_free(lock, limit_s)


async def run_in_time(kit: Kit, request: api.ExecuteRequest, limit_s: float, fault: str) -> Stream:
    """Run to the end, which must come soon; a run that goes on is cancelled.

    Args:
        kit: the kit.
        request: the request.
        limit_s: the time limit, in seconds, of a target that is not slow.
        fault: what is wrong if the run goes on.

    Raises:
        Violation: it goes on, or the stream did not end with status OK.
    """
    stream = kit.execute(request)
    try:
        async with within(kit, limit_s, fault):
            return await stream.rest()
    except Late:
        stream.cancel()
        await kit.cancel(request.run_id, grace_s=0)
        raise


async def accepted(kit: Kit, request: api.ExecuteRequest, what: str) -> None:
    """Run to the end what must not be rejected.

    Raises:
        Violation: it is; ``what`` says what.
    """
    stream = kit.execute(request)
    try:
        await stream.read()
    except DragomanError as error:
        raise Violation(f"{what} rejected: {shown(error)}") from error
    await stream.rest()


async def finding(kit: Kit, rpc: str, request: Any, why: str, *, is_optional: bool = False) -> Any:
    """Return the answer of an RPC whose findings are data, good or bad.

    Args:
        kit: the kit.
        rpc: the RPC.
        request: its request.
        why: why it must not fail.
        is_optional: whether an adapter need not implement it.

    Raises:
        Violation: it failed.
        Skip: it is not implemented, and need not be.
    """
    try:
        return await kit.call(rpc, request)
    except DragomanError as error:
        if is_optional and error.reason is Reason.NOT_IMPLEMENTED:
            raise Skip(f"{rpc} is not implemented, and says so") from error
        raise Violation(f"{rpc} failed: {error.code.name}: {why}") from error


async def ask_router(kit: Kit, rpc: str, **fields: Any) -> Any:
    """Return the answer of an RPC of routers.

    Raises:
        Skip: the target is none.
        DragomanError: the call failed.
    """
    if not kit.is_router:
        raise Skip("an adapter serves no RouterService")
    request = getattr(router_pb2, f"{rpc}Request")(**fields)
    return await kit.answer(rpc, getattr(kit.router, rpc)(request))


def need(kit: Kit, *features: pb.Feature.ValueType) -> None:
    """Require features.

    Raises:
        Skip: the adapter does not declare one.
    """
    for feature in features:
        if not kit.has(feature):
            raise Skip(f"{pb.Feature.Name(feature)} is not declared")


def need_duty(kit: Kit, duty: api.Duty.ValueType) -> None:
    """Require a duty of which no request shows that it is not done.

    Raises:
        Skip: the adapter does not declare it.
    """
    if not kit.does(duty):
        raise Skip(f"{api.Duty.Name(duty)} is not declared")


def has_setting(schema: str, name: str) -> bool:
    """Return whether a schema of settings, as JSON text, knows a setting."""
    try:
        properties = json.loads(schema or "{}").get("properties", {})
    except (ValueError, AttributeError):
        return False  # another rule says so
    return name in properties


async def is_duty_refused(kit: Kit, duty: api.Duty.ValueType, request: api.ExecuteRequest, field_path: str) -> bool:
    """Return False if a duty is done; else require that the field that needs it is refused, and return True.

    Raises:
        Violation: the duty is not declared, and the field is not refused.
    """
    if kit.does(duty):
        return False
    expect_reason(await kit.rejected(request), Reason.NOT_SUPPORTED, field_path=field_path)
    return True


def seconds(value: float) -> duration_pb2.Duration:
    """Return a Duration of so many seconds."""
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(int(value * 1e9))
    return duration


async def refusal(call: Awaitable[Any]) -> DragomanError:
    """Return the status that a call fails with.

    Raises:
        Violation: it succeeded.
    """
    try:
        await call
    except DragomanError as error:
        return error
    raise Violation("the call succeeded")


def expect_reason(error: DragomanError, *reasons: Reason, field_path: str = "") -> None:
    """Require a reason, and a field in BadRequest.

    Raises:
        Violation: the status has another one.
    """
    if error.reason not in reasons:
        raise Violation(f"{' or '.join(reasons)} is due, not {shown(error)}")
    paths = [item.path for item in error.violations]
    if field_path and not any(path == field_path or path.startswith(field_path + ".") for path in paths):
        raise Violation(f"BadRequest must name the field {field_path}; it has {paths or 'none'}")


def expect_outcome(result: pb.Result, due: pb.Outcome.ValueType, why: str = "") -> None:
    """Require an outcome.

    Raises:
        Violation: the result has another one.
    """
    found, named = (enum_name(pb.Outcome.DESCRIPTOR, outcome, "OUTCOME_") for outcome in (result.outcome, due))
    if result.outcome != due:
        raise Violation(f"{found} where {named} is due{f': {why}' if why else ''}")


def expect_failure(result: pb.Result, *due: pb.FailureKind.ValueType) -> None:
    """Require a failure of one of some kinds.

    Raises:
        Violation: the result has none, or another one.
    """
    kinds = (enum_name(pb.FailureKind.DESCRIPTOR, kind, "FAILURE_KIND_") for kind in (result.failure.kind, *due))
    found, *named = kinds
    if result.failure.kind not in due:
        raise Violation(f"{found} where {' or '.join(named)} is due")


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock of a file (the step ``hold`` of the scripted agent)."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


async def until_free(path: Path, limit_s: float) -> bool:
    """Wait until no process holds the lock of a file; return whether that came true within the limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while is_held(path):  # noqa: ASYNC110 - another process frees it
                await asyncio.sleep(_POLL_S)
            return True
    return False
