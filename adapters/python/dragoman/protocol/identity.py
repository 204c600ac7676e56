"""Ids, near names, and when two requests are the same."""

import difflib
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable

from dragoman.v1 import adapter_pb2 as pb

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ADAPTER_TYPE = re.compile(r"[a-z][a-z0-9_]{0,63}")

RUN_ID_METADATA_KEY = "dragoman-run-id"
"""The initial metadata in which Execute tells the run's id."""


def is_run_id(text: str) -> bool:
    """Tell whether ``text`` may be a run id."""
    return _RUN_ID.fullmatch(text) is not None


def is_adapter_type(text: str) -> bool:
    """Tell whether ``text`` may be an adapter's type."""
    return _ADAPTER_TYPE.fullmatch(text) is not None


def new_run_id() -> str:
    """Return a run id that nobody else has."""
    return "run-" + secrets.token_hex(12)


def new_instance_id() -> str:
    """Return an instance id that no other process has."""
    return secrets.token_hex(16)


def near_names(name: str, known: Iterable[str], *, limit: int = 3) -> list[str]:
    """Return the known names that ``name`` may have meant, best first."""
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    wanted = name.lower().replace("-", "_")
    close = difflib.get_close_matches(wanted, folded, n=limit, cutoff=0.6)
    # "claude" is far from "claude_code" by edit distance and near by any other measure.
    parts = [key for key in folded if wanted and (key.startswith(wanted) or wanted.startswith(key))]
    return [folded[key] for key in dict.fromkeys([*close, *parts])][:limit]


class RequestDigests:
    """Tells whether two requests are the same, keeping neither.

    Same means equal after clearing what does not change the run: the hop's fields, the token, batching,
    ``orphan_after``, ``admission`` and labels. The digest is keyed, so that a memory dump does not allow guessing
    secrets.

    Args:
        key: digests of one key can be compared; a new one by default.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key or secrets.token_bytes(32)

    def keyed(self, parts: Iterable[str]) -> bytes:
        """Return a digest of some texts; empty for none."""
        joined = "\0".join(parts).encode("utf-8", "replace")
        return hmac.new(self._key, joined, hashlib.sha256).digest() if joined else b""

    def digest(self, request: pb.ExecuteRequest) -> bytes:
        """Return the digest of ``request``; equal for equal requests and one key."""
        compared = pb.ExecuteRequest()
        compared.CopyFrom(request)
        compared.ClearField("relay")
        compared.ClearField("auth_token")
        compared.ClearField("batching")
        compared.ClearField("orphan_after")
        compared.ClearField("admission")
        compared.ClearField("labels")
        # Plain serialization differs by the order of maps.
        canonical = compared.SerializeToString(deterministic=True)
        return hmac.new(self._key, canonical, hashlib.sha256).digest()
