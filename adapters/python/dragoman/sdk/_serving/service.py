"""AdapterService for any adapter: the run registry, streams, cancel, respond, idempotency, drain."""

import asyncio
import contextlib
import functools
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError, Reason, invalid, not_supported
from dragoman.protocol.event_buffer import SequenceAheadError
from dragoman.protocol.identity import (
    RUN_ID_METADATA_KEY,
    RUN_TOKEN_METADATA_KEY,
    is_run_id,
    new_run_id,
)
from dragoman.protocol.keepalive import KeepaliveStreams
from dragoman.protocol.limits import (
    DEFAULT_GRACE_S,
    MAX_ORPHAN_AFTER_S,
)
from dragoman.protocol.logs import Logger, bind_context, failure_fields
from dragoman.protocol.observer import Observer
from dragoman.protocol.order import OrderError
from dragoman.protocol.server import Context, draining, stream_events
from dragoman.protocol.signals import Signal
from dragoman.protocol.tracing import Tracing
from dragoman.sdk._process.prepared_guard import SpareGuards
from dragoman.sdk._request.attachments import AttachmentError
from dragoman.sdk._run.changes import RunChanges, unknown_changes
from dragoman.sdk._run.faults import place_of
from dragoman.sdk._run.files import FileStore
from dragoman.sdk._run.run import Run
from dragoman.sdk._serving.artifacts import stream_artifact
from dragoman.sdk._serving.logins import stream_login
from dragoman.sdk._serving.queries import QueryServicer, check_name
from dragoman.sdk._serving.runs import RunTable, overlapping
from dragoman.sdk._serving.sending import accept_input, check_input, refuse_undeclared
from dragoman.sdk._serving.updating import check_update, refuse_undeclared_update
from dragoman.sdk.adapter import Adapter
from dragoman.sdk.spec import AdapterInfo
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_DRAIN_MARGIN_S = 15.0
"""How long after its grace an adapter may take to end a run when the server stops."""
_FLUSH_S = 1.0
"""How long streams may still write once the runs have ended."""

_log = Logger("dragoman.sdk")


