"""JSON Web Tokens of other issuers: who calls with one, by the trust file. Needs the extra ``jwt``."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jwt
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.caller import Caller
from dragoman.protocol.jwt_keys import KeySource, fetch_keys
from dragoman.protocol.logs import Logger
from dragoman.protocol.private import file_stamp
from dragoman.protocol.run_tokens import RunTokens
from dragoman.protocol.trust import Issuer, RunTokenRule, Trust

_FRESH_S: Final = 300.0
"""How long keys are used before they are looked for again."""
_AGAIN_S: Final = 10.0
"""How long after a look another one may follow: a token with an unknown key must not cause one each time."""
_KEPT_S: Final = 3600.0
"""How long keys are used that cannot be looked for again."""
_MOST_SUBJECT: Final = 255
_REQUIRED: Final = ("exp", "iss", "aud", "sub")

_WRONG: Final[tuple[tuple[type[Exception], str], ...]] = (
    (jwt.ExpiredSignatureError, "has expired"),
    (jwt.ImmatureSignatureError, "is not valid yet"),
    (jwt.InvalidAudienceError, "is for another audience"),
    (jwt.InvalidAlgorithmError, "has an algorithm that is not allowed"),
    (jwt.InvalidSignatureError, "has a wrong signature"),
    (jwt.MissingRequiredClaimError, f"lacks one of the claims {', '.join(_REQUIRED)}"),
)
"""By exception, what is wrong with a token. The texts of exceptions may quote it."""

_log = Logger("dragoman.access")


class JwtError(ValueError):
    """A token is not accepted; the message says why, and quotes nothing of it."""


class JwtCallers:
    """The callers of the issuers in a trust file.

    Args:
        clock: returns seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keys: dict[KeySource, _Keys] = {}
        self._own: RunTokens | None = None

    async def caller(self, trust: Trust, text: str) -> Caller | None:
        """Return who calls with a token; ``None`` if it is none, or of no issuer of the file.

        Args:
            trust: what the file says now.
            text: the token.

        Raises:
            JwtError: it is an issuer's token, but not accepted.
        """
        try:
            header = jwt.get_unverified_header(text)
            named = jwt.decode(text, options={"verify_signature": False}).get("iss")
        except jwt.PyJWTError:
            return None
        if trust.run_tokens is not None and named == trust.run_tokens.issuer:
            return self._of_run(trust.run_tokens, text)
        issuer = next((one for one in trust.issuers if one.issuer == named), None)
        if issuer is None:
            return None
        claims = await self._verified(issuer, header.get("kid"), text)
        subject = claims["sub"]
        if not subject.isprintable() or not 0 < len(subject) <= _MOST_SUBJECT:
            raise JwtError(f"the token of issuer {issuer.name!r} has an unusable subject")
        return issuer.caller(claims)

    def _of_run(self, rule: RunTokenRule, text: str) -> Caller:
        if self._own is None or self._own.rule != rule:
            self._own = RunTokens(rule)
        try:
            return self._own.caller(text)
        except jwt.PyJWTError as error:
            raise JwtError(f"the token of a run {_why(error)}") from error

    async def _verified(self, issuer: Issuer, kid: object, text: str) -> Mapping[str, Any]:
        source = KeySource(issuer.issuer, issuer.jwks, issuer.jwks_ca)
        keys = self._keys.setdefault(source, _Keys(source, self._clock))
        key = await keys.find(kid)
        if key is None:
            raise JwtError(f"the token of issuer {issuer.name!r} is signed by a key that is not known")
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                algorithms=issuer.algorithms,
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=issuer.clock_skew_s,
                options={"require": list(_REQUIRED), "enforce_minimum_key_length": True},
            )
        except jwt.PyJWTError as error:
            raise JwtError(f"the token of issuer {issuer.name!r} {_why(error)}") from error
        return claims


def _why(error: jwt.PyJWTError) -> str:
    return next((text for kind, text in _WRONG if isinstance(error, kind)), "is not valid")


class _Keys:
    """The keys of one issuer, looked for again when they are old, and when a token names one that is not there."""

    def __init__(self, source: KeySource, clock: Callable[[], float]) -> None:
        self._source = source
        self._clock = clock
        self._lock = asyncio.Lock()
        self._found: list[jwt.PyJWK] = []
        self._found_at = self._tried_at = float("-inf")
        self._stamp: object = None
        """Of the file."""

    async def find(self, kid: object) -> jwt.PyJWK | None:
        """Return a key; ``None`` if there is none.

        Args:
            kid: its ID; ``None`` for the only one.
        """
        async with self._lock:
            now = self._clock()
            stamp = file_stamp(Path(self._source.place)) if self._source.is_file else None
            is_old = now - self._found_at > _FRESH_S
            if stamp != self._stamp or ((is_old or self._named(kid) is None) and now - self._tried_at > _AGAIN_S):
                self._tried_at, self._stamp = now, stamp
                await self._look()
            if self._clock() - self._found_at > _KEPT_S:
                self._found = []
            return self._named(kid)

    async def _look(self) -> None:
        try:
            data = await asyncio.to_thread(fetch_keys, self._source)
            found = jwt.PyJWKSet.from_dict(data).keys
        except (AddressError, jwt.PyJWTError) as error:
            why = str(error) if isinstance(error, AddressError) else "it has no key that can be used"
            _log.warning("keys of an issuer not read", issuer=self._source.issuer, why=why)
            return
        self._found = [key for key in found if key.public_key_use != "enc"]
        self._found_at = self._clock()

    def _named(self, kid: object) -> jwt.PyJWK | None:
        if kid is None:
            return self._found[0] if len(self._found) == 1 else None
        return next((key for key in self._found if key.key_id == kid), None)
