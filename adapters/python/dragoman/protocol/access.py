"""Who may call a server: on Unix sockets this user alone, on TCP who shows a credential.

That is the user's token, a token with scopes, or what the trust file has: the identity of a certificate, or a token
of an issuer.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dragoman.protocol.caller import CALLER, RULES, Caller, current_caller
from dragoman.protocol.callers import Connections
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.private import make_token, read_token

if TYPE_CHECKING:
    from dragoman.protocol.jwt_tokens import JwtCallers
    from dragoman.protocol.tokens import ScopedTokens
    from dragoman.protocol.trust import TrustFile

AUTHORIZATION: Final = "authorization"
"""Metadata with the token, as ``Bearer TOKEN``."""
TRUST_VARIABLE: Final = "DRAGOMAN_TRUST"
"""Environment variable with the path of the trust file."""

_BEARER: Final = b"Bearer "
_OPEN: Final = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""What is answered over TCP without a token."""
_CUT_S: Final = 5.0
"""How long gRPC may take to close a connection that was cut."""
_LOOK_S: Final = 0.005
_CANCELLED_S: Final = 0.1
"""How long after that the cancellation of the calls on it may take."""
_MOST_NAME: Final = 200
"""Characters of an unknown identity that a log line repeats."""
_ACTING: Final = frozenset(
    {
        *("Respond", "Send", "UpdateRun", "Cancel", "SyncSkills", "DeleteSession"),
        *("RegisterAdapter", "UnregisterAdapter", "RestartAdapter"),
        *("CreateAgent", "UpdateAgent", "DeleteAgent", "SetActiveAgent"),
    }
)
"""Unary methods that change something. They are not begun for a caller that has closed its connection already."""


