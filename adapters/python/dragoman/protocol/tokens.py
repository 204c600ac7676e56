"""Tokens with scopes: a file of digests that the command line writes, and routers read.

A token is ``dgm_ID_SECRET``. The file has its SHA-256, which suffices for 256 random bits. Routers look whether the
file has changed with each call over TCP, so that a token that is revoked is refused at once.
"""

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.caller import Caller, unknown_scopes
from dragoman.protocol.private import (
    file_stamp,
    make_checked_directory,
    make_private_directory,
    open_lock,
    read_protected,
    user_state_path,
)

TOKENS_VARIABLE: Final = "DRAGOMAN_TOKENS"
"""Environment variable with the path of the file."""

_PREFIX: Final = "dgm_"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class TokenFileError(ValueError):
    """The file with tokens is wrong, or what is asked of it; the message says what."""


class StoredToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored of a token. Times are seconds since the epoch."""

    id: str
    name: str
    digest: str
    """SHA-256 of the token, hexadecimal."""
    scopes: tuple[str, ...]
    adapters: tuple[str, ...]
    """Patterns of adapter types."""
    created_at: float
    expires_at: float | None = None

    def is_expired(self, now: float) -> bool:
        """Return whether it is of no use any more."""
        return self.expires_at is not None and now >= self.expires_at


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[StoredToken]


def tokens_path() -> Path:
    """Return the file of this user's routers: what ``DRAGOMAN_TOKENS`` says, else one beside the user's token."""
    named = os.environ.get(TOKENS_VARIABLE, "")
    return Path(named) if named else user_state_path() / "tokens.json"


class ScopedTokens:
    """The tokens in a file, as it is now.

    Args:
        path: the file; there need be none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: dict[str, StoredToken] = {}

    def caller(self, text: str, now: float) -> Caller | None:
        """Return who calls with a token; ``None`` if the file does not have it.

        Args:
            text: the token.
            now: seconds since the epoch.

        Raises:
            TokenFileError: the token has expired, or the file is wrong: then no token is accepted.
        """
        if not text.startswith(_PREFIX):
            return None
        self._refresh()
        found = self._tokens.get(text.removeprefix(_PREFIX).partition("_")[0])
        if found is None or not hmac.compare_digest(_digest(text), found.digest):
            return None
        if found.is_expired(now):
            raise TokenFileError(f"the token {found.name!r} has expired")
        return Caller(f"token {found.name}", frozenset(found.scopes), found.adapters)

    def _refresh(self) -> None:
        stamp = file_stamp(self._path)
        if stamp != self._stamp:
            self._tokens = {}
            self._tokens = {token.id: token for token in stored_tokens(self._path)}
            self._stamp = stamp


def stored_tokens(path: Path) -> list[StoredToken]:
    """Return the tokens in a file, oldest first; none if there is no file.

    Raises:
        TokenFileError: other users can write it, or it is invalid.
    """
    if not path.exists():
        return []
    try:
        data = read_protected(path)
    except AddressError as error:
        raise TokenFileError(f"{error}; remove it, and create the tokens anew") from error
    try:
        tokens = msgspec.json.decode(data, type=_File).tokens
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TokenFileError(f"{path} is no file of tokens; remove it, and create the tokens anew") from error
    if any(unknown_scopes(token.scopes) for token in tokens):
        raise TokenFileError(f"{path} has scopes that this version does not know; update it")
    return tokens


def create_token(
    path: Path, name: str, scopes: Sequence[str], adapters: Sequence[str], lifetime_s: float | None
) -> str:
    """Create a token and return it; only its digest is stored.

    Args:
        path: the file.
        name: what callers with it are called.
        scopes: what it is for; see ``caller.SCOPES``.
        adapters: patterns of the types of adapters that it is for.
        lifetime_s: seconds until it expires; ``None`` for never.

    Raises:
        TokenFileError: an argument is invalid, the name is taken, or the file is wrong.
    """
    if _NAME.fullmatch(name) is None:
        raise TokenFileError(f"the name {name[:100]!r} must match [A-Za-z0-9][A-Za-z0-9._-]{{0,63}}")
    if not scopes or unknown_scopes(scopes):
        raise TokenFileError(f"no such scope: {', '.join(unknown_scopes(scopes)) or 'none was named'}")
    import base64  # noqa: PLC0415 - no server makes tokens

    token_id, secret = os.urandom(4).hex(), base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
    text, now = f"{_PREFIX}{token_id}_{secret}", time.time()
    expires_at = None if lifetime_s is None else now + lifetime_s
    created = StoredToken(token_id, name, _digest(text), tuple(sorted(set(scopes))), tuple(adapters), now, expires_at)
    with _changing(path) as tokens:
        if any(token.name == name and not token.is_expired(now) for token in tokens):
            raise TokenFileError(f"there is a token {name!r}; revoke it first, or choose another name")
        tokens[:] = [token for token in tokens if token.name != name]
        tokens.append(created)
    return text


def revoke_token(path: Path, name: str) -> None:
    """Remove a token, by its name or ID. Its runs go on.

    Raises:
        TokenFileError: there is none, or the file is wrong.
    """
    with _changing(path) as tokens:
        left = [token for token in tokens if name not in {token.name, token.id}]
        if len(left) == len(tokens):
            raise TokenFileError(f"there is no token {name[:100]!r}; 'dragoman token list' lists them")
        tokens[:] = left


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[list[StoredToken]]:
    """Hand out the tokens to be changed, and write them when the block ends well."""
    try:
        # Who names a file elsewhere, in /etc or where they work, did not give the directory away.
        is_default = path.parent == user_state_path()
        (make_private_directory if is_default else make_checked_directory)(path.parent)
        lock = open_lock(f"{path}.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = stored_tokens(path)
            yield tokens
            fresh = path.with_name(f"{path.name}.new")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(_File(tokens)), indent=1))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            os.close(lock)
    except AddressError as error:
        raise TokenFileError(str(error)) from error
    except OSError as error:
        raise TokenFileError(f"{path} cannot be written: {error.strerror}") from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
