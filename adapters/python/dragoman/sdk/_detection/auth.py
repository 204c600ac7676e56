"""Whether an agent is logged in, and which keys it is not to get because a subscription pays."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from dragoman.protocol.identity import RequestDigests
from dragoman.v1 import adapter_pb2 as pb
from msgspec import Struct

AUTH_LIMIT_S: Final = 8.0
_REMEMBERED_S: Final = 600.0
_MOST_REMEMBERED: Final = 64


class AuthFinding(Struct, frozen=True):
    """Whether an agent is logged in."""

    state: pb.AuthState.ValueType
    method: str = ""
    """How, as the agent names it."""
    message: str = ""
    """What was found, if it is worth a sentence."""
    subscription: bool = False
    """A login that is paid for as such: keys of the adapter's own environment are then not passed on."""


FindLogin = Callable[[Mapping[str, str]], Awaitable[AuthFinding]]


class LoginMemory:
    """Remembers what was found of logins while the files that hold them stay as they are, for some minutes.

    To ask an agent for its login costs a start of it. Where a key is inherited, each run needs the answer.
    """

    def __init__(self) -> None:
        self._digests = RequestDigests()
        self._found: dict[tuple[object, ...], tuple[float, AuthFinding]] = {}

    def remembering(self, files: Sequence[Path], variables: Collection[str], find_login: FindLogin) -> FindLogin:
        """Return ``find_login`` with a memory.

        Args:
            files: the program, and the files that hold its logins.
            variables: those that a login depends on.
            find_login: asks the program.
        """

        async def find(env: Mapping[str, str]) -> AuthFinding:
            decisive = (f"{name}={env[name]}" for name in sorted(variables) if name in env)
            key = (self._digests.keyed(decisive), *map(_stamp, files))
            asked_at, found = self._found.get(key, (0.0, None))
            now = time.monotonic()
            if found is None or now - asked_at > _REMEMBERED_S:
                found = await find_login(env)
                if len(self._found) >= _MOST_REMEMBERED:
                    self._found.clear()
                if found.state != pb.AUTH_STATE_UNKNOWN:
                    self._found[key] = now, found
            return found

        return find


def _stamp(path: Path) -> tuple[object, ...]:
    """Return what changes when a file does."""
    try:
        status = path.stat()
    except OSError:
        return (path,)
    return (path, status.st_mtime_ns, status.st_size, status.st_ino)


def inherited_keys(
    variables: Collection[str], env: Mapping[str, str], own: Mapping[str, str], requested: Collection[str]
) -> tuple[str, ...]:
    """Return the variables among ``variables`` with which an agent would get a key that the request did not set.

    Args:
        variables: those that hold keys.
        env: the agent's environment.
        own: the adapter's.
        requested: the names that the caller has set; they are wanted.
    """
    return tuple(name for name in variables if env.get(name) and env[name] == own.get(name) and name not in requested)


async def keys_to_withhold(
    names: tuple[str, ...], env: Mapping[str, str], find_login: FindLogin
) -> tuple[tuple[str, ...], AuthFinding | None]:
    """Return the keys that an agent must not get, as it would pay with them instead of its login, and that login.

    Args:
        names: as ``inherited_keys`` found them.
        env: the agent's environment.
        find_login: asks for the login that an environment leads to.
    """
    if not names:
        return (), None
    without = {name: value for name, value in env.items() if name not in names}
    try:
        found = await asyncio.wait_for(find_login(without), AUTH_LIMIT_S)
    except TimeoutError:
        return (), None
    is_paid_for = found.subscription and found.state == pb.AUTH_STATE_OK
    return (names, found) if is_paid_for else ((), None)


def withheld_message(names: Collection[str]) -> str:
    """Return the note on keys that are not passed on."""
    return (
        f"{', '.join(names)} of the adapter's own environment is not passed on, as a subscription login is in use;"
        " what a request's env holds always is."
    )
