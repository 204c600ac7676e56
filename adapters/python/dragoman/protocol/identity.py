"""Ids, near names, and when two requests are the same."""

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.v1 import adapter_pb2 as pb

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ADAPTER_TYPE = re.compile(r"[a-z][a-z0-9_]{0,63}")

RUN_ID_METADATA_KEY = "dragoman-run-id"
"""The initial metadata in which Execute reports the run's ID."""
RUN_TOKEN_METADATA_KEY = "dragoman-run-token"  # noqa: S105 - a name
"""The metadata with which a router gives an adapter a token for one run."""


def is_run_id(text: str) -> bool:
    """Return whether ``text`` may be a run id."""
    return _RUN_ID.fullmatch(text) is not None


def is_adapter_type(text: str) -> bool:
    """Return whether ``text`` may be an adapter's type."""
    return _ADAPTER_TYPE.fullmatch(text) is not None


def new_run_id() -> str:
    """Return a new, unique run ID."""
    return "run-" + os.urandom(12).hex()


def new_input_id() -> str:
    """Return a new, unique ID of an input."""
    return "input-" + os.urandom(12).hex()


def new_instance_id() -> str:
    """Return an instance id that no other process has."""
    return os.urandom(16).hex()


def new_uuid() -> str:
    """Return a random UUID; the module ``uuid`` is slow to import."""
    digits = (int.from_bytes(os.urandom(16)) & ~(0xF << 76 | 0x3 << 62)) | 0x4 << 76 | 0x2 << 62
    return "-".join(f"{digits:032x}"[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def near_names(name: str, known: Iterable[str], *, limit: int = 3) -> list[str]:
    """Return the known names that ``name`` may have meant, best first."""
    import difflib  # noqa: PLC0415 - most names are right

    folded = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    folded_name = name.lower().replace("-", "_")
    close = difflib.get_close_matches(folded_name, folded, n=limit, cutoff=0.6)
    # "claude" is far from "claude_code" by edit distance and near by any other measure.
    parts = [key for key in folded if folded_name and (key.startswith(folded_name) or folded_name.startswith(key))]
    return [folded[key] for key in dict.fromkeys([*close, *parts])][:limit]


class RequestDigests:
    """Finds out whether two requests are the same, keeping neither.

    Same means equal after clearing what does not change the run: the hop's fields, the token, batching,
    ``orphan_after``, ``admission`` and labels. The digest is keyed, so that a memory dump does not allow guessing
    secrets.

    Args:
        key: digests of one key can be compared; a new one by default.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key or os.urandom(32)

    def keyed(self, parts: Iterable[str]) -> bytes:
        """Return a digest of some texts; empty for none."""
        joined = "\0".join(parts).encode("utf-8", "replace")
        return self._hashed(joined) if joined else b""

    def digest(self, request: "pb.ExecuteRequest") -> bytes:
        """Return the digest of ``request``; equal for equal requests and one key."""
        compared = type(request)()
        compared.CopyFrom(request)
        for name in ("relay", "auth_token", "batching", "orphan_after", "admission", "labels"):
            compared.ClearField(name)
        # Plain serialization differs by the order of maps.
        canonical = compared.SerializeToString(deterministic=True)
        return self._hashed(canonical)

    def _hashed(self, data: bytes) -> bytes:
        import hmac  # noqa: PLC0415 - a process that serves no run yet does without OpenSSL's hashes

        return hmac.digest(self._key, data, "sha256")
