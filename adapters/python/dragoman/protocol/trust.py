"""The file that says whom a server trusts, and for what: identities of certificates, and issuers of tokens."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.caller import Caller, unknown_scopes
from dragoman.protocol.logs import Logger
from dragoman.protocol.private import file_stamp, read_protected

_BELOW: Final = "/*"
_NAME: Final = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_log = Logger("dragoman.access")


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


Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Signatures that a public key verifies. With others, who can verify a token could make one."""


class ClaimGrant(Grant, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What tokens with certain claims may do."""

    claims: Mapping[str, str] = {}
    """Claims with their values, all of which a token must have; empty for every token of the issuer."""

    def fits(self, claims: Mapping[str, object]) -> bool:
        """Return whether a token has these claims: as they are, in a list, or as words of ``scope``."""
        return all(value in _values(name, claims.get(name)) for name, value in self.claims.items())


def _values(name: str, found: object) -> Sequence[object]:
    if isinstance(found, str) and name in {"scope", "scp"}:  # OAuth has words there
        return found.split()
    return found if isinstance(found, list) else (found,)


class Issuer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An issuer of JSON Web Tokens, such as an OpenID provider."""

    name: str
    """How callers' names call it."""
    issuer: str
    """The claim ``iss`` of its tokens."""
    audience: str
    """What their claim ``aud`` has to be, or contain."""
    jwks: str = ""
    """Path or URL of its public keys; absent, what OpenID discovery says."""
    jwks_ca: str = ""
    """PEM file of the authorities of that URL; absent, the system's."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    """Those that its tokens may be signed by: asymmetric ones alone."""
    clock_skew_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0
    """Seconds that its clock may differ."""
    grants: tuple[ClaimGrant, ...] = ()
    """What its tokens may do: the first that fits."""

    def caller(self, claims: Mapping[str, Any]) -> Caller:
        """Return who calls with a token that was verified; one that no grant fits has no scope."""
        name = f"jwt {self.name} {claims['sub']}"
        found = next((grant for grant in self.grants if grant.fits(claims)), None)
        return Caller(name, frozenset(), ()) if found is None else found.caller(name)


class RunTokenRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a router issues tokens for its runs; see ``run_tokens``."""

    key: str
    """PEM file with the private key, Ed25519 or P-256. Routers of one run log have the same."""
    issuer: str = "dragoman"
    """The claim ``iss``."""
    previous: tuple[str, ...] = ()
    """PEM files with the private keys that ``key`` replaced: their tokens are accepted until they expire."""


class Trust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom a server trusts; the first row that fits counts."""

    identities: tuple[Identity, ...] = ()
    issuers: tuple[Issuer, ...] = ()
    run_tokens: RunTokenRule | None = None

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


def parse_trust(path: Path, data: bytes) -> Trust:
    """Read a trust file, which is TOML.

    Args:
        path: where it is. Relative names of files in it start from its directory.
        data: what is in it.

    Raises:
        AddressError: it is invalid; the text says where.
    """
    import tomllib  # noqa: PLC0415 - most servers have no such file

    try:
        trust = msgspec.convert(tomllib.loads(data.decode()), Trust, strict=True)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise AddressError(f"{path}: {error}") from error
    problem = next((one for one in _problems(trust) if one), "")
    if problem:
        raise AddressError(f"{path}: {problem}")
    return _placed(trust, path.parent)


def _placed(trust: Trust, folder: Path) -> Trust:
    """Return it with the paths of its files. Links are not resolved: a kubelet changes where they lead."""

    def beside(name: str) -> str:
        return str(folder / name) if name and "://" not in name else name

    rule = trust.run_tokens
    if rule is not None:
        rule = RunTokenRule(beside(rule.key), rule.issuer, tuple(beside(name) for name in rule.previous))
    issuers = (
        msgspec.structs.replace(one, jwks=beside(one.jwks), jwks_ca=beside(one.jwks_ca)) for one in trust.issuers
    )
    return Trust(trust.identities, tuple(issuers), rule)


def _problems(trust: Trust) -> Iterator[str]:
    """Yield what is wrong with each row; empty if nothing is."""
    for row in trust.identities:
        yield _scope_problem(f"identity {row.uri!r}", row) or _problem(row)
    for issuer in trust.issuers:
        if _NAME.fullmatch(issuer.name) is None:
            yield f"the name {issuer.name!r} of an issuer must match {_NAME.pattern}"
        for grant in issuer.grants:
            yield _scope_problem(f"issuer {issuer.name!r}", grant)
    if trust.run_tokens is not None and any(one.issuer == trust.run_tokens.issuer for one in trust.issuers):
        yield "an issuer is called as run_tokens is"
    for what in ("name", "issuer"):
        if len({getattr(one, what) for one in trust.issuers}) < len(trust.issuers):
            yield f"two issuers have the same {what}"
    if trust.issuers or trust.run_tokens is not None:
        import importlib.util  # noqa: PLC0415 - as above

        if importlib.util.find_spec("jwt") is None:
            yield "issuers and run_tokens need the extra 'jwt': pip install 'dragoman[jwt]'"


def _scope_problem(where: str, grant: Grant) -> str:
    if grant.scopes and not unknown_scopes(grant.scopes):
        return ""
    return f"{where}: no such scope: {', '.join(unknown_scopes(grant.scopes)) or 'none was named'}"


def _problem(row: Identity) -> str:
    """Return what is wrong with a row; empty if nothing is."""
    parts = urlsplit(row.uri.removesuffix(_BELOW))
    if not parts.scheme or not parts.netloc or "*" in parts.netloc + parts.path:
        return f"identity {row.uri!r} must be a URI such as spiffe://example.org/ci, or one that ends in /*"
    return ""
