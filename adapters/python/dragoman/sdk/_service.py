"""AdapterService for any adapter: the run registry, streams, cancel, respond, idempotency, drain."""

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import structlog
from dragoman.protocol import REVISION
from dragoman.protocol.errors import DragomanError, Reason, invalid, not_supported
from dragoman.protocol.fanout import SequenceAheadError
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
    MAX_RETAINED_RUNS,
    RETAIN_FINISHED_S,
)
from dragoman.protocol.server import Context, draining, stream_events
from dragoman.sdk._adapter import Adapter
from dragoman.sdk._run import Run
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_log = structlog.get_logger("dragoman.sdk")


@dataclass(slots=True)
class _Entry:
    run: Run
    digest: bytes
    task: asyncio.Task[None] | None = None


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
        self._runs: OrderedDict[str, _Entry] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
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
            config_schema_json=json.dumps(info.config_schema),
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
        entry = self._known(request) or self._accept(request)
        run = entry.run
        structlog.contextvars.bind_contextvars(run_id=run.run_id, adapter=self.info.type)
        await context.send_initial_metadata(((RUN_ID_METADATA_KEY, run.run_id),))
        await self._stream(run, context, after_sequence=0, hold=True, joined=False)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> None:  # noqa: N802
        """Follow a run."""
        self._check_name(request.adapter)
        if request.HasField("batching"):
            raise not_supported("batching", "batches are not made here")
        run = self._find(request.run_id).run
        structlog.contextvars.bind_contextvars(run_id=run.run_id, adapter=self.info.type)
        await self._stream(run, context, after_sequence=request.after_sequence, hold=request.hold, joined=True)

    async def Cancel(self, request: pb.CancelRequest, _context: Context) -> pb.CancelResponse:  # noqa: N802
        """Stop a run and say how it ended."""
        self._check_name(request.adapter)
        run = self._find(request.run_id).run
        structlog.contextvars.bind_contextvars(run_id=run.run_id, adapter=self.info.type)
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
        """Refuse new runs, stop those that live within ``grace_s``, then end the streams."""
        self._draining = True
        live = [entry.run for entry in self._runs.values() if not entry.run.finished.is_set()]
        for run in live:
            run.cancel(grace_s, "the adapter is shutting down")
        await asyncio.gather(*(run.finished.wait() for run in live))
        # Readers that keep up get the result; the others have had their time.
        await self._let_readers_end(live)
        self._streams_end.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    async def _let_readers_end(self, runs: list[Run]) -> None:
        deadline = asyncio.get_running_loop().time() + 1.0
        streams = [task for task in self._tasks if task.get_name().startswith("stream")]
        del runs
        if streams:
            await asyncio.wait(streams, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))

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
        self._refuse_unsupported(request)
        digest = self._digests.digest(request)
        accepted = self._adapter.accept(request)
        if not request.run_id:
            request.run_id = new_run_id()
            digest = self._digests.digest(request)
        run = Run(request, accepted, adapter=self.info.type, instance_id=self.instance_id)
        run.holders = Holders(_orphan_after(request), lambda: self._orphaned(run))
        entry = _Entry(run, digest)
        self._runs[run.run_id] = entry
        entry.task = self._track(self._drive(run), f"run {run.run_id}")
        return entry

    def _refuse_unsupported(self, request: pb.ExecuteRequest) -> None:
        if request.HasField("fallback"):
            raise not_supported("fallback", "adapters do not fall back; ask a router that does")
        if request.HasField("batching"):
            raise not_supported("batching", "batches are not made here")
        selector = request.session.WhichOneof("selector") if request.HasField("session") else None
        if selector in {"key", "resume_run_id"}:
            raise not_supported(f"session.{selector}", "sessions are stored by routers; give session.handle")
        missing = [feature for feature in request.required_capabilities if not self.info.has(feature)]
        if missing:
            names = ", ".join(event_pb2.Feature.Name(feature) for feature in missing)
            raise DragomanError(Reason.CAPABILITY_MISSING, f"{self.info.type} cannot: {names}", {"missing": names})

    async def _drive(self, run: Run) -> None:
        run.begin()
        log = _log.bind(run_id=run.run_id, adapter=self.info.type)
        log.info("run accepted")
        try:
            result = await self._adapter.execute(run)
        except Exception as error:  # noqa: BLE001 - an adapter's fault must not leave a run without an end
            log.error("adapter failed", failure=error)
            result = internal_failure(run)
        run.finish(result)
        log.info("run ended", outcome=event_pb2.Outcome.Name(result.outcome), sequence=run.result_sequence)
        asyncio.get_running_loop().call_later(RETAIN_FINISHED_S, self._forget, run)
        self._forget_oldest()

    def _forget(self, run: Run) -> None:
        entry = self._runs.get(run.run_id)
        if entry is not None and entry.run is run:
            del self._runs[run.run_id]

    def _forget_oldest(self) -> None:
        finished = [run_id for run_id, entry in self._runs.items() if entry.run.finished.is_set()]
        for run_id in finished[: max(0, len(finished) - MAX_RETAINED_RUNS)]:
            del self._runs[run_id]

    def _orphaned(self, run: Run) -> None:
        _log.info("run orphaned", run_id=run.run_id)
        run.cancel(_grace(run), "nobody holds the run")

    def _cancel_grace(self, request: pb.CancelRequest, run: Run) -> float:
        if request.HasField("grace"):
            return request.grace.ToNanoseconds() / 1e9
        return _grace(run)

    async def _stream(self, run: Run, context: Context, *, after_sequence: int, hold: bool, joined: bool) -> None:
        try:
            copies = run.inputs.pending_copies() if joined else None
            reader = run.fanout.reader(after_sequence, replay_done=joined, copies=copies)
        except SequenceAheadError as error:
            raise DragomanError(
                Reason.SEQUENCE_AHEAD,
                f"after_sequence {after_sequence} is past the end; the last sequence is {error.last_sequence}",
                {"last_sequence": str(error.last_sequence)},
            ) from error
        holders = run.holders if hold else None
        if holders is not None:
            holders.acquire()
        by_server = False
        stream = self._track(stream_events(context, reader, ended_early=self._streams_end), f"stream {run.run_id}")
        try:
            await stream
        except DragomanError as error:
            by_server = error.reason in {Reason.SLOW_CONSUMER, Reason.DRAINING}
            raise
        finally:
            stream.cancel()
            if holders is not None:
                holders.release(by_server=by_server)

    def _track(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def status_of(checks: Any) -> pb.TestStatus.ValueType:
    """Sum up checks: FAIL if any is an error, else WARN if any is a warning, else PASS."""
    levels = {check.level for check in checks}
    if event_pb2.SEVERITY_ERROR in levels:
        return pb.TEST_STATUS_FAIL
    return pb.TEST_STATUS_WARN if event_pb2.SEVERITY_WARNING in levels else pb.TEST_STATUS_PASS


def internal_failure(run: Run) -> event_pb2.Result:
    """Return the result of a run whose adapter raised."""
    message = "The adapter failed. Its log has more under this run's id."
    failure = event_pb2.Failure(kind=event_pb2.FAILURE_KIND_INTERNAL, code="adapter_failed", message=message)
    del run
    return event_pb2.Result(outcome=event_pb2.OUTCOME_FAILED, failure=failure)


def _grace(run: Run) -> float:
    limits = run.request.limits
    if limits.HasField("grace"):
        return limits.grace.ToNanoseconds() / 1e9
    grace = getattr(run.accepted, "grace_s", None)
    return DEFAULT_GRACE_S if grace is None else float(grace)


def _orphan_after(request: pb.ExecuteRequest) -> float:
    wanted = request.orphan_after.ToNanoseconds() / 1e9 if request.HasField("orphan_after") else 0.0
    return min(max(0.0, wanted), MAX_ORPHAN_AFTER_S)