class AdapterServicer(QueryServicer):
    """Serves one adapter.

    Args:
        adapter: the adapter.
        guards: where runs get the guards of their processes from; if absent, each starts its own.
        drain_grace_s: how long live runs may continue once the server is to stop, before they are cancelled.
    """

    def __init__(self, adapter: Adapter, guards: SpareGuards | None = None, drain_grace_s: float = 0.0) -> None:
        super().__init__(adapter)
        self._drain_grace_s = drain_grace_s
        self._guards = guards or SpareGuards()
        self._runs = RunTable()
        self._driving: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.Task[None]] = set()
        self._draining = False
        self._files = FileStore()
        self._streams_end = Signal()
        self.tracing = Tracing()
        """Begins the spans of runs."""
        self.observer = Observer()
        """Takes note of runs that have ended."""
        self.levels = functools.partial(self._runs.levels, self.info.type)
        """Returns what is to be measured of it now."""

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> None:  # noqa: N802
        """Start a run, or join the one that has this id and this request; then stream it."""
        check_name(self.info, request.adapter)
        if request.run_id and not is_run_id(request.run_id):
            raise invalid("run_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
        run = self._runs.known(request) or self._accept(request)
        run.router_token = run.router_token or _token_of(context)
        bind_context(run_id=run.run_id, adapter=self.info.type)
        with _keeping_alive(run):
            await context.send_initial_metadata(((RUN_ID_METADATA_KEY, run.run_id),))
            reader = run.event_buffer.reader(run.first_sequence - 1, holds=True)
            batching = request.HasField("batching")
            work = stream_events(context, reader, batching=batching, ended_early=self._streams_end)
            await _counted(self._streams, work)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> None:  # noqa: N802
        """Follow a run."""
        check_name(self.info, request.adapter)
        run = self._runs.find(request.run_id)
        bind_context(run_id=run.run_id, adapter=self.info.type)
        try:
            copies = run.inputs.pending_copies()
            reader = run.event_buffer.reader(
                request.after_sequence, replay_done=True, copies=copies, holds=request.hold
            )
        except SequenceAheadError as error:
            raise DragomanError(
                Reason.SEQUENCE_AHEAD,
                f"after_sequence {request.after_sequence} is past the end; the last is {error.last_sequence}",
                {"last_sequence": str(error.last_sequence)},
            ) from error
        with _keeping_alive(run) if request.hold else contextlib.nullcontext():
            batching = request.HasField("batching")
            work = stream_events(context, reader, batching=batching, ended_early=self._streams_end)
            await _counted(self._streams, work)

    async def Cancel(self, request: pb.CancelRequest, _context: Context) -> pb.CancelResponse:  # noqa: N802
        """Stop a run and say how it ended."""
        check_name(self.info, request.adapter)
        run = self._runs.find(request.run_id)
        bind_context(run_id=run.run_id, adapter=self.info.type)
        run.cancel(_cancel_grace(request, run), request.reason)
        await run.finished.wait()
        response = pb.CancelResponse(result_sequence=run.result_sequence)
        if run.result is not None:
            response.outcome = run.result.outcome
            if run.result.HasField("tree_confirmed_dead"):
                response.tree_confirmed_dead = run.result.tree_confirmed_dead
        return response

    async def Respond(self, request: pb.RespondRequest, _context: Context) -> pb.RespondResponse:  # noqa: N802
        """Answer a question of a run."""
        check_name(self.info, request.adapter)
        run = self._runs.find(request.run_id)
        bind_context(run_id=run.run_id, adapter=self.info.type)
        sequence = run.inputs.answer(request.request_id, request.answer, request.responder or current_caller().name)
        return pb.RespondResponse(sequence=sequence)

    async def Send(self, request: pb.SendRequest, _context: Context) -> pb.SendResponse:  # noqa: N802
        """Give a run an input."""
        check_name(self.info, request.adapter)
        check_input(request)
        run = self._runs.find(request.run_id)
        bind_context(run_id=run.run_id, adapter=self.info.type)
        refuse_undeclared(self.info, request)
        sequence = run.sent.repeated(request)
        if sequence is None:
            await run.attempting.wait()
            sequence = await accept_input(run, request, request.sender or current_caller().name)
        return pb.SendResponse(sequence=sequence)

    async def UpdateRun(self, request: pb.UpdateRunRequest, _context: Context) -> pb.UpdateRunResponse:  # noqa: N802
        """Change the model or the permission mode of a run."""
        check_name(self.info, request.adapter)
        check_update(request)
        run = self._runs.find(request.run_id)
        bind_context(run_id=run.run_id, adapter=self.info.type)
        refuse_undeclared_update(self.info, request)
        return pb.UpdateRunResponse(sequence=await run.updates.make(request, request.sender or current_caller().name))

    async def GetChanges(self, request: pb.GetChangesRequest, _context: Context) -> pb.GetChangesResponse:  # noqa: N802
        """Return what a run changed in its workspace."""
        check_name(self.info, request.adapter)
        run = self._runs.find(request.run_id)
        bind_context(run_id=run.run_id, adapter=self.info.type)
        if run.changes is None:
            raise unknown_changes("its request did not set track_changes")
        response = await run.changes.present()
        response.is_final = run.finished.is_set()
        response.overlapping_run_ids.extend(overlapping(run, response.root, self._runs, self._adapter.workspace_of))
        if request.without_diffs:
            for file in response.files:
                file.ClearField("diff")
        return response

    async def ReadArtifact(self, request: pb.ReadArtifactRequest, context: Context) -> None:  # noqa: N802
        """Send a file that a run's agent left."""
        check_name(self.info, request.adapter)
        run = self._runs.find(request.run_id)
        bind_context(run_id=run.run_id, adapter=self.info.type)
        await _counted(self._streams, stream_artifact(context, run, request, self._streams_end))

    async def Login(self, request: pb.LoginRequest, context: Context) -> None:  # noqa: N802
        """Send the steps of a login of the agent."""
        check_name(self.info, request.adapter)
        await _counted(self._streams, stream_login(context, self._adapter, request, self._streams_end))

    async def drain(self, grace_s: float) -> None:
        """Refuse new runs, let live ones continue for a while, stop the rest, then end the streams.

        A second call stops the live runs at once.
        """
        may_continue, self._draining = not self._draining, True
        if may_continue and self._driving and self._drain_grace_s:
            _log.info("waiting for live runs", live=len(self._driving), grace_s=self._drain_grace_s)
            await asyncio.wait(self._driving, timeout=self._drain_grace_s)
        for run in self._runs:
            run.cancel(grace_s, "the adapter is shutting down")
        if self._driving:
            await asyncio.wait(self._driving, timeout=grace_s + _DRAIN_MARGIN_S)
        for task in self._driving:
            task.cancel()  # its adapter does not listen
        if self._driving:
            await asyncio.wait(self._driving, timeout=_DRAIN_MARGIN_S)
        # Readers that keep up get the result; the others have had their time.
        if self._streams:
            await asyncio.wait(self._streams, timeout=_FLUSH_S)
        self._streams_end.set()
        if self._streams:
            await asyncio.wait(self._streams, timeout=_FLUSH_S)
        self._files.close()

    # Parts.

    def _accept(self, request: pb.ExecuteRequest) -> Run:
        if self._draining:
            raise draining()
        _refuse_unsupported(self.info, request)
        if request.limits.budget.ByteSize() and pb.DUTY_BUDGETS not in self._adapter.duties:
            raise not_supported("limits.budget", f"{self.info.type} keeps no budget; send the request to a router")
        accepted = self._adapter.accept(request)
        _refuse_busy_session(self._adapter, self._runs, accepted)
        request.run_id = request.run_id or new_run_id()
        run = Run(request, accepted, adapter=self.info.type, instance_id=self.instance_id)
        run.keepalive = KeepaliveStreams(_orphan_after(request), lambda: _cancel_orphan(run))
        run.guards = self._guards
        run.span = self.tracing.begin(self.info.type, request)
        self._runs.add(run)
        task = asyncio.get_running_loop().create_task(
            _drive(self._adapter, run, self._files), name=f"run {run.run_id}"
        )
        self._driving.add(task)
        task.add_done_callback(self._driving.discard)
        task.add_done_callback(lambda _: self._runs.retire(run))
        task.add_done_callback(lambda _: _report(self.observer, run))
        return run


async def _counted(streams: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """Write a stream, among those that a drain waits for."""
    stream = asyncio.get_running_loop().create_task(work)
    streams.add(stream)
    stream.add_done_callback(streams.discard)
    try:
        await stream
    finally:
        stream.cancel()


async def _drive(adapter: Adapter, run: Run, store: FileStore) -> None:
    run.begin()
    log = _log.bind(run_id=run.run_id, adapter=run.adapter, **run.span.trace.fields)
    log.info("run accepted")
    try:
        with run.observed(run.span.note) if run.span.is_recorded else contextlib.nullcontext():
            result = await _with_files(adapter, run, store)
            if run.budget is not None:
                run.budget.conclude(result)
            run.finish(result)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever an adapter does, its run ends
        log.error("adapter failed", **failure_fields(error))
        run.finish(_internal_failure(place_of(error, adapter)))
    outcome = event_pb2.Outcome.Name(run.result.outcome) if run.result else ""
    log.info("run ended", outcome=outcome, sequence=run.result_sequence)


async def _with_files(adapter: Adapter, run: Run, store: FileStore) -> event_pb2.Result:
    """Do a run with the files that come with its prompt, and keep those that its agent leaves."""
    info = adapter.describe()
    if not (info.has(event_pb2.FEATURE_ATTACHMENTS) or info.has(event_pb2.FEATURE_ARTIFACTS)):
        return await _executed(adapter, run)
    try:
        run.files = store.files_of_run()
        await run.files.lay_out(run.request)
    except (AttachmentError, OSError) as error:
        why = str(error) if isinstance(error, AttachmentError) else f"A file cannot be written: {error.strerror}."
        kind = event_pb2.FAILURE_KIND_WORKSPACE_FAILED
        failure = event_pb2.Failure(kind=kind, code="attachment_failed", message=run.redactor.text(why))
        return event_pb2.Result(outcome=event_pb2.OUTCOME_FAILED, failure=failure)
    try:
        result = await _executed(adapter, run)
    except BaseException:
        run.files.drop()
        raise
    await run.files.conclude(run.emit, run.notice, run.redactor.text)
    return result


async def _executed(adapter: Adapter, run: Run) -> event_pb2.Result:
    """Do a run, and compare its workspace before and after if its request asks for that."""
    directory = adapter.workspace_of(run.accepted)
    if not run.request.track_changes or not directory:
        return await adapter.execute(run)
    changes = run.changes = RunChanges(directory, lambda: run.redactor)
    await changes.record(run.cancellation.changed)
    try:
        with run.observed(changes.observe):
            result = await adapter.execute(run)
    finally:
        await changes.conclude()
    if changes.problem:
        message = f"GetChanges has no answer: {changes.problem}."
        with contextlib.suppress(OrderError):  # there was no attempt, or none is open: then GetChanges alone says so
            run.notice(event_pb2.SEVERITY_WARNING, "changes_unknown", message)
    return result


def _report(observer: Observer, run: Run) -> None:
    """Report the end of a run, and end its span."""
    run.span.end(run.result)
    assert run.result is not None
    outcome = event_pb2.Outcome.Name(run.result.outcome).removeprefix("OUTCOME_")
    observer.run_ended(run.adapter, outcome, run.result.duration.ToNanoseconds() / 1e9)


def _token_of(context: Context) -> str:
    """Return the token for its run that a router sends along; empty for none."""
    sent = context.invocation_metadata() or ()
    return next((str(value) for key, value in sent if key == RUN_TOKEN_METADATA_KEY), "")


def _refuse_busy_session(adapter: Adapter, runs: Iterable[Run], accepted: Any) -> None:
    """Two runs in one session would mix up what was said in it."""
    session = adapter.session_in_use(accepted)
    live = (run for run in runs if not run.finished.is_set())
    other = next((run for run in live if session and adapter.session_in_use(run.accepted) == session), None)
    if other is not None:
        raise DragomanError(
            Reason.SESSION_BUSY,
            f"run {other.run_id!r} uses this session; wait for it, or fork the session",
            {"run_id": other.run_id},
        )


def _refuse_unsupported(info: AdapterInfo, request: pb.ExecuteRequest) -> None:
    if request.HasField("fallback"):
        raise not_supported("fallback", "adapters do not fall back; ask a router that does")
    if request.HasField("admission"):
        raise not_supported("admission", "adapters have no queue of runs; send the request to a router")
    if request.agent_name:
        raise not_supported("agent_name", "agents are stored by routers; send the request to a router")
    selector = request.session.WhichOneof("selector") if request.HasField("session") else None
    if selector in {"key", "resume_run_id"}:
        raise not_supported(f"session.{selector}", "sessions are stored by routers; give session.handle")
    missing = [feature for feature in request.required_capabilities if not info.has(feature)]
    if missing:
        names = ", ".join(_feature_name(feature) for feature in missing)
        raise DragomanError(Reason.CAPABILITY_MISSING, f"{info.type} cannot: {names}", {"missing": names})


def _cancel_orphan(run: Run) -> None:
    _log.info("run orphaned", run_id=run.run_id)
    run.cancel(_grace(run), "no client is attached")


def _cancel_grace(request: pb.CancelRequest, run: Run) -> float:
    if request.HasField("grace"):
        return request.grace.ToNanoseconds() / 1e9
    return _grace(run)


@contextlib.contextmanager
def _keeping_alive(run: Run) -> Iterator[None]:
    """Keep a run alive while its stream is open; the stream alone may end it, not what goes wrong before."""
    assert run.keepalive is not None
    run.keepalive.acquire()
    by_server = False
    try:
        yield
    except DragomanError as error:
        by_server = error.reason in {Reason.SLOW_CONSUMER, Reason.DRAINING}
        raise
    finally:
        run.keepalive.release(by_server=by_server)


def _internal_failure(fault: str) -> event_pb2.Result:
    """Return the result of a run whose adapter raised: the type and place of what it raised, never its text."""
    message = f"The adapter failed ({fault}). Its log has more under this run's id."
    failure = event_pb2.Failure(kind=event_pb2.FAILURE_KIND_INTERNAL, code="adapter_failed", message=message)
    return event_pb2.Result(outcome=event_pb2.OUTCOME_FAILED, failure=failure)


def _feature_name(number: int) -> str:
    try:
        return event_pb2.Feature.Name(number)  # type: ignore[arg-type]  # any number may come
    except ValueError:
        return str(number)


def _grace(run: Run) -> float:
    limits = run.request.limits
    if limits.HasField("grace"):
        return limits.grace.ToNanoseconds() / 1e9
    grace = getattr(run.accepted, "grace_s", None)
    return DEFAULT_GRACE_S if grace is None else float(grace)


def _orphan_after(request: pb.ExecuteRequest) -> float:
    orphan_after_s = request.orphan_after.ToNanoseconds() / 1e9 if request.HasField("orphan_after") else 0.0
    return min(max(0.0, orphan_after_s), MAX_ORPHAN_AFTER_S)
