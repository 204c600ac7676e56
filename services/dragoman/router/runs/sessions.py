"""Stored sessions of this router's runs: found before a run starts, stored before its result is published.

They are found in two steps. Which session a request means, and whether that is valid, is known when the run is
accepted. A stored one is looked up when the run has its slot: a queued run resumes what the run before it left.

A log that fails does not keep a run from starting or ending: it begins a new session, or its session is not stored,
with a notice.
"""

import asyncio
import weakref
from collections.abc import Callable
from typing import Final

from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.sessions import misfit
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.model.ports import Clock
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.stored import SessionId
from dragoman.router.policy import sessions as rules
from dragoman.router.policy.sessions import NO_SESSION, SessionDecision, SessionReport, SessionRequest
from dragoman.router.storage.database import StoreError, in_time
from dragoman.router.storage.run_log import RunLog
from dragoman.router.storage.store import Store
from dragoman.v1 import adapter_pb2, event_pb2, router_pb2
from msgspec.structs import replace

_STORE_S: Final = 2.0
"""How long the lookup or the storing of a session may delay its run."""


class RunSession:
    """What happens to one run's session.

    Args:
        record: the run, with the key that the session it leaves is stored under.
        remark: emits a notice to the run's readers: a code and a text.
    """

    def __init__(
        self,
        record: RunRecord,
        store: Store,
        clock: Clock,
        remark: Callable[[str, str], None],
    ) -> None:
        self._record = record
        self._store = store
        self._clock = clock
        self._remark = remark
        self._deleted = set[str]()
        """Sessions that callers asked to forget since it began."""
        self._report = SessionReport(record.run_id, record.accepted_at, deleted=self._deleted)
        """What is known of it before the run says what it leaves."""
        self._is_stored = False
        """Whether the session that its adapter is asked to go on with is stored by that key, as far as is known."""

    def go_on_with(self, selected: SessionRequest) -> None:
        """Say what was decided, which its adapter is about to get."""
        native_id = selected.choice.native_id
        self._report = replace(self._report, resumed_id=native_id)
        self._is_stored = bool(native_id) and selected.stored_key == self._key
        self._deleted.clear()

    def begin_anew(self) -> None:
        """Say that another adapter has the run, which begins a session of its own."""
        self._report = replace(self._report, resumed_id="", resumed=None, is_fallback=True)
        self._is_stored = False

    def forget(self, key: SessionId, native_id: str) -> None:
        """Take note that a session is to be forgotten: what the run says at its end is not to bring it back."""
        if key == self._key:
            self._deleted.add(native_id)

    @property
    def _key(self) -> SessionId:
        assert self._record.session_key is not None
        return rules.id_of(self._record.session_key, self._record.adapter)

    async def hear(self, event: event_pb2.AgentEvent) -> None:
        """Note an event before it is published: a reader of a result may resume its session."""
        kind = event.WhichOneof("body")
        if kind == "started":
            disposition = event.started.session_disposition
            resumed = disposition == event_pb2.SESSION_DISPOSITION_RESUME if disposition else None
            self._report = replace(self._report, resumed=resumed)
        elif kind == "attempt_ended" and event.attempt_ended.session.change:
            await self._try_to_keep(replace(self._report, update=event.attempt_ended.session))
        elif kind == "result":
            await self._try_to_keep(replace(self._report, update=event.result.session, result=event.result))

    async def _try_to_keep(self, report: SessionReport) -> None:
        try:
            await in_time(self._keep(self._key, report), _STORE_S)
        except StoreError as error:
            self._remark("session_not_kept", f"The run's session could not be stored: {str(error).rstrip('.')}.")

    async def _keep(self, key: SessionId, report: SessionReport) -> None:
        before = await self._store.sessions.get(key)
        if self._is_stored and before is None:
            self._deleted.add(report.resumed_id)  # at another router, or as another run said that it is gone
        after = rules.updated_session(key, before, report, self._clock.time())
        if after is None and before is not None:
            await self._store.sessions.delete(key)
        elif after is not None and after is not before:
            after.agent_name = self._record.agent_name
            await self._store.sessions.put(key, after, after.used_at.ToNanoseconds() / 1e9)


