"""Whether an agent is logged in, and which keys it is not to get because a subscription pays."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from dragoman.v1 import adapter_pb2 as pb

AUTH_LIMIT_S = 8.0


@dataclass(frozen=True, slots=True)
class AuthFinding:
    """Whether an agent is logged in."""

    state: pb.AuthState.ValueType
    method: str = ""
    """How, in the agent's words."""
    message: str = ""
    """What was found, if it is worth a sentence."""
    subscription: bool = False
    """A login that is paid for as such: keys of the adapter's own environment are then not passed on."""


FindLogin = Callable[[Mapping[str, str]], Awaitable[AuthFinding]]


def inherited_keys(
    variables: Collection[str], env: Mapping[str, str], own: Mapping[str, str], given: Collection[str]
) -> tuple[str, ...]:
    """Return the variables among ``variables`` with which an agent would get a key that nobody asked for.

    Args:
        variables: those that hold keys.
        env: the agent's environment.
        own: the adapter's.
        given: the names that the caller has set; they are wanted.
    """
    return tuple(name for name in variables if env.get(name) and env[name] == own.get(name) and name not in given)


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
    """Return what is told of keys that are not passed on."""
    return (
        f"{', '.join(names)} of the adapter's own environment is not passed on, as a subscription login is in use;"
        " what a request's env holds always is."
    )
