"""``Detect``: one adapter or all of them, from a cache as long as that is right."""

import asyncio
import contextlib
from collections.abc import Sequence

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.channel import addressed
from dragoman.router.adapters.context import AdapterContext
from dragoman.router.adapters.detection import (
    CachedDetection,
    FileMark,
    is_cacheable,
    is_conclusive,
    may_cache_response,
    may_use_cache,
)
from dragoman.router.adapters.detection_file import DetectionFile
from dragoman.router.adapters.detection_process import DetectionProcess
from dragoman.router.adapters.discovery import detection_launch
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.runs.admission import AdmissionController
from dragoman.v1 import adapter_pb2 as pb
from google.protobuf.message import DecodeError

_UNREACHABLE = frozenset({Reason.ADAPTER_UNAVAILABLE, Reason.ADAPTER_REFUSED})

_MANY = 2
"""How many adapters are asked in one process instead of in processes of their own."""

_log = Logger("dragoman.router")


class AgentDetector:
    """Answers ``Detect``.

    Args:
        adapters: the adapters.
        admission: is notified when a login works again.
        context: what the backends of all adapters share.
        store: keeps detections while no router runs.
        version: the router's version; detections of another one, or by other variables, do not count.
    """

    def __init__(
        self,
        adapters: AdapterPool,
        admission: AdmissionController,
        context: AdapterContext,
        store: DetectionFile,
        version: str,
    ) -> None:
        self._adapters = adapters
        self._admission = admission
        self._context = context
        self._clock = context.clock
        self._limit_s = context.timing.detect_s
        self._store = store
        self._ttl_s = context.timing.detect_ttl_s
        # An agent that one router found logged in by a key has none at the next, which lacks the variable.
        self._version = f"{version} {store.logins()}"
        self._cached = dict(store.load())
        self._logins = {name: pb.Detection.FromString(entry.detection).auth for name, entry in self._cached.items()}
        """What was found last of each adapter's login, where that was sure."""
        admission.detections = self.ready

    async def one(
        self,
        backend: AdapterBackend,
        request: pb.DetectRequest,
        data: bytes,
        timeout_s: float | None,
        shared: DetectionProcess | None = None,
    ) -> bytes:
        """Look for the agent of one adapter.

        Args:
            backend: the adapter.
            request: the request.
            data: the same, serialized.
            timeout_s: how long to wait.
            shared: the process to ask, if the adapter has none of its own.

        Raises:
            DragomanError: the adapter's status. That it cannot be reached is a finding, not an error.
        """
        cached = self._from_cache(backend, request)
        if cached is not None:
            return pb.DetectResponse(detections=[cached]).SerializeToString()
        data = addressed(pb.DetectRequest, data, request.adapter, backend.record.type)
        asked_at = self._clock.time()
        try:
            answer = await self._ask(backend, data, timeout_s, shared)
        except DragomanError as error:
            if error.reason not in _UNREACHABLE:
                raise
            return pb.DetectResponse(detections=[self._unreachable(backend, error.message)]).SerializeToString()
        self._keep(backend, request, answer, asked_at)
        return answer

    def ready(self) -> list[pb.Detection]:
        """Return what was found last of each adapter's agent, looking at nothing."""
        now = self._clock.time()
        return [
            pb.Detection.FromString(entry.detection)
            for entry in self._cached.values()
            if entry.router_version == self._version and 0 <= now - entry.stored_at < self._ttl_s
        ]

    async def all(self, request: pb.DetectRequest) -> pb.DetectResponse:
        """Look for the agents of all adapters, in parallel; in order of their types."""
        backends = self._adapters.backends
        async with self._shared(backends, request) as shared:
            found = await asyncio.gather(*(self._one_of_all(backend, request, shared) for backend in backends))
        detections = sorted((one for some in found for one in some), key=lambda one: one.adapter)
        return pb.DetectResponse(detections=detections)

    async def refresh(self) -> None:
        """Forget what is cached, and look anew."""
        self._cached.clear()
        self._store.save(self._cached)
        response = await self.all(pb.DetectRequest(refresh=True))
        _log.info("detection refreshed", adapters=len(response.detections))

    def logged_in(self, backend: AdapterBackend) -> None:
        """Take note that the agent was logged in just now, maybe to another account than it was found with."""
        name = backend.record.type
        self._logins[name] = pb.AUTH_STATE_OK
        self._admission.login_restored(name, self._clock.time())
        if self._cached.pop(name, None) is not None:
            self._store.save(self._cached)

    def _shared(
        self, backends: Sequence[AdapterBackend], request: pb.DetectRequest
    ) -> contextlib.AbstractAsyncContextManager[DetectionProcess | None]:
        """Return one process for all that are asked, may share it, and have none; nothing if they are few."""
        waiting = [one for one in backends if _may_share(one) and self._from_cache(one, request) is None]
        if len(waiting) < _MANY:
            return contextlib.nullcontext()
        specs = (record.spec for record in self._context.registry.records)
        return DetectionProcess.open(detection_launch(specs), self._context)

    async def _ask(
        self, backend: AdapterBackend, data: bytes, timeout_s: float | None, shared: DetectionProcess | None
    ) -> bytes:
        if shared is not None and _may_share(backend):
            # What is wrong, its own process will say.
            with contextlib.suppress(DragomanError):
                return await shared.detect(backend.record, data, timeout_s)
        with await backend.use() as instance:
            return await instance.channel.answer("Detect", data, timeout_s=timeout_s)

    async def _one_of_all(
        self, backend: AdapterBackend, request: pb.DetectRequest, shared: DetectionProcess | None
    ) -> list[pb.Detection]:
        asked = pb.DetectRequest()
        asked.CopyFrom(request)
        asked.adapter = backend.record.type if backend.record.description is not None or _may_share(backend) else ""
        limit_s = self._limit_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await self.one(backend, asked, asked.SerializeToString(), limit_s, shared)
            return list(pb.DetectResponse.FromString(answer).detections)
        except TimeoutError:
            why = f"Adapter {backend.record.type!r} did not answer within {limit_s:g} s."
        except DragomanError as error:
            why = error.message
        except DecodeError:
            why = f"Adapter {backend.record.type!r} sent an invalid DetectResponse."
        return [self._unreachable(backend, why)]

    def _unreachable(self, backend: AdapterBackend, why: str) -> pb.Detection:
        record = backend.record
        problem = pb.DetectionProblem(code="adapter_unavailable", message=why, hint="ListAdapters shows its state.")
        detection = pb.Detection(
            adapter=record.type,
            label=record.label,
            message="The adapter is unavailable, so detection did not run.",
            hint="Check the adapter's log; once it runs, detect again with refresh.",
            problems=[problem],
        )
        detection.detected_at.FromNanoseconds(int(self._clock.time() * 1e9))
        return detection

    def _from_cache(self, backend: AdapterBackend, request: pb.DetectRequest) -> pb.Detection | None:
        entry = self._cached.get(backend.record.type) if may_use_cache(request) else None
        if entry is None:
            return None
        detection = pb.Detection.FromString(entry.detection)
        mark = self._store.mark(detection.executable) if detection.executable else None
        environment = self._store.environment(detection.config_dir) if entry.environment else ""
        most_s = entry.most_s(self._ttl_s, self._config_mark(detection))
        if not entry.is_fresh(self._clock.time(), most_s, self._version, mark, environment):
            return None
        detection.cached = True
        if not detection.HasField("detected_at"):
            detection.detected_at.FromNanoseconds(int(entry.stored_at * 1e9))
        return detection

    def _note_login(
        self, backend: AdapterBackend, request: pb.DetectRequest, found: pb.Detection, asked_at: float
    ) -> None:
        """Note a login that works and did not: one that worked before may be refused nevertheless."""
        if not is_conclusive(found):
            return
        before = self._logins.get(backend.record.type)
        self._logins[backend.record.type] = found.auth
        # The first detection counts if a caller asks for a fresh one, perhaps because the login was repaired.
        is_new = before != pb.AUTH_STATE_OK and (before is not None or request.refresh)
        if is_new and found.auth == pb.AUTH_STATE_OK:
            self._admission.login_restored(backend.record.type, asked_at)

    def _keep(self, backend: AdapterBackend, request: pb.DetectRequest, answer: bytes, asked_at: float) -> None:
        if not may_cache_response(request):
            return
        try:
            detections = pb.DetectResponse.FromString(answer).detections
        except DecodeError:
            return  # the caller's parser will say so
        if len(detections) == 1:
            self._note_login(backend, request, detections[0], asked_at)
        before = self._cached.pop(backend.record.type, None)
        entry = self._entry(backend, detections[0]) if len(detections) == 1 else None
        if entry is not None:
            self._cached[backend.record.type] = entry
        elif before is None:
            return
        self._store.save(self._cached)

    def _entry(self, backend: AdapterBackend, detection: pb.Detection) -> CachedDetection | None:
        mark = self._store.mark(detection.executable) if detection.executable else None
        is_there = mark is not None or not detection.executable
        if detection.adapter != backend.record.type or not is_conclusive(detection) or not is_there:
            return None
        is_good = is_cacheable(detection, mark)
        environment = "" if is_good else self._store.environment(detection.config_dir)
        now, data = self._clock.time(), detection.SerializeToString()
        return CachedDetection(now, self._version, mark, data, environment, self._config_mark(detection))

    def _config_mark(self, detection: pb.Detection) -> FileMark | None:
        return self._store.mark(detection.config_dir) if detection.config_dir else None


def _may_share(backend: AdapterBackend) -> bool:
    """Return whether an adapter may be asked in one process with others, and has none of its own."""
    return bool(backend.record.spec.reference) and not backend.is_up
