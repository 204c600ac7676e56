"""``Detect``: one adapter or all of them, from a cache as long as that is right."""

import asyncio

import structlog
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router._domain.detection import (
    CachedDetection,
    is_sure,
    is_worth_keeping,
    may_ask_cache,
    may_keep_answer,
)
from dragoman.router._ports import DetectionStore
from dragoman.router._rpc.core import Core
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.serving import addressed
from dragoman.v1 import adapter_pb2 as pb
from google.protobuf.message import DecodeError

_UNREACHABLE = frozenset({Reason.ADAPTER_UNAVAILABLE, Reason.ADAPTER_REFUSED})

_log = structlog.get_logger("dragoman.router")


class Detecting:
    """Answers ``Detect``.

    Args:
        core: the router.
        store: keeps findings while no router runs.
        ttl_s: how old a cached finding may be.
        version: the router's version; findings of another one do not count.
    """

    def __init__(self, core: Core, store: DetectionStore, *, ttl_s: float, version: str) -> None:
        self._core = core
        self._store = store
        self._ttl_s = ttl_s
        self._version = version
        self._cached = dict(store.load())
        self._logins = {name: pb.Detection.FromString(entry.detection).auth for name, entry in self._cached.items()}
        """What was found last of each adapter's login, where that was sure."""
        core.admitting.detections = self.ready

    async def one(self, host: Host, request: pb.DetectRequest, data: bytes, timeout_s: float | None) -> bytes:
        """Look for the agent of one adapter.

        Raises:
            DragomanError: the adapter's status. That it cannot be reached is a finding, not an error.
        """
        cached = self._from_cache(host, request)
        if cached is not None:
            return pb.DetectResponse(detections=[cached]).SerializeToString()
        data = addressed(pb.DetectRequest, data, request.adapter, host.record.type)
        asked_at = self._core.scene.clock.time()
        try:
            async with host.use() as endpoint:
                answer = await endpoint.link.answer("Detect", data, timeout_s=timeout_s)
        except DragomanError as error:
            if error.reason not in _UNREACHABLE:
                raise
            return pb.DetectResponse(detections=[self._unreachable(host, error.message)]).SerializeToString()
        self._keep(host, request, answer, asked_at)
        return answer

    def ready(self) -> list[pb.Detection]:
        """Return what was found last of each adapter's agent that needs no settings, looking at nothing."""
        now = self._core.scene.clock.time()
        young = [entry for entry in self._cached.values() if 0 <= now - entry.stored_at < self._ttl_s]
        return [pb.Detection.FromString(entry.detection) for entry in young if not entry.is_needy]

    async def all(self, request: pb.DetectRequest) -> pb.DetectResponse:
        """Look for the agents of all adapters, in parallel; in order of their types."""
        found = await asyncio.gather(*(self._one_of_all(host, request) for host in self._core.hosts))
        detections = sorted((one for some in found for one in some), key=lambda one: one.adapter)
        return pb.DetectResponse(detections=detections)

    async def refresh(self) -> None:
        """Forget what is cached, and look anew."""
        self._cached.clear()
        self._store.save(self._cached)
        response = await self.all(pb.DetectRequest(refresh=True))
        _log.info("agents detected anew", adapters=len(response.detections))

    async def _one_of_all(self, host: Host, request: pb.DetectRequest) -> list[pb.Detection]:
        asked = pb.DetectRequest()
        asked.CopyFrom(request)
        asked.adapter = host.record.type if host.record.description is not None else ""
        limit_s = self._core.scene.timing.detect_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await self.one(host, asked, asked.SerializeToString(), limit_s)
            return list(pb.DetectResponse.FromString(answer).detections)
        except TimeoutError:
            why = f"the adapter {host.record.type!r} did not answer within {limit_s:g} s"
        except DragomanError as error:
            why = error.message
        except DecodeError:
            why = f"the answer of the adapter {host.record.type!r} cannot be read"
        return [self._unreachable(host, why)]

    def _unreachable(self, host: Host, why: str) -> pb.Detection:
        record = host.record
        problem = pb.DetectionProblem(
            code="adapter_unavailable", message=why, hint="ListAdapters says where it stands."
        )
        detection = pb.Detection(
            adapter=record.type,
            label=record.label,
            message="Its adapter could not be asked.",
            hint="See the adapter's log; ask again with refresh once it runs.",
            problems=[problem],
        )
        detection.detected_at.FromNanoseconds(int(self._core.scene.clock.time() * 1e9))
        return detection

    def _from_cache(self, host: Host, request: pb.DetectRequest) -> pb.Detection | None:
        entry = self._cached.get(host.record.type) if may_ask_cache(request) else None
        if entry is None:
            return None
        detection = pb.Detection.FromString(entry.detection)
        mark = self._store.mark(detection.executable) if detection.executable else None
        surroundings = self._store.surroundings(detection.config_dir) if entry.surroundings else ""
        if not entry.is_fresh(self._core.scene.clock.time(), self._ttl_s, self._version, mark, surroundings):
            return None
        detection.cached = True
        return detection

    def _note_login(self, host: Host, request: pb.DetectRequest, found: pb.Detection, asked_at: float) -> None:
        """Take note of a login that is good and was not: one that was good before may be refused all the same."""
        if not is_sure(found):
            return
        before = self._logins.get(host.record.type)
        self._logins[host.record.type] = found.auth
        # Where nothing was found before it counts for who asks for it, having mended it perhaps.
        is_new = before != pb.AUTH_STATE_OK and (before is not None or request.refresh)
        if is_new and found.auth == pb.AUTH_STATE_OK:
            self._core.admitting.mended(host.record.type, asked_at)

    def _keep(self, host: Host, request: pb.DetectRequest, answer: bytes, asked_at: float) -> None:
        if not may_keep_answer(request):
            return
        try:
            detections = pb.DetectResponse.FromString(answer).detections
        except DecodeError:
            return  # the caller's parser will say so
        if len(detections) == 1:
            self._note_login(host, request, detections[0], asked_at)
        before = self._cached.pop(host.record.type, None)
        entry = self._entry(host, detections[0]) if len(detections) == 1 else None
        if entry is not None:
            self._cached[host.record.type] = entry
        elif before is None:
            return
        self._store.save(self._cached)

    def _entry(self, host: Host, detection: pb.Detection) -> CachedDetection | None:
        mark = self._store.mark(detection.executable) if detection.executable else None
        is_there = mark is not None or not detection.executable
        if detection.adapter != host.record.type or not is_sure(detection) or not is_there:
            return None
        is_good = is_worth_keeping(detection, mark)
        surroundings = "" if is_good else self._store.surroundings(detection.config_dir)
        now, data = self._core.scene.clock.time(), detection.SerializeToString()
        return CachedDetection(now, self._version, mark, data, surroundings, host.record.traits.is_needy)
