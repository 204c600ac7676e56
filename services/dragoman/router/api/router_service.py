"""``RouterService``: adapters, runs and sessions, as only the router knows them."""

import asyncio
import math
import os

from dragoman.protocol import audit
from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError, Reason, invalid
from dragoman.protocol.server import Context, draining, write_event
from dragoman.protocol.sessions import read_handle
from dragoman.router.adapters.adapter_set import DEFAULT_LEASE_S
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.adapters.registrations import LONGEST_LEASE_S, SHORTEST_LEASE_S, Announcement, Registrations
from dragoman.router.adapters.supervisor import ProcessSupervisor
from dragoman.router.api.active_agents import asked
from dragoman.router.api.authorization import allow, allow_read
from dragoman.router.api.calls import refuse
from dragoman.router.api.drain import Drain
from dragoman.router.api.locate import Finished, Local, Located, Remote, RunLocator
from dragoman.router.api.paging import (
    decode_token,
    encode_token,
    fitting,
    page_of_messages,
    page_size,
    within_page,
)
from dragoman.router.api.validation import list_objection
from dragoman.router.model.errors import unknown_run
from dragoman.router.model.stored import RunQuery, SessionId, StoredRun
from dragoman.router.model.tasks import Changes, first_of
from dragoman.router.runs.admission import AdmissionController
from dragoman.router.runs.registry import RunRegistry
from dragoman.router.runs.sessions import Sessions
from dragoman.router.storage.run_log import RunLog
from dragoman.router.storage.session_table import session_name
from dragoman.v1 import adapter_pb2
from dragoman.v1 import router_pb2 as pb

_AFTER_S = 0.05
"""How long after the end of a period the list is read again."""
_LOOK_S = 60.0
"""How often it is read again in any case: the time of day advances while a computer sleeps."""
_WITHOUT_LOG = "The run log is not responding; this list has only the runs in this router's memory."
"""A remark of each run that is listed while the log cannot be read."""


class AdapterList:
    """The adapters as ``ListAdapters`` shows them."""

    def __init__(self, adapters: AdapterPool, admission: AdmissionController, changes: Changes) -> None:
        self.adapters = adapters
        self._admission = admission
        self._changes = changes

    def entries(self) -> list[pb.AdapterEntry]:
        """Return all adapters."""
        entries = self.adapters.entries()
        for entry in entries:
            entry.remarks.extend(self._remarks(entry.adapter))
        return entries

    def change(self) -> asyncio.Event:
        """Return an event that is set with the next change."""
        return self._changes.next()

    def next_end_s(self) -> float | None:
        """Return the seconds after which the list changes by time alone; ``None`` if it does not."""
        end_s = self._admission.breakers.next_end_s(self._admission.clock.time())
        return None if end_s is None else min(end_s + _AFTER_S, _LOOK_S)

    def _remarks(self, adapter: str) -> list[str]:
        """Return what keeps runs from an adapter now."""
        admission, remarks = self._admission, []
        if not admission.requests.allows_adapter(adapter):
            remarks.append("the router's policy does not allow runs of this adapter")
        for key, opened in admission.breakers.opened(adapter, admission.clock.time()):
            whose = "a login from their request" if key.login else "this machine's login"
            which = f"{whose} with model {key.model!r}" if key.model else whose
            wait_s = math.ceil(opened.wait_s)
            remarks.append(f"circuit breaker open for {wait_s} s for runs that use {which}: {opened.description}")
        if waiting := admission.limiter.queued(adapter):
            remarks.append(f"runs queued for a slot: {waiting}")
        return remarks


class RunList:
    """The runs as ``ListRuns`` and ``GetRun`` show them."""

    def __init__(self, runs: RunRegistry, run_log: RunLog, locator: RunLocator) -> None:
        self._runs = runs
        self._run_log = run_log
        self._locator = locator

    async def page(self, query: RunQuery, before: tuple[float, str] | None, size: int) -> pb.ListRunsResponse:
        """Return a page of runs, newest first.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE, if this router has no run in memory either.
        """
        try:
            found = await self._run_log.list_runs(query, before=before, size=size + 1)
        except DragomanError as error:
            here = [] if before is not None else self._in_memory(query)
            if error.reason is not Reason.RUN_LOG_UNAVAILABLE or not here:
                raise
            return pb.ListRunsResponse(runs=fitting(here[:size]))
        shown = fitting(self._summary(run) for run in found[:size])
        response = pb.ListRunsResponse(runs=shown)
        if len(found) > len(shown):
            last = found[len(shown) - 1]
            response.next_page_token = encode_token([last.accepted_at, last.run_id])
        return response

    async def get(self, run_id: str, context: Context) -> pb.GetRunResponse:
        """Return one run.

        Raises:
            DragomanError: RUN_NOT_FOUND, or RUN_LOG_UNAVAILABLE.
        """
        if (run := self._runs.find(run_id)) is not None:
            located: Located = Local(run)
            allow_read(located.facts)
        elif (stored := await self._run_log.find(run_id)) is None:
            raise unknown_run(run_id)
        else:
            try:
                located = await self._locator.of_stored(stored, allow_read)
            except DragomanError as error:
                if error.reason is not Reason.RUN_LOG_UNAVAILABLE:
                    raise
                return stored.state  # a log that cannot be written now was read
        if isinstance(located, Remote):
            return await located.forwarder.get_run(located.stored, context)
        if isinstance(located, Finished):
            return located.stored.state
        run = located.run
        return pb.GetRunResponse(
            run=run.record.summary(run.fanout.readers),
            pending_requests=[event.input_request for event in run.record.pending.values()],
        )

    def _in_memory(self, query: RunQuery) -> list[pb.RunSummary]:
        """Return the runs that are known without the log, newest first; each notes that others may be missing."""
        runs = sorted(self._runs, key=lambda run: (run.record.accepted_at, run.run_id), reverse=True)
        found = [summary for run in runs if query.matches(summary := run.record.summary(run.fanout.readers))]
        for summary in found:
            summary.remarks.append(_WITHOUT_LOG)
        return found

    def _summary(self, stored: StoredRun) -> pb.RunSummary:
        run = self._runs.find(stored.run_id)
        return stored.state.run if run is None else run.record.summary(run.fanout.readers)


