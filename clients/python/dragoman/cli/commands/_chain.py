"""What ``dragoman run`` takes about other adapters and about its place at the first one."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from dragoman.protocol.identity import near_names
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_F = TypeVar("_F", bound=Callable[..., Any])

_PREFIX: Final = "FAILURE_KIND_"
_USUAL: Final = "auth_required,quota_exceeded,rate_limited,upstream_unavailable,network,not_installed"


def chain_options() -> Callable[[_F], _F]:
    """Return ``--fallback``, ``--fallback-on``, ``--queue`` and ``--ignore-breaker``."""
    options = (
        click.option(
            "--fallback",
            default="",
            metavar="ADAPTER[,ADAPTER]",
            help="Adapters to try if the run fails before the agent changed anything, in this order.",
        ),
        click.option(
            "--fallback-on", default=_USUAL, show_default=True, metavar="KIND[,KIND]", help="On which failures."
        ),
        click.option(
            "--queue",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help="Wait so long for a place, if all are taken.",
        ),
        click.option("--ignore-breaker", is_flag=True, help="Try even though runs with this login failed just now."),
    )

    def add(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def put_chain(
    request: pb.ExecuteRequest, fallback: str, fallback_on: str, queue_s: float | None, *, ignore_breaker: bool
) -> None:
    """Write what was said into a request; what was not said is left out.

    Raises:
        click.BadParameter: there is no such failure.
    """
    if fallback:
        request.fallback.adapters.extend(_items(fallback))
        request.fallback.on.extend(_kind(name) for name in _items(fallback_on))
    if queue_s:
        request.admission.longest_wait.FromNanoseconds(int(queue_s * 1e9))
    if ignore_breaker:
        request.admission.ignore_breaker = True


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _kind(name: str) -> event_pb2.FailureKind.ValueType:
    known = {kind.removeprefix(_PREFIX): kind for kind in event_pb2.FailureKind.keys()[1:]}
    wanted = name.upper().replace("-", "_").removeprefix(_PREFIX)
    if wanted not in known:
        near = near_names(wanted.lower(), [kind.lower() for kind in known])
        every = f"; they are {', '.join(kind.lower() for kind in known)}"
        hint = f"; did you mean {' or '.join(near)}?" if near else every
        raise click.BadParameter(f"{name!r} is no kind of failure{hint}", param_hint="--fallback-on")
    return event_pb2.FailureKind.Value(known[wanted])
