"""``AdapterService`` at the router: forwarded to the adapter that is named.

Requests come and answers go as bytes; only what the router decides by is parsed, and only ``Execute`` is written
anew. So what a later revision adds passes through.
"""

import contextlib
from collections.abc import Sequence
from typing import TypeAlias

from dragoman.protocol.errors import DragomanError, invalid_fields
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.server import Context
from dragoman.router._domain.fallback_settings import unknown_settings
from dragoman.router._domain.requests import attach_objection, cancel_objection, execute_objection
from dragoman.router._domain.stored import StoredRun
from dragoman.router._rpc.core import Core
from dragoman.router._rpc.detecting import Detecting
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.link import elsewhere, is_cut, unavailable
from dragoman.router._rpc.peers import came_from_a_router
from dragoman.router._rpc.run import Run
from dragoman.router._rpc.serving import (
    Holding,
    addressed,
    bind,
    read,
    refuse,
    remaining_s,
    stream_run,
    stream_stored,
)
from dragoman.router._rpc.steering import cancel, finished, how_it_ended, respond, unknown_run
from dragoman.router._rpc.takeover import Takeover
from dragoman.v1 import adapter_pb2 as pb

_Named: TypeAlias = (
    pb.DescribeRequest
    | pb.TestEnvironmentRequest
    | pb.ListModelsRequest
    | pb.ListSkillsRequest
    | pb.SyncSkillsRequest
)
"""Requests that are passed on and name an adapter."""