class Sessions:
    """The sessions that this router and those beside it store."""

    def __init__(self, run_log: RunLog, clock: Clock, find_run: Callable[[str], RunRecord | None]) -> None:
        self._run_log = run_log
        self._clock = clock
        self._find_run = find_run
        self._followed = weakref.WeakSet[RunSession]()

    async def find(self, request: adapter_pb2.ExecuteRequest, backend: AdapterBackend) -> SessionRequest:
        """Find out which session a request means; one that is stored is not looked up yet.

        Raises:
            DragomanError: RUN_NOT_FOUND or SESSION_BUSY of ``session.resume_run_id``.
        """
        caller = current_caller()
        selected = rules.session_request(request, backend.record.type, "" if caller.is_admin else caller.name)
        if not selected.of_run:
            return selected
        return replace(selected, choice=await self._left_by(selected.of_run, request, backend))

    async def prepare(
        self,
        selected: SessionRequest,
        request: adapter_pb2.ExecuteRequest,
        backend: AdapterBackend,
        followed: RunSession | None,
        remark: Callable[[str, str], None],
    ) -> None:
        """Write into a request which session its adapter resumes, now that the run is about to get there.

        It is noted in ``followed``, if what becomes of the run's session is stored here.
        """
        if (key := selected.stored_key) is not None:
            try:
                stored = await in_time(self._run_log.store.sessions.get(key), _STORE_S)
            except StoreError as error:
                why = f"stored sessions are not readable: {str(error).rstrip('.')}"
                remark("session_unavailable", f"The run starts a new session because {why}.")
                choice = SessionDecision(reason=why)
            else:
                choice = await self._stored(stored, selected, request, backend)
            selected = replace(selected, choice=choice)
        if followed is not None:
            followed.go_on_with(selected)
        rules.apply_decision(request, selected)

    async def _stored(
        self,
        stored: router_pb2.StoredSession | None,
        selected: SessionRequest,
        request: adapter_pb2.ExecuteRequest,
        backend: AdapterBackend,
    ) -> SessionDecision:
        fork = selected.fork
        if stored is None:
            return SessionDecision(reason="there is no stored session to fork") if fork else NO_SESSION
        if why := await _misfit(stored.handle, request, backend):
            return SessionDecision(reason=why, handover="" if fork else rules.handover(stored, why))
        policy = rules.compaction(request, compacts_itself=backend.record.declares(event_pb2.FEATURE_COMPACTION))
        if not fork and (why := policy.reason(stored, self._clock.time())):
            return SessionDecision(reason=why, handover=rules.handover(stored, why))
        return SessionDecision(stored.handle)

    async def _left_by(
        self, run_id: str, request: adapter_pb2.ExecuteRequest, backend: AdapterBackend
    ) -> SessionDecision:
        if (record := self._find_run(run_id)) is not None:
            run = record.summary(0)
        elif (stored := await self._run_log.find(run_id)) is not None:
            run = stored.state.run
        else:
            message = f"Run {run_id!r} not found; its session cannot be resumed."
            raise DragomanError(Reason.RUN_NOT_FOUND, message, {"run_id": run_id})
        current_caller().check_control(run.started_by)
        if not run.HasField("finished_at"):
            message = f"Run {run_id!r} has not finished yet; wait for it before resuming its session."
            raise DragomanError(Reason.SESSION_BUSY, message, {"run_id": run_id})
        if run.result.session.change != event_pb2.SESSION_CHANGE_SET:
            return SessionDecision(reason=f"run {run_id} left no session to resume")
        handle = run.result.session.handle
        why = await _misfit(handle, request, backend)
        return SessionDecision(reason=why) if why else SessionDecision(handle)

    def follow(self, record: RunRecord, remark: Callable[[str, str], None]) -> RunSession | None:
        """Begin to follow what becomes of a run's session, unless it has no key, and so is not stored here."""
        if record.session_key is None:
            return None
        session = RunSession(record, self._run_log.store, self._clock, remark)
        self._followed.add(session)
        return session

    def forget(self, key: SessionId, native_id: str) -> None:
        """Take note that a session is to be forgotten, also if a run is in it."""
        for session in self._followed:
            session.forget(key, native_id)


async def _misfit(
    handle: event_pb2.SessionHandle, request: adapter_pb2.ExecuteRequest, backend: AdapterBackend
) -> str:
    names = {*backend.record.names, backend.record.type}
    # In a thread: a file system that hangs is not to stop all else.
    return await asyncio.to_thread(misfit, handle, names, rules.cwd_of(request))
