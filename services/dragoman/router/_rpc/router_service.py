"""``RouterService``: what only the router knows."""

import asyncio
import os

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.server import Context, draining, write_event
from dragoman.router._domain.paging import PageTokenError, decode_token, encode_token, fitting, page, page_size
from dragoman.router._domain.requests import list_objection
from dragoman.router._domain.stored import RunQuery, StoredRun
from dragoman.router._rpc.core import Core
from dragoman.router._rpc.link import first_of
from dragoman.router._rpc.serving import bind, refuse
from dragoman.router._rpc.steering import unknown_run
from dragoman.v1 import adapter_pb2
from dragoman.v1 import router_pb2 as pb

_AFTER_S = 0.05
"""How much later than its end it is looked whether a time is over."""
_LOOK_S = 60.0
"""How often that is looked at in any case: the clock on the wall goes on while a computer sleeps."""
_ADRIFT = "The router that followed it is gone. Attach goes on with it, or tells that its adapter is gone too."
"""Of a run that no router has taken over yet."""


class RouterServicer:
    """Serves ``RouterService``. Registration is not served yet.

    Args:
        core: the router.
        version: the router's version.
    """

    def __init__(self, core: Core, *, version: str) -> None:
        self._core = core
        self._version = version
        self._has_asked = False
        """Whether adapters that were never started were asked already for what else they are called."""

    async def ListAdapters(self, request: pb.ListAdaptersRequest, _context: Context) -> pb.ListAdaptersResponse:  # noqa: N802 - the contract's name
        """List all adapters; start none of them unless asked to describe them."""
        if request.describe:
            self._core.refuse_new()
            await self._core.learn()
        # The place in the list makes the key unique: refused adapters share their names with others.
        entries = list(enumerate(self._core.entries()))
        try:
            shown, token = page(
                entries,
                lambda item: [item[1].adapter, item[0]],
                size=request.page_size,
                token=request.page_token,
            )
        except PageTokenError as error:
            raise DragomanError(Reason.INVALID_PAGE_TOKEN, str(error)) from error
        return pb.ListAdaptersResponse(
            adapters=[entry for _place, entry in shown],
            next_page_token=token,
            router_pid=os.getpid(),
            router_version=self._version,
        )

    async def WatchAdapters(self, _request: pb.WatchAdaptersRequest, context: Context) -> None:  # noqa: N802 - the contract's name
        """Stream the list of adapters whenever it changes."""
        self._core.refuse_new()
        with self._core.stream():
            while not self._core.ending.is_set():
                change = self._core.scene.changes.next()
                response = pb.WatchAdaptersResponse(adapters=self._core.entries())
                await write_event(context, response.SerializeToString())
                ending = self._core.ending.wait()
                # A login's time is over without anybody's doing.
                end_s = self._core.admitting.next_end_s()
                limit_s = None if end_s is None else min(end_s + _AFTER_S, _LOOK_S)
                await first_of(asyncio.ensure_future(change.wait()), asyncio.ensure_future(ending), timeout_s=limit_s)
        raise draining()

    async def ListRuns(self, request: pb.ListRunsRequest, _context: Context) -> pb.ListRunsResponse:  # noqa: N802 - the contract's name
        """List runs, newest first."""
        try:
            before = decode_token(request.page_token, float, str) if request.page_token else None
        except PageTokenError as error:
            raise DragomanError(Reason.INVALID_PAGE_TOKEN, str(error)) from error
        asked = {"adapter": request.adapter, "agent_id": request.agent_id, "task_key": request.task_key}
        refuse(list_objection(asked))
        query = RunQuery(
            adapter=await self._type(request.adapter),
            agent_id=request.agent_id,
            task_key=request.task_key,
            outcome=request.outcome,
            live_only=request.live_only,
            labels=dict(request.labels),
        )
        size = page_size(request.page_size)
        found = await self._core.keeping.list_runs(query, before=before, size=size + 1)
        shown = fitting(self._summary(run) for run in found[:size])
        response = pb.ListRunsResponse(runs=shown)
        if len(found) > len(shown):
            last = found[len(shown) - 1]
            response.next_page_token = encode_token([last.accepted_at, last.run_id])
        return response

    def _summary(self, stored: StoredRun) -> pb.RunSummary:
        run = self._core.runs.find(stored.run_id)
        return self._kept(stored).run if run is None else run.record.summary(run.fanout.readers)

    def _kept(self, stored: StoredRun) -> pb.GetRunResponse:
        """Return what is kept of a run, and whether that is all there will be unless somebody asks for it."""
        if self._core.is_adrift(stored):
            stored.state.run.remarks.append(_ADRIFT)
        return stored.state

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:  # noqa: N802 - the contract's name
        """Tell of one run."""
        run = self._core.runs.find(request.run_id)
        if run is None:
            stored = await self._core.keeping.find(request.run_id)
            if stored is None:
                raise unknown_run(request.run_id)
            if stored.finished_at is not None or self._core.is_adrift(stored):
                return self._kept(stored)
            return await self._core.peers.tell(stored, context)
        bind(adapter=run.record.adapter, run_id=run.run_id)
        return pb.GetRunResponse(
            run=run.record.summary(run.fanout.readers),
            pending_requests=[event.input_request for event in run.record.pending.values()],
        )

    async def ListSessions(self, request: pb.ListSessionsRequest, _context: Context) -> pb.ListSessionsResponse:  # noqa: N802 - the contract's name
        """List stored sessions, last used first."""
        refuse(list_objection({**_names(request), "adapter": request.adapter}))
        return await self._core.runs.sessions.page(request, await self._type(request.adapter))

    async def GetSession(self, request: pb.GetSessionRequest, _context: Context) -> pb.GetSessionResponse:  # noqa: N802 - the contract's name
        """Tell of one stored session."""
        refuse(list_objection({**_names(request.key), "adapter": request.adapter}))
        self._core.require(request.adapter)
        session = await self._core.runs.sessions.get(request.key, await self._type(request.adapter))
        return pb.GetSessionResponse(session=session)

    async def DeleteSession(self, request: pb.DeleteSessionRequest, _context: Context) -> pb.DeleteSessionResponse:  # noqa: N802 - the contract's name
        """Forget one stored session."""
        refuse(list_objection({**_names(request.key), "adapter": request.adapter}))
        self._core.require(request.adapter)
        deleted = await self._core.runs.sessions.delete(request.key, await self._type(request.adapter))
        return pb.DeleteSessionResponse(deleted=deleted)

    async def _type(self, adapter: str) -> str:
        """Return the type of the adapter with this name; what is kept outlives adapters, which then are as named.

        A name that nothing is kept by may be an alias of one that was never started: they are asked, but once.
        """
        host = self._core.present(adapter) if adapter else None
        may_ask = bool(adapter) and host is None and not self._has_asked and not self._core.is_draining
        if may_ask and not await self._core.keeping.has_any_of(adapter):
            self._has_asked = True
            host = await self._core.find(adapter)
        return adapter if host is None else host.record.type


def _names(asked: pb.ListSessionsRequest | adapter_pb2.SessionKey) -> dict[str, str]:
    return {"company_id": asked.company_id, "agent_id": asked.agent_id, "task_key": asked.task_key}
