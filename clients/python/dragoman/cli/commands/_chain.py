"""What ``dragoman run`` takes about other adapters and about its place at the first one."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from dragoman.cli.commands._options import Seconds
from dragoman.protocol.identity import near_names
from dragoman.protocol.limits import LONGEST_WAIT_S
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
            metavar="ADAPTER[,ADAPTER]",
            help="Adapters to try if the run fails before the agent changed anything, in this order.",
        ),
        click.option("--fallback-on", show_default=_USUAL, metavar="KIND[,KIND]", help="On which failures."),
        click.option(
            "--queue",
            type=Seconds(LONGEST_WAIT_S),
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
    request: pb.ExecuteRequest,
    fallback: str | None,
    fallback_on: str | None,
    queue_s: float | None,
    *,
    ignore_breaker: bool,
) -> None:
    """Write what was said into a request; what was not said is left out.

    Raises:
        click.BadParameter: there is no such failure, or a list names nothing.
        click.UsageError: failures are named, and no adapter for them.
    """
    if fallback is not None:
        request.fallback.adapters.extend(_items(fallback, "--fallback"))
        named = _USUAL if fallback_on is None else fallback_on
        request.fallback.on.extend(_kind(name) for name in _items(named, "--fallback-on"))
    elif fallback_on is not None:
        raise click.UsageError("--fallback-on says on which failures the adapters of --fallback are tried; name them")
    if queue_s:
        request.admission.longest_wait.FromNanoseconds(int(queue_s * 1e9))
    if ignore_breaker:
        request.admission.ignore_breaker = True


def _items(text: str, option: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise click.BadParameter("names nothing; leave it out", param_hint=option)
    return items


def _kind(name: str) -> event_pb2.FailureKind.ValueType:
    known = {kind.removeprefix(_PREFIX): kind for kind in event_pb2.FailureKind.keys()[1:]}
    wanted = name.upper().replace("-", "_").removeprefix(_PREFIX)
    if wanted not in known:
        near = near_names(wanted.lower(), [kind.lower() for kind in known])
        every = f"; they are {', '.join(kind.lower() for kind in known)}"
        hint = f"; did you mean {' or '.join(near)}?" if near else every
        raise click.BadParameter(f"{name!r} is no kind of failure{hint}", param_hint="--fallback-on")
    return event_pb2.FailureKind.Value(known[wanted])