class Gate:
    """Lets calls through to the handlers of one server.

    Args:
        paths: of the Unix sockets that it listens on.
        asks_token: whether it listens on TCP too, and asks for the token there.
        has_scopes: whether it also accepts callers without the scope ``admin`` there, as routers do, which know who
            started a run.

    Raises:
        AddressError: there is no token, and none can be made; or the trust file cannot be used.
    """

    def __init__(self, paths: Iterable[str], *, asks_token: bool, has_scopes: bool = False) -> None:
        self._connections = Connections(paths, _token_if_any)
        self._calm_at = 0.0
        """When the calls on connections that were cut are surely cancelled."""
        self._token = f"Bearer {make_token()}".encode() if asks_token else b""
        self._has_scopes = has_scopes
        self._scoped = _scoped_tokens() if asks_token and has_scopes else None
        self._trust = named_trust() if asks_token else None
        self._issued: JwtCallers | None = None

    def close(self) -> None:
        """Let go of what it holds."""
        self._connections.close()

    def decides(self, method: str) -> bool:
        """Return whether nothing but this gate decides about calls of a method: not their adapter, not their run."""
        rule = RULES.get(method)
        return not self._has_scopes or (rule is not None and rule.target == "none")

    async def admit(self, method: str, context: Any) -> None:
        """Return if this call may be answered; from then on ``current_caller`` is its caller.

        Args:
            method: its full name, as in ``/package.Service/Method``.
            context: the RPC.

        Raises:
            DragomanError: TOKEN_REQUIRED, CALLER_REFUSED, or NOT_PERMITTED.
        """
        if context.peer().startswith("unix"):
            await self._admit_local()
            CALLER.set(Caller(f"uid {os.geteuid()}"))
            if method.rpartition("/")[2] in _ACTING:
                # It was not looked at if it was closed by then; then this fails, as nothing can be sent on it.
                await context.send_initial_metadata(())
            return
        if not self._token or method in _OPEN:
            CALLER.set(Caller("token"))
        else:
            CALLER.set(Caller("", frozenset()))  # until it is known
            tokens = [_bytes(value) for key, value in context.invocation_metadata() or () if key == AUTHORIZATION]
            caller = self._by_certificate(context)
            if caller is None or tokens:
                caller = await self._by_token(tokens)
            CALLER.set(caller)
            if not self._has_scopes:
                caller.check_admin()
            caller.check_method(method)

    def _by_certificate(self, context: Any) -> Caller | None:
        """Return who has shown a certificate with an identity; ``None`` if there is none, or no table of them.

        Raises:
            DragomanError: NOT_PERMITTED: the table does not have it. A token does not change that.
        """
        identities = self._trust.current() if self._trust is not None else None
        if identities is None or not identities.identities:
            return None
        uris = [_text(uri) for uri in context.auth_context().get("peer_uri", ())]
        if not uris:
            return None
        caller = identities.caller_by_uris(uris)
        if caller is None:
            CALLER.set(Caller(" ".join(uris)[:_MOST_NAME], frozenset()))
            raise current_caller().refusal("the trust file does not have the identity of this certificate")
        return caller

    async def _by_token(self, tokens: Sequence[bytes]) -> Caller:
        import secrets  # noqa: PLC0415 - of use only where there is a token

        if any(secrets.compare_digest(value, self._token) for value in tokens):
            return Caller("token")
        what = "the token is not this server's" if tokens else "no token was sent"
        try:
            for value in tokens:
                text = value.removeprefix(_BEARER).decode("ascii", "replace")
                caller = await self._by_text(text) if value.startswith(_BEARER) else None
                if caller is not None:
                    return caller
        except ValueError as error:
            what = str(error)
        raise DragomanError(
            Reason.TOKEN_REQUIRED,
            f"{what}: over TCP each call needs the metadata 'authorization: Bearer TOKEN', with what "
            "'dragoman token' prints for the user who runs this server; its Unix socket needs none",
        )

    async def _by_text(self, text: str) -> Caller | None:
        """Return who calls with a token that is not the user's; ``None`` if it is not known.

        Raises:
            TokenFileError: it has expired, or the file with tokens is wrong.
            JwtError: it is of a trusted issuer, but not valid.
        """
        caller = self._scoped.caller(text, time.time()) if self._scoped is not None else None
        trust = self._trust.current() if self._trust is not None else None
        if caller is not None or trust is None or not (trust.issuers or trust.run_tokens):
            return caller
        if self._issued is None:
            from dragoman.protocol.jwt_tokens import JwtCallers  # noqa: PLC0415 - few servers accept them

            self._issued = JwtCallers()
        return await self._issued.caller(trust, text)

    async def _admit_local(self) -> None:
        # This call may be on a connection that was cut just now. gRPC then cancels it, a moment after it has closed
        # the connection.
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _CUT_S
        while self._connections.any_refused():
            self._calm_at = loop.time() + _CANCELLED_S
            if loop.time() > give_up_at:
                raise DragomanError(Reason.CALLER_REFUSED, "a connection that is refused does not close; call again")
            await asyncio.sleep(_LOOK_S)
        while (wait_s := self._calm_at - loop.time()) > 0:  # noqa: ASYNC110 - there is no event for that
            await asyncio.sleep(wait_s)


def _scoped_tokens() -> "ScopedTokens":
    from dragoman.protocol.tokens import ScopedTokens, tokens_path  # noqa: PLC0415 - of use only over TCP

    return ScopedTokens(tokens_path())


def named_trust() -> "TrustFile | None":
    """Return the file that ``DRAGOMAN_TRUST`` names; ``None`` if it names none.

    Raises:
        AddressError: the file cannot be used.
    """
    named = os.environ.get(TRUST_VARIABLE, "")
    if not named:
        return None
    from dragoman.protocol.trust import TrustFile  # noqa: PLC0415 - few servers have one

    return TrustFile(Path(named))


def _token_if_any() -> str:
    with contextlib.suppress(ValueError):  # a file that others can read authorizes no one
        return read_token()
    return ""


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "replace")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
