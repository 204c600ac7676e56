"""The file that says which peers a server trusts, and for what: certificates' identities."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.caller import Caller, unknown_scopes
from dragoman.protocol.private import file_stamp, read_protected

__all__ = [
    "TRUST_VARIABLE",
    "Grant",
    "Identity",
    "Trust",
    "TrustFile",
    "named_trust",
    "parse_trust",
]

TRUST_VARIABLE: Final = "DRAGOMAN_TRUST"
"""Environment variable with the path of the file."""

_BELOW: Final = "/*"

_log = structlog.get_logger("dragoman.access")


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a caller may do."""

    scopes: tuple[str, ...]
    """See ``caller.SCOPES``."""
    adapters: tuple[str, ...] = ("*",)
    """Patterns of adapter types."""

    def caller(self, name: str) -> Caller:
        """Return the caller of this name who has what is granted."""
        return Caller(name, frozenset(self.scopes), self.adapters)


class Identity(Grant, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Peers by the URI in their certificates, as SPIFFE has it, and what they may do."""

    uri: str
    """The URI; one that ends in ``/*`` stands for all that are below that path."""

    def names(self, uri: str) -> bool:
        """Return whether a certificate's URI is one of these."""
        if not self.uri.endswith(_BELOW):
            return uri == self.uri
        stem = self.uri.removesuffix("*")
        return uri.startswith(stem) and uri != stem


class Trust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom a server trusts; the first row that fits counts."""

    identities: tuple[Identity, ...] = ()

    def caller_by_uris(self, uris: Iterable[str]) -> Caller | None:
        """Return who calls with a certificate.

        Args:
            uris: its URIs. Only one of them is an identity, as SPIFFE requires.
        """
        found = list(uris)
        if len(found) != 1:
            return None
        return next((row.caller(found[0]) for row in self.identities if row.names(found[0])), None)


class TrustFile:
    """The trust in a file, as it is now. If a change is invalid, what was trusted before stays in force.

    Raises:
        AddressError: it cannot be read, other users can write it, or it is invalid.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = file_stamp(path)
        self._trust = parse_trust(path, read_protected(path))

    def current(self) -> Trust:
        """Return what is trusted: read again if the file is another one, as a changed ConfigMap's is."""
        stamp = file_stamp(self.path)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._trust = parse_trust(self.path, read_protected(self.path))
                _log.info("trust changed", file=str(self.path))
            except AddressError as error:
                _log.error("trust kept as it was", why=str(error))
        return self._trust


def named_trust() -> TrustFile | None:
    """Return the file that ``DRAGOMAN_TRUST`` names; ``None`` if it names none.

    Raises:
        AddressError: the file cannot be used.
    """
    named = os.environ.get(TRUST_VARIABLE, "")
    return TrustFile(Path(named)) if named else None


def parse_trust(path: Path, data: bytes) -> Trust:
    """Read a trust file, which is TOML.

    Raises:
        AddressError: it is invalid; the text says where.
    """
    import tomllib  # noqa: PLC0415 - most servers have no such file

    try:
        trust = msgspec.convert(tomllib.loads(data.decode()), Trust, strict=True)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise AddressError(f"{path}: {error}") from error
    problem = next((one for one in map(_problem, trust.identities) if one), "")
    if problem:
        raise AddressError(f"{path}: {problem}")
    return trust


def _problem(row: Identity) -> str:
    """Return what is wrong with a row; empty if nothing is."""
    if not row.scopes or unknown_scopes(row.scopes):
        return f"identity {row.uri!r}: no such scope: {', '.join(unknown_scopes(row.scopes)) or 'none was named'}"
    parts = urlsplit(row.uri.removesuffix(_BELOW))
    if not parts.scheme or not parts.netloc or "*" in parts.netloc + parts.path:
        return f"identity {row.uri!r} must be a URI such as spiffe://example.org/ci, or one that ends in /*"
    return ""
