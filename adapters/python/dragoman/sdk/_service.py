"""AdapterService for any adapter: the run registry, streams, cancel, respond, idempotency, drain."""

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from dragoman.protocol import REVISION
from dragoman.protocol.errors import DragomanError, Reason, invalid, not_supported
from dragoman.protocol.fanout import Reader, SequenceAheadError
from dragoman.protocol.holding import Holders
from dragoman.protocol.identity import (
    RUN_ID_METADATA_KEY,
    RequestDigests,
    is_run_id,
    new_instance_id,
    new_run_id,
)
from dragoman.protocol.limits import (
    DEFAULT_GRACE_S,
    MAX_ORPHAN_AFTER_S,
    MAX_REQUEST_BYTES,
    MAX_RETAINED_RUNS,
    RETAIN_FINISHED_S,
)
from dragoman.protocol.logs import failure_fields
from dragoman.protocol.server import Context, draining, stream_events
from dragoman.sdk._adapter import Adapter, AdapterInfo
from dragoman.sdk._run import Run
from dragoman.sdk._values import wrong_duration
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_RETAINED_BYTES = 256 * 1024 * 1024
"""What the events of finished runs may take of the memory, all together."""
_PATIENCE_S = 15.0
"""How long after its grace an adapter may take to end a run when the server stops."""
_LAST_WORDS_S = 1.0
"""How long streams may go on writing once the runs have ended."""

_log = structlog.get_logger("dragoman.sdk")


@dataclass(slots=True)
class _Entry:
    run: Run
    digest: bytes
    forget: asyncio.TimerHandle | None = None
    """Set when the run has ended."""


