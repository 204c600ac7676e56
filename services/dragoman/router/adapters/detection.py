"""When a detection may be cached, and when a cached one is valid.

A cached detection is valid while the router's version, the variables that it has for agents, and the executable's
time and size are the same and it is not too old. A login that ends elsewhere is mostly a file that is removed from
the agent's config directory, so once that has changed a detection is valid for one minute. A missing or expired login
is what people fix before they detect again, so a detection that is not good is valid for one minute too, and only
while its environment is the same.
"""

from dragoman.v1 import adapter_pb2 as pb
from msgspec import Struct

_USABLE_AUTH = frozenset({pb.AUTH_STATE_OK, pb.AUTH_STATE_NOT_NEEDED, pb.AUTH_STATE_UNKNOWN})


BAD_TTL_S = 60.0
"""How long a detection is cached that reports something to fix, or whose config directory has changed."""


class FileMark(Struct, frozen=True):
    """Distinguishes versions of a file."""

    mtime_ns: int
    size: int


class CachedDetection(Struct, frozen=True):
    """One detection, with what its validity depends on."""

    stored_at: float
    """Seconds since the epoch."""
    router_version: str
    """The router's, and what its variables say about logins."""
    file_mark: FileMark | None
    """Of the executable; ``None`` if the adapter needs none."""
    detection: bytes
    """A serialized ``Detection``."""
    environment: str = ""
    """A digest of the environment, for a detection that is not good; empty for a good one."""
    config_mark: FileMark | None = None
    """Of the agent's config directory; ``None`` if it has none."""

    def most_s(self, ttl_s: float, config_mark: FileMark | None) -> float:
        """Return how old it may be.

        Args:
            ttl_s: how old any may be.
            config_mark: the present mark of the agent's config directory.
        """
        is_same = config_mark == self.config_mark
        return ttl_s if is_same else min(ttl_s, BAD_TTL_S)

    def is_fresh(
        self, now: float, ttl_s: float, router_version: str, mark: FileMark | None, environment: str
    ) -> bool:
        """Return whether it is valid.

        Args:
            now: the time.
            ttl_s: the maximum age.
            router_version: the version of this router.
            mark: the present mark of the executable; ``None`` if there is none.
            environment: the present digest of the environment.
        """
        if self.environment:
            ttl_s = min(ttl_s, BAD_TTL_S)
        # After the clock was set back an entry must not be valid for ever.
        is_young = 0 <= now - self.stored_at < ttl_s
        is_same = self.environment in {"", environment}
        return is_young and is_same and router_version == self.router_version and mark == self.file_mark


def may_use_cache(request: pb.DetectRequest) -> bool:
    """Return whether the cache may answer: not for a request with an environment or settings of its own."""
    return not request.refresh and may_cache_response(request)


def may_cache_response(request: pb.DetectRequest) -> bool:
    """Return whether the response is valid for other requests."""
    return not request.env and not request.HasField("config")


def is_conclusive(detection: pb.Detection) -> bool:
    """Return whether a detection, good or not, is complete: nothing timed out, failed or was unreachable."""
    return not detection.problems


def is_cacheable(detection: pb.Detection, mark: FileMark | None) -> bool:
    """Return whether a detection is good and may be cached for long.

    Args:
        detection: the detection.
        mark: the mark of its executable; ``None`` if that is not readable.
    """
    needs_file = detection.confidence != pb.DETECTION_CONFIDENCE_NOT_APPLICABLE or bool(detection.executable)
    return (
        detection.available
        and not detection.problems
        and detection.auth in _USABLE_AUTH
        and (mark is not None or not needs_file)
    )
