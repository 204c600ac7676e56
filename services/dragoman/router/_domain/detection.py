"""What a detection's cache may answer, and what it may keep.

It answers as long as nothing it can see has changed: the same router, the same executable with the same time and
size, not too old. What is missing or expired, people mend and look again, and then an answer of yesterday would be
the wrong one: such a finding is kept for a minute, and only while its surroundings are the same.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.v1 import adapter_pb2 as pb
from google.protobuf.message import DecodeError

_GOOD_AUTH = frozenset({pb.AUTH_STATE_OK, pb.AUTH_STATE_NOT_NEEDED, pb.AUTH_STATE_UNKNOWN})


BAD_TTL_S = 60.0
"""How long a finding is kept that people may be about to mend."""


@dataclass(frozen=True, slots=True)
class FileMark:
    """What tells a file from its successor."""

    mtime_ns: int
    size: int


@dataclass(frozen=True, slots=True)
class CachedDetection:
    """One finding, with what it depends on."""

    stored_at: float
    """Seconds since the epoch."""
    router_version: str
    mark: FileMark | None
    """Of the executable; ``None`` if the adapter needs none."""
    detection: bytes
    """A serialized ``Detection``."""
    surroundings: str = ""
    """What a finding that is not good depends on besides; empty for a good one."""
    is_needy: bool = False
    """Whether its adapter does nothing without settings."""

    def is_fresh(
        self, now: float, ttl_s: float, router_version: str, mark: FileMark | None, surroundings: str
    ) -> bool:
        """Tell whether it may be given as an answer.

        Args:
            now: the time.
            ttl_s: how old it may be.
            router_version: the version of the router that asks.
            mark: of the executable as it is now; ``None`` if it is gone or none was named.
            surroundings: as they are now.
        """
        if self.surroundings:
            ttl_s = min(ttl_s, BAD_TTL_S)
        # A clock that was set back must not make an answer live for ever.
        is_young = 0 <= now - self.stored_at < ttl_s
        is_same = self.surroundings in {"", surroundings}
        return is_young and is_same and router_version == self.router_version and mark == self.mark

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "stored_at": self.stored_at,
            "router_version": self.router_version,
            "mark": None if self.mark is None else [self.mark.mtime_ns, self.mark.size],
            "detection": base64.b64encode(self.detection).decode(),
            "surroundings": self.surroundings,
            "is_needy": self.is_needy,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CachedDetection":
        """Read what ``to_json`` returned.

        Raises:
            ValueError: it is something else.
        """
        try:
            mark = value["mark"]
            data = base64.b64decode(value["detection"], validate=True)
            pb.Detection.FromString(data)
            return cls(
                stored_at=float(value["stored_at"]),
                router_version=str(value["router_version"]),
                mark=None if mark is None else FileMark(int(mark[0]), int(mark[1])),
                detection=data,
                surroundings=str(value.get("surroundings", "")),
                is_needy=value.get("is_needy") is True,
            )
        except (KeyError, TypeError, IndexError, binascii.Error, DecodeError) as error:
            raise ValueError("not a cached detection") from error


def may_ask_cache(request: pb.DetectRequest) -> bool:
    """Tell whether a cached answer may do. A request with an environment or settings of its own is another."""
    return not request.refresh and may_keep_answer(request)


def may_keep_answer(request: pb.DetectRequest) -> bool:
    """Tell whether the answer is one that others may get."""
    return not request.env and not request.HasField("config")


def is_sure(detection: pb.Detection) -> bool:
    """Tell whether a finding, good or not, is what was to be found out: nothing hung, failed or was out of reach."""
    return not detection.problems


def is_worth_keeping(detection: pb.Detection, mark: FileMark | None) -> bool:
    """Tell whether this finding will still be right tomorrow, as far as anyone can tell.

    Args:
        detection: the finding.
        mark: of its executable; ``None`` if that cannot be looked at.
    """
    needs_file = detection.confidence != pb.DETECTION_CONFIDENCE_NOT_APPLICABLE or bool(detection.executable)
    return (
        detection.available
        and not detection.problems
        and detection.auth in _GOOD_AUTH
        and (mark is not None or not needs_file)
    )
