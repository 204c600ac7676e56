"""Tokens that a router issues for one run: JSON Web Tokens that are of use until the run has ended.

An adapter gets one by which it may follow its own run at the router and answer that run's input requests. A caller
may ask for one that its agent gets as ``PREFIX_API_KEY``; whom it is for verifies it by the router's public key, and
at the router itself its holder may read the run. Needs the extra ``jwt``.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.caller import Caller
from dragoman.protocol.private import file_stamp, read_protected
from dragoman.protocol.trust import RunTokenRule
from jwt.algorithms import ECAlgorithm, OKPAlgorithm
from msgspec import Struct

ROUTER_AUDIENCE: Final = "dragoman"
"""The claim ``aud`` of tokens for the router itself."""
LONGEST_S: Final = 24 * 3600.0
"""How long a token lasts at most, in seconds."""
ADAPTER_SCOPES: Final = ("read", "respond")
AGENT_SCOPES: Final = ("read",)

_SKEW_S: Final = 30.0


class RunOf(Struct, frozen=True):
    """Which run a token is for, and of which agent; empty is not known."""

    run_id: str
    agent_id: str = ""
    company_id: str = ""
    task_key: str = ""


class RunTokens:
    """Issues and verifies the tokens of one router, or of several with the same key.

    Args:
        rule: the key, and how the router is called.
        clock: returns seconds since the epoch.

    Raises:
        AddressError: the key cannot be used.
    """

    def __init__(self, rule: RunTokenRule, clock: Callable[[], float] = time.time) -> None:
        self.rule = rule
        self._clock = clock
        self._files = [_KeyFile(Path(path)) for path in (rule.key, *rule.previous)]

    def issue(self, run: RunOf, scopes: tuple[str, ...], audience: str = "", lifetime_s: float = LONGEST_S) -> str:
        """Return a token.

        Args:
            run: the run that it is for.
            scopes: what its holder may do with that run at the router.
            audience: whom it is for; empty for the router.
            lifetime_s: seconds until it expires.

        Raises:
            AddressError: the key cannot be used any more.
        """
        key, now = self._files[0].current(), int(self._clock())
        claims: dict[str, Any] = {
            "iss": self.rule.issuer,
            "aud": audience or ROUTER_AUDIENCE,
            "sub": run.agent_id or run.run_id,
            "iat": now,
            "exp": now + int(lifetime_s),
            "scope": " ".join(scopes),
            **{name: value for name, value in _facts(run).items() if value},
        }
        return jwt.encode(claims, key.private, key.algorithm, headers={"kid": key.kid})

    def caller(self, text: str) -> Caller:
        """Return who calls with a token.

        Raises:
            jwt.PyJWTError: it is not valid, or not for this router.
            AddressError: the key cannot be used any more.
        """
        kid = jwt.get_unverified_header(text).get("kid")
        keys = [file.current() for file in self._files]
        key = next((key for key in keys if key.kid == kid), keys[0])
        claims: dict[str, Any] = jwt.decode(
            text,
            key.private.public_key(),
            algorithms=[key.algorithm],
            audience=ROUTER_AUDIENCE,
            issuer=self.rule.issuer,
            leeway=_SKEW_S,
            options={"require": ["exp", "iss", "aud", "run_id", "scope"]},
        )
        run_id = str(claims["run_id"])
        return Caller(f"run {run_id}", frozenset(str(claims["scope"]).split()), (), run_id)

    def public_keys(self) -> dict[str, Any]:
        """Return the JSON Web Key Set by which others verify tokens, the present key first.

        Raises:
            AddressError: a key cannot be used any more.
        """
        return {"keys": [_public(file.current()) for file in self._files]}


def _facts(run: RunOf) -> dict[str, str]:
    return {
        "run_id": run.run_id,
        "agent_id": run.agent_id,
        "company_id": run.company_id,
        "task_key": run.task_key,
    }


class _Key(Struct, frozen=True):
    private: Any
    algorithm: str
    kid: str


class _KeyFile:
    """A key in a file, as it is now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: object = None
        self._key = self.current()

    def current(self) -> _Key:
        """Return the key; read again if the file is another one."""
        stamp = file_stamp(self._path)
        if stamp != self._stamp or stamp is None:
            self._key, self._stamp = _read(self._path), stamp
        return self._key


def _public(key: _Key) -> dict[str, Any]:
    public = key.private.public_key()
    found: dict[str, Any] = (
        ECAlgorithm.to_jwk(public, as_dict=True)
        if isinstance(public, ec.EllipticCurvePublicKey)
        else OKPAlgorithm.to_jwk(public, as_dict=True)
    )
    return {**found, "kid": key.kid, "alg": key.algorithm, "use": "sig"}


def _read(path: Path) -> _Key:
    try:
        private = serialization.load_pem_private_key(read_protected(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if isinstance(error, AddressError):
            raise
        raise AddressError(f"{path} is no PEM file with a private key without a password") from error
    if isinstance(private, ed25519.Ed25519PrivateKey):
        algorithm = "EdDSA"
    elif isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
        algorithm = "ES256"
    else:
        raise AddressError(f"{path} must be an Ed25519 or P-256 key: openssl genpkey -algorithm ed25519")
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashes.Hash(hashes.SHA256())
    digest.update(private.public_key().public_bytes(serialization.Encoding.DER, form))
    return _Key(private, algorithm, digest.finalize().hex()[:16])