class AdapterServicer:
    """Serves ``AdapterService`` for all adapters. Made for ``service_handler(..., raw_requests=True)``.

    Args:
        core: the router.
        detecting: answers ``Detect``.
        takeover: takes over runs of routers that are gone.
    """

    def __init__(self, core: Core, detecting: Detecting, takeover: Takeover) -> None:
        self._core = core
        self._detecting = detecting
        self._takeover = takeover

    async def Describe(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Say what an adapter is."""
        return await self._forward("Describe", pb.DescribeRequest, data, context)

    async def Detect(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Look for an agent, or for all."""
        self._core.refuse_new()
        request = read(pb.DetectRequest, data)
        if not request.adapter:
            return (await self._detecting.all(request)).SerializeToString()
        host = await self._core.host(request.adapter)
        bind(adapter=host.record.type)
        return await self._detecting.one(host, request, data, remaining_s(context))

    async def TestEnvironment(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Check a set-up."""
        return await self._forward("TestEnvironment", pb.TestEnvironmentRequest, data, context)

    async def ListModels(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """List models."""
        return await self._forward("ListModels", pb.ListModelsRequest, data, context)

    async def ListSkills(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """List skills."""
        return await self._forward("ListSkills", pb.ListSkillsRequest, data, context)

    async def SyncSkills(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Place skills."""
        return await self._forward("SyncSkills", pb.SyncSkillsRequest, data, context)

    async def Execute(self, data: bytes, context: Context) -> None:  # noqa: N802 - the contract's name
        """Accept a run, or join the one that this request started before; then stream it."""
        self._core.refuse_new()
        request = read(pb.ExecuteRequest, data)
        refuse(execute_objection(request))
        while not await self._executed(request, context):
            # Another router was faster to accept this very request, so it is found there. What was accepted here
            # was written anew for its adapter.
            request = read(pb.ExecuteRequest, data)

    async def _executed(self, request: pb.ExecuteRequest, context: Context) -> bool:
        """Accept a run, or find it, and stream it; False if another router had accepted it meanwhile."""
        run = self._core.runs.same(request)
        if run is None and (stored := await self._core.runs.recall(request)) is not None:
            run = await self._takeover.take(stored)
            if run is None:
                # The request itself: should no adapter have had the run, it is begun by its request alone.
                await self._stored(stored, context, request)
                return True
        is_new, is_relayed = run is None, came_from_a_router(context)
        if run is None and is_relayed:
            raise elsewhere(request.run_id)  # nothing is begun for another router that has found it begun
        if run is not None and run.is_doubtful:
            await run.settled.wait()
        if run is None or run.awaits_request:
            run, is_new = await self._accept(request)
        bind(adapter=run.record.adapter, run_id=run.run_id)
        # Held before the next await: a run whose caller is gone already must be an orphan, not a stray.
        with Holding(run, is_relayed=is_relayed):
            await run.kept.wait()
            if run.is_given_up:
                return False
            if run.refusal is not None:
                raise run.refusal
            await context.send_initial_metadata(((RUN_ID_METADATA_KEY, run.run_id),))
            await stream_run(self._core, run, context, joined=not is_new)
        return True

    async def _accept(self, request: pb.ExecuteRequest) -> tuple[Run, bool]:
        """Return the run that a request starts, and whether it is new to those who follow it."""
        host = await self._core.host(request.adapter)
        if host.record.is_refused:
            raise host.refusal()
        session = await self._core.runs.sessions.find(request, host)
        self._core.refuse_new()
        known = self._core.runs.same(request)
        if known is None:
            self._core.runs.refuse_switch(request, host)
            self._refuse_unknown_settings(request)
            chain = tuple(request.fallback.adapters)  # its adapter is not told of it
            run = self._core.runs.execute(request, host, session)
            self._remark_strangers(run, chain)
            return run, True
        # Somebody may have been faster while the adapter, or the run to go on from, was looked for.
        if known.awaits_request:
            self._core.runs.begin_again(known, request, host, session)
        return known, False

    def _remark_strangers(self, run: Run, chain: Sequence[str]) -> None:
        """Say which names to fall back to are nobody's; no more than that: adapters tell aliases when they start."""
        for name in chain:
            if self._core.present(name) is None:
                near = self._core.scene.directory.near(name)
                hint = f"; did you mean {' or '.join(near)}?" if near else ", but for an alias of one not started yet"
                run.remark("fallback_unknown", f"There is no adapter {name[:200]!r} to fall back to{hint}")

    def _refuse_unknown_settings(self, request: pb.ExecuteRequest) -> None:
        """Refuse a run whose fallback would be refused for its settings; it would be too late when it is needed."""
        hosts = {name: self._core.present(name) for name in request.fallback.adapters}
        descriptions = {name: host.record.description for name, host in hosts.items() if host is not None}
        wrong = unknown_settings(request, {name: one for name, one in descriptions.items() if one is not None})
        if wrong:
            raise invalid_fields(wrong)

    async def Attach(self, data: bytes, context: Context) -> None:  # noqa: N802 - the contract's name
        """Follow a run: one that is known here, or one that its adapter knows."""
        self._core.refuse_new()
        request = read(pb.AttachRequest, data)
        refuse(attach_objection(request))
        run = await self._find(request.run_id, request.adapter)
        if run is not None:
            # Of a request that came to two routers the other one may have the run, and have told of it already.
            await run.kept.wait()
            run = None if run.is_given_up else run
        if (stored := await self._kept(run, request.run_id)) is not None:
            await self._stored(stored, context, request)
            return
        run = run or self._core.runs.find(request.run_id)  # it may have come meanwhile
        if run is None:
            host = await self._host_of_run(request.run_id, request.adapter)
            run = self._core.runs.find(request.run_id)
            run = run or self._core.runs.adopt(request.run_id, host, hold=request.hold)
        bind(adapter=run.record.adapter, run_id=run.run_id)
        holding = Holding(run, is_relayed=came_from_a_router(context))
        with holding if request.hold else contextlib.nullcontext():
            await stream_run(self._core, run, context, after_sequence=request.after_sequence, joined=True)

    async def _stored(
        self, stored: StoredRun, context: Context, request: pb.AttachRequest | pb.ExecuteRequest
    ) -> None:
        """Stream a run that this router does not follow: from the log, or from the router that does."""
        attach = request if isinstance(request, pb.AttachRequest) else pb.AttachRequest()
        bind(adapter=stored.adapter, run_id=stored.run_id)
        await context.send_initial_metadata(((RUN_ID_METADATA_KEY, stored.run_id),))
        if stored.finished_at is not None:
            await stream_stored(self._core, stored, context, after_sequence=attach.after_sequence)
            return
        with self._core.stream():
            await self._core.peers.stream(stored, request, context, ended_early=self._core.ending)

    async def _kept(self, run: Run | None, run_id: str) -> StoredRun | None:
        """Return what is kept of a run that is not followed here; ``None`` if it is by now, or nobody knows it."""
        stored = None if run is not None else await self._core.keeping.find(run_id)
        return stored if stored is None or await self._takeover.take(stored) is None else None

    async def Cancel(self, data: bytes, context: Context) -> pb.CancelResponse | bytes:  # noqa: N802 - the contract's name
        """End a run and say how it ended."""
        request = read(pb.CancelRequest, data)
        refuse(cancel_objection(request))
        run = await self._find(request.run_id, request.adapter)
        if (stored := await self._kept(run, request.run_id)) is not None:
            if stored.finished_at is None:
                return await self._core.peers.answer(stored, "Cancel", data, context)
            return how_it_ended(stored.state.run.result, stored.logged)
        run = run or self._core.runs.find(request.run_id)
        host = run.host if run is not None else await self._host_of_run(request.run_id, request.adapter)
        bind(adapter=host.record.type, run_id=request.run_id)
        data = addressed(pb.CancelRequest, data, request.adapter, host.record.type)
        if run is not None:
            return await cancel(run, data, self._core.scene)
        return await _pass(host, "Cancel", data, context)

    async def Respond(self, data: bytes, context: Context) -> bytes:  # noqa: N802 - the contract's name
        """Answer a question of a run."""
        request = read(pb.RespondRequest, data)
        run = await self._find(request.run_id, request.adapter)
        if (stored := await self._kept(run, request.run_id)) is not None:
            if stored.finished_at is None:
                return await self._core.peers.answer(stored, "Respond", data, context)
            raise finished(request.run_id)
        run = run or self._core.runs.find(request.run_id)
        host = run.host if run is not None else await self._host_of_run(request.run_id, request.adapter)
        bind(adapter=host.record.type, run_id=request.run_id)
        data = addressed(pb.RespondRequest, data, request.adapter, host.record.type)
        if run is not None:
            return await respond(run, data, request.request_id, remaining_s(context))
        return await _pass(host, "Respond", data, context)

    async def _forward(self, method: str, kind: type[_Named], data: bytes, context: Context) -> bytes:
        self._core.refuse_new()
        request = read(kind, data)
        host = await self._core.host(request.adapter)
        return await _pass(host, method, addressed(kind, data, request.adapter, host.record.type), context)

    async def _find(self, run_id: str, adapter: str) -> Run | None:
        """Return the run with this id at this adapter, which need not be named."""
        run = self._core.runs.find(run_id)
        if run is None or not adapter:
            return run
        host = await self._core.host(adapter)
        if host not in run.hosts:
            raise DragomanError(
                unknown_run(run_id).reason,
                f"run {run_id!r} is not one of {host.record.type!r} but of {run.record.adapter!r}",
                {"run_id": run_id, "adapter": run.record.adapter},
            )
        return run

    async def _host_of_run(self, run_id: str, adapter: str) -> Host:
        """Return the place of the adapter that may know a run which this router does not."""
        host = await self._core.host(adapter) if adapter else None
        if host is None or not host.is_up:
            raise unknown_run(run_id)
        return host


async def _pass(host: Host, method: str, data: bytes, context: Context) -> bytes:
    bind(adapter=host.record.type)
    async with host.use() as endpoint:
        try:
            return await endpoint.link.answer(method, data, timeout_s=remaining_s(context))
        except DragomanError as error:
            if is_cut(error):
                raise unavailable(f"the connection to the adapter {host.record.type!r} broke") from error
            raise