class SessionList:
    """The stored sessions as ``ListSessions`` and ``GetSession`` show them. Its methods raise RUN_LOG_UNAVAILABLE."""

    def __init__(self, sessions: Sessions, run_log: RunLog) -> None:
        self._sessions = sessions
        self._run_log = run_log

    async def page(self, request: pb.ListSessionsRequest, adapter: str) -> pb.ListSessionsResponse:
        """Return a page of sessions, last used first.

        Raises:
            DragomanError: INVALID_PAGE_TOKEN.
        """
        before = decode_token(request.page_token, float, str) if request.page_token else None
        fields = {**_names(request), "adapter": adapter, "agent_name": request.agent_name}
        size = page_size(request.page_size)
        found = await asked(self._run_log.store.sessions.page(fields, before=before, size=size + 1))
        response = pb.ListSessionsResponse(sessions=fitting(found[:size]))
        if len(found) > len(response.sessions):
            last = response.sessions[-1]
            name = session_name(_session_id(last.key, last.adapter))
            response.next_page_token = encode_token([last.used_at.ToNanoseconds() / 1e9, name])
        return response

    async def get(self, key: adapter_pb2.SessionKey, adapter: str) -> pb.StoredSession:
        """Return one session.

        Raises:
            DragomanError: SESSION_NOT_FOUND.
        """
        session = await asked(self._run_log.store.sessions.get(_session_id(key, adapter)))
        if session is None:
            raise DragomanError(
                Reason.SESSION_NOT_FOUND,
                "No session is stored under this key; ListSessions lists the stored ones.",
                {"adapter": adapter},
            )
        return session

    async def delete(self, key: adapter_pb2.SessionKey, adapter: str) -> bool:
        """Forget one session, also if a run is in it; False if there was none."""
        session_id = _session_id(key, adapter)
        stored = await asked(self._run_log.store.sessions.get(session_id))
        if stored is None:
            return False
        self._sessions.forget(session_id, read_handle(stored.handle)[0])
        return await asked(self._run_log.store.sessions.delete(session_id))