class AdapterServicer:
    """Serves one adapter.

    Args:
        adapter: the adapter.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.info = adapter.describe()
        self.instance_id = new_instance_id()
        self._digests = RequestDigests()
        self._runs: dict[str, _Entry] = {}
        self._driving: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.Task[None]] = set()
        self._draining = False
        self._streams_end = asyncio.Event()

    # Describe, Detect, TestEnvironment, models, skills.

    async def Describe(self, request: pb.DescribeRequest, _context: Context) -> pb.DescribeResponse:  # noqa: N802
        """Say what the adapter is."""
        self._check_name(request.adapter)
        info = self.info
        response = pb.DescribeResponse(
            adapter=info.type,
            aliases=info.aliases,
            label=info.label,
            version=info.version,
            revision=REVISION,
            instance_id=self.instance_id,
            capabilities=info.capabilities,
            config_schema_json=json.dumps(_schema(info)),
            configuration_doc=info.configuration_doc,
            pid=os.getpid(),
        )
        for model in info.models:
            response.models.add(id=model.id, label=model.label, is_default=model.is_default)
        return response

    async def Detect(self, request: pb.DetectRequest, _context: Context) -> pb.DetectResponse:  # noqa: N802
        """Look for the agent."""
        self._check_name(request.adapter)
        found = await self._adapter.detect(request)
        found.adapter, found.label = self.info.type, self.info.label
        found.detected_at.GetCurrentTime()
        return pb.DetectResponse(detections=[found])

    async def TestEnvironment(  # noqa: N802
        self, request: pb.TestEnvironmentRequest, _context: Context
    ) -> pb.TestEnvironmentResponse:
        """Check a set-up."""
        self._check_name(request.adapter)
        if request.mode == pb.TEST_MODE_UNSPECIFIED:
            request.mode = pb.TEST_MODE_QUICK
        checks = await self._adapter.test_environment(request)
        response = pb.TestEnvironmentResponse(adapter=self.info.type, mode=request.mode, checks=checks)
        response.status = status_of(checks)
        response.tested_at.GetCurrentTime()
        return response

    async def ListModels(self, request: pb.ListModelsRequest, _context: Context) -> pb.ListModelsResponse:  # noqa: N802
        """List models."""
        self._check_name(request.adapter)
        return await self._adapter.list_models(request)

    async def ListSkills(self, request: pb.ListSkillsRequest, _context: Context) -> pb.ListSkillsResponse:  # noqa: N802
        """List skills."""
        self._check_name(request.adapter)
        return await self._adapter.list_skills(request)

    async def SyncSkills(self, request: pb.SyncSkillsRequest, _context: Context) -> pb.SyncSkillsResponse:  # noqa: N802
        """Place skills."""
        self._check_name(request.adapter)
        return await self._adapter.sync_skills(request)

    # Runs.

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> None:  # noqa: N802
        """Start a run, or join the one that has this id and this request; then stream it."""
        self._check_name(request.adapter)
        if request.run_id and not is_run_id(request.run_id):
            raise invalid("run_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
        run = (self._known(request) or self._accept(request)).run
        structlog.contextvars.bind_contextvars(run_id=run.run_id, adapter=self.info.type)
        with self._holding(run):
            await context.send_initial_metadata(((RUN_ID_METADATA_KEY, run.run_id),))
            await self._stream(run, context, run.fanout.reader(run.first_sequence - 1))

    async def Attach(self, request: pb.AttachRequest, context: Context) -> None:  # noqa: N802
        """Follow a run."""
        self._check_name(request.adapter)
        if request.HasField("batching"):
            raise not_supported("batching", "batches are not made here")
        run = self._find(request.run_id).run
        structlog.contextvars.bind_contextvars(run_id=run.run_id, adapter=self.info.type)
        try:
            copies = run.inputs.pending_copies()
            reader = run.fanout.reader(request.after_sequence, replay_done=True, copies=copies)
        except SequenceAheadError as error:
            raise DragomanError(
                Reason.SEQUENCE_AHEAD,
                f"after_sequence {request.after_sequence} is past the end; the last is {error.last_sequence}",
                {"last_sequence": str(error.last_sequence)},
            ) from error
        with self._holding(run) if request.hold else contextlib.nullcontext():
            await self._stream(run, context, reader)

    async def Cancel(self, request: pb.CancelRequest, _context: Context) -> pb.CancelResponse:  # noqa: N802
        """Stop a run and say how it ended."""
        self._check_name(request.adapter)
        run = self._find(request.run_id).run
        structlog.contextvars.bind_contextvars(run_id=run.run_id, adapter=self.info.type)
        if problem := wrong_duration(request.grace):
            raise invalid("grace", problem)
        run.cancel(self._cancel_grace(request, run), request.reason)
        await run.finished.wait()
        response = pb.CancelResponse(result_sequence=run.result_sequence)
        if run.result is not None:
            response.outcome = run.result.outcome
            if run.result.HasField("tree_confirmed_dead"):
                response.tree_confirmed_dead = run.result.tree_confirmed_dead
        return response

    async def Respond(self, request: pb.RespondRequest, _context: Context) -> pb.RespondResponse:  # noqa: N802
        """Answer a question of a run."""
        self._check_name(request.adapter)
        run = self._find(request.run_id).run
        structlog.contextvars.bind_contextvars(run_id=run.run_id, adapter=self.info.type)
        sequence = run.inputs.answer(request.request_id, request.answer, request.responder)
        return pb.RespondResponse(sequence=sequence)

    async def drain(self, grace_s: float) -> None:
        """Refuse new runs, stop those that live within ``grace_s``, then end the streams. May be called again."""
        self._draining = True
        for entry in self._runs.values():
            entry.run.cancel(grace_s, "the adapter is shutting down")
        if self._driving:
            await asyncio.wait(self._driving, timeout=grace_s + _PATIENCE_S)
        for task in self._driving:
            task.cancel()  # its adapter does not listen
        if self._driving:
            await asyncio.wait(self._driving, timeout=_PATIENCE_S)
        # Readers that keep up get the result; the others have had their time.
        if self._streams:
            await asyncio.wait(self._streams, timeout=_LAST_WORDS_S)
        self._streams_end.set()
        if self._streams:
            await asyncio.wait(self._streams, timeout=_LAST_WORDS_S)

    # Parts.

    def _check_name(self, name: str) -> None:
        known = (self.info.type, *self.info.aliases)
        if name and name not in known:
            raise DragomanError(
                Reason.ADAPTER_NOT_FOUND,
                f"this sidecar serves {self.info.type}, not {name!r}",
                {"adapter": name, "did_you_mean": self.info.type},
            )

    def _find(self, run_id: str) -> _Entry:
        entry = self._runs.get(run_id)
        if entry is None:
            raise DragomanError(
                Reason.RUN_NOT_FOUND, f"no run {run_id!r} here: it is over and forgotten, or never was"
            )
        return entry

    def _known(self, request: pb.ExecuteRequest) -> _Entry | None:
        entry = self._runs.get(request.run_id) if request.run_id else None
        if entry is None:
            return None
        if entry.forget is not None and request.relay.first_sequence > entry.run.result_sequence:
            # It is over, and a router begins the next attempt; it holds what came before.
            self._forget(request.run_id)
            return None
        if entry.digest != self._digests.digest(request):
            raise DragomanError(
                Reason.RUN_ID_REUSED,
                f"run {request.run_id!r} exists with another request; choose another id",
                {"run_id": request.run_id},
            )
        return entry

    def _accept(self, request: pb.ExecuteRequest) -> _Entry:
        if self._draining:
            raise draining()
        if request.ByteSize() > MAX_REQUEST_BYTES:
            raise DragomanError(Reason.MESSAGE_TOO_LARGE, "the request has over 16 MiB; give large inputs as files")
        self._refuse_unsupported(request)
        accepted = self._adapter.accept(request)
        self._refuse_busy_session(accepted)
        request.run_id = request.run_id or new_run_id()
        run = Run(request, accepted, adapter=self.info.type, instance_id=self.instance_id)
        run.holders = Holders(_orphan_after(request), lambda: self._orphaned(run))
        entry = self._runs[run.run_id] = _Entry(run, self._digests.digest(request))
        task = asyncio.get_running_loop().create_task(self._drive(entry), name=f"run {run.run_id}")
        self._driving.add(task)
        task.add_done_callback(self._driving.discard)
        return entry

    def _refuse_busy_session(self, accepted: Any) -> None:
        """Two runs in one session would mix up what was said in it."""
        session = self._adapter.session_in_use(accepted)
        live = (entry.run for entry in self._runs.values() if not entry.run.finished.is_set())
        other = next((run for run in live if session and self._adapter.session_in_use(run.accepted) == session), None)
        if other is not None:
            raise DragomanError(
                Reason.SESSION_BUSY,
                f"run {other.run_id!r} goes on with this session; wait for it, or fork the session",
                {"run_id": other.run_id},
            )

    def _refuse_unsupported(self, request: pb.ExecuteRequest) -> None:
        if request.HasField("fallback"):
            raise not_supported("fallback", "adapters do not fall back; ask a router that does")
        if request.HasField("admission"):
            raise not_supported("admission", "adapters have no places to wait for; ask a router")
        if request.HasField("batching"):
            raise not_supported("batching", "batches are not made here")
        selector = request.session.WhichOneof("selector") if request.HasField("session") else None
        if selector in {"key", "resume_run_id"}:
            raise not_supported(f"session.{selector}", "sessions are stored by routers; give session.handle")
        missing = [feature for feature in request.required_capabilities if not self.info.has(feature)]
        if missing:
            names = ", ".join(_feature_name(feature) for feature in missing)
            raise DragomanError(Reason.CAPABILITY_MISSING, f"{self.info.type} cannot: {names}", {"missing": names})

    async def _drive(self, entry: _Entry) -> None:
        run = entry.run
        run.begin()
        log = _log.bind(run_id=run.run_id, adapter=self.info.type)
        log.info("run accepted")
        try:
            run.finish(await self._adapter.execute(run))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever an adapter does, its run ends
            log.error("adapter failed", **failure_fields(error))
            run.finish(_internal_failure())
        outcome = event_pb2.Outcome.Name(run.result.outcome) if run.result else ""
        log.info("run ended", outcome=outcome, sequence=run.result_sequence)
        entry.forget = asyncio.get_running_loop().call_later(RETAIN_FINISHED_S, self._forget, run.run_id)
        self._forget_oldest()

    def _forget(self, run_id: str) -> None:
        entry = self._runs.pop(run_id)
        if entry.forget is not None:
            entry.forget.cancel()  # it would keep the run's events alive

    def _forget_oldest(self) -> None:
        """Forget the runs that were accepted first among those that have ended, while there are too many."""
        finished = [entry.run for entry in self._runs.values() if entry.forget is not None]
        kept_bytes = sum(run.fanout.kept_bytes for run in finished)
        for number, run in enumerate(finished[:-1]):
            if len(finished) - number <= MAX_RETAINED_RUNS and kept_bytes <= _RETAINED_BYTES:
                break
            kept_bytes -= run.fanout.kept_bytes
            self._forget(run.run_id)

    def _orphaned(self, run: Run) -> None:
        _log.info("run orphaned", run_id=run.run_id)
        run.cancel(_grace(run), "nobody holds the run")

    def _cancel_grace(self, request: pb.CancelRequest, run: Run) -> float:
        if request.HasField("grace"):
            return request.grace.ToNanoseconds() / 1e9
        return _grace(run)

    @contextlib.contextmanager
    def _holding(self, run: Run) -> Iterator[None]:
        """Hold a run while its stream is open; the stream alone may end it, not what goes wrong before."""
        assert run.holders is not None
        run.holders.acquire()
        by_server = False
        try:
            yield
        except DragomanError as error:
            by_server = error.reason in {Reason.SLOW_CONSUMER, Reason.DRAINING}
            raise
        finally:
            run.holders.release(by_server=by_server)

    async def _stream(self, run: Run, context: Context, reader: Reader) -> None:
        work = stream_events(context, reader, ended_early=self._streams_end)
        stream = asyncio.get_running_loop().create_task(work, name=f"stream {run.run_id}")
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)
        try:
            await stream
        finally:
            stream.cancel()


def status_of(checks: Sequence[pb.EnvironmentCheck]) -> pb.TestStatus.ValueType:
    """Sum up checks: FAIL if any is an error, else WARN if any is a warning, else PASS."""
    levels = {check.level for check in checks}
    if event_pb2.SEVERITY_ERROR in levels:
        return pb.TEST_STATUS_FAIL
    return pb.TEST_STATUS_WARN if event_pb2.SEVERITY_WARNING in levels else pb.TEST_STATUS_PASS


def _schema(info: AdapterInfo) -> dict[str, Any]:
    said = {"x-login-variables": list(info.login_variables)} if info.login_variables else {}
    return {**said, **info.config_schema}


def _internal_failure() -> event_pb2.Result:
    """Return the result of a run whose adapter raised. Nothing of what it raised is told."""
    message = "The adapter failed. Its log has more under this run's id."
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
    wanted = request.orphan_after.ToNanoseconds() / 1e9 if request.HasField("orphan_after") else 0.0
    return min(max(0.0, wanted), MAX_ORPHAN_AFTER_S)