class RouterServicer:
    """Serves ``RouterService``."""

    def __init__(
        self,
        adapter_list: AdapterList,
        run_list: RunList,
        sessions: SessionList,
        drain: Drain,
        registrations: Registrations,
        *,
        version: str,
    ) -> None:
        self._registrations = registrations
        self._adapter_list = adapter_list
        self._adapters = adapter_list.adapters
        self._runs = run_list
        self._sessions = sessions
        self._drain = drain
        self._version = version

    async def ListAdapters(self, request: pb.ListAdaptersRequest, _context: Context) -> pb.ListAdaptersResponse:  # noqa: N802 - the contract's name
        """List all adapters; start none of them unless asked to describe them."""
        if request.describe:
            self._drain.refuse_new()
            await self._adapters.learn()
        # The index makes the key unique: rejected adapters share their names with others.
        entries = list(enumerate(self._adapter_list.entries()))
        shown, token = page_of_messages(
            entries,
            lambda item: [item[1].adapter, item[0]],
            lambda item: item[1],
            size=request.page_size,
            token=request.page_token,
        )
        return pb.ListAdaptersResponse(
            adapters=shown,
            next_page_token=token,
            router_pid=os.getpid(),
            router_version=self._version,
        )

    async def WatchAdapters(self, _request: pb.WatchAdaptersRequest, context: Context) -> None:  # noqa: N802 - the contract's name
        """Stream the list of adapters whenever it changes."""
        self._drain.refuse_new()
        with self._drain.stream():
            while not self._drain.ending.is_set():
                change = self._adapter_list.change()
                entries = within_page(self._adapter_list.entries(), lambda entry: entry.ClearField("description"))
                response = pb.WatchAdaptersResponse(adapters=entries)
                await write_event(context, response.SerializeToString())
                limit_s = self._adapter_list.next_end_s()
                await first_of(change.wait(), self._drain.ending.wait(), timeout_s=limit_s)
        raise draining()

    async def RegisterAdapter(  # noqa: N802 - the contract's name
        self, request: pb.RegisterAdapterRequest, _context: Context
    ) -> pb.RegisterAdapterResponse:
        """Register an adapter that runs already, or renew its lease."""
        self._drain.refuse_new()
        lease_s = request.lease.ToNanoseconds() / 1e9 if request.HasField("lease") else DEFAULT_LEASE_S
        if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
            raise invalid("lease", f"must be {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g} s")
        announced = Announcement(request.address, request.instance_id, request.adapter)
        audit.about(adapter=request.adapter or request.address)
        record = await self._registrations.register(announced, lease_s)
        entry = record.entry()
        return pb.RegisterAdapterResponse(expires_at=entry.lease_expires_at, adapter=entry)

    async def UnregisterAdapter(  # noqa: N802 - the contract's name
        self, request: pb.UnregisterAdapterRequest, _context: Context
    ) -> pb.UnregisterAdapterResponse:
        """End a registration."""
        audit.about(adapter=request.address)
        unregistered = self._registrations.unregister(request.address, request.instance_id)
        return pb.UnregisterAdapterResponse(unregistered=unregistered)

    async def RestartAdapter(  # noqa: N802 - the contract's name
        self, request: pb.RestartAdapterRequest, _context: Context
    ) -> pb.RestartAdapterResponse:
        """Replace the process of a launched adapter."""
        self._drain.refuse_new()
        backend = await self._adapters.get(request.adapter)
        allow(adapter=backend.record.type)
        if not isinstance(backend, ProcessSupervisor):
            raise _not_launched(backend)
        draining = await backend.restart(request.grace.ToNanoseconds() / 1e9 if request.HasField("grace") else None)
        return pb.RestartAdapterResponse(adapter=backend.record.entry(), draining_runs=draining)

    async def ListRuns(self, request: pb.ListRunsRequest, _context: Context) -> pb.ListRunsResponse:  # noqa: N802 - the contract's name
        """List runs, newest first."""
        before = decode_token(request.page_token, float, str) if request.page_token else None
        filters = {"adapter": request.adapter, "agent_id": request.agent_id, "task_key": request.task_key}
        refuse(list_objection({**filters, "agent_name": request.agent_name}))
        caller = current_caller()
        query = RunQuery(
            adapter=await self._type(request.adapter),
            agent_id=request.agent_id,
            task_key=request.task_key,
            outcome=request.outcome,
            live_only=request.live_only,
            labels=dict(request.labels),
            agent_name=request.agent_name,
            started_by="" if caller.may_read("") else caller.name,
        )
        return await self._runs.page(query, before, page_size(request.page_size))

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:  # noqa: N802 - the contract's name
        """Return one run."""
        return await self._runs.get(request.run_id, context)

    async def ListSessions(self, request: pb.ListSessionsRequest, _context: Context) -> pb.ListSessionsResponse:  # noqa: N802 - the contract's name
        """List stored sessions, last used first."""
        filters = {**_names(request), "adapter": request.adapter, "agent_name": request.agent_name}
        refuse(list_objection(filters))
        return await self._sessions.page(request, await self._type(request.adapter))

    async def GetSession(self, request: pb.GetSessionRequest, _context: Context) -> pb.GetSessionResponse:  # noqa: N802 - the contract's name
        """Return one stored session."""
        refuse(list_objection({**_names(request.key), "adapter": request.adapter}))
        self._adapters.require(request.adapter)
        session = await self._sessions.get(request.key, await self._type(request.adapter))
        return pb.GetSessionResponse(session=session)

    async def DeleteSession(self, request: pb.DeleteSessionRequest, _context: Context) -> pb.DeleteSessionResponse:  # noqa: N802 - the contract's name
        """Delete one stored session."""
        refuse(list_objection({**_names(request.key), "adapter": request.adapter}))
        self._adapters.require(request.adapter)
        deleted = await self._sessions.delete(request.key, await self._type(request.adapter))
        return pb.DeleteSessionResponse(deleted=deleted)

    async def _type(self, adapter: str) -> str:
        """Return the type of the adapter with this name; what is kept outlives adapters, which then are as named."""
        backend = await self._adapters.find(adapter) if adapter else None
        return adapter if backend is None else backend.record.type


def _names(of: pb.ListSessionsRequest | adapter_pb2.SessionKey) -> dict[str, str]:
    return {"company_id": of.company_id, "agent_id": of.agent_id, "task_key": of.task_key}


def _session_id(key: adapter_pb2.SessionKey, adapter: str) -> SessionId:
    return SessionId(key.company_id, key.agent_id, adapter, key.task_key)


def _not_launched(backend: AdapterBackend) -> DragomanError:
    adapter, where = backend.record.type, backend.record.address or backend.record.spec.name
    message = (
        f"Adapter {adapter!r} runs at {where} and was not started by this router; restart it where it was started,"
        " and the router reconnects."
    )
    return DragomanError(Reason.ADAPTER_NOT_LAUNCHED, message, {"adapter": adapter})
