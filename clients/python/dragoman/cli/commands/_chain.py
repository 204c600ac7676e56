"""What ``dragoman run`` takes about other adapters and about its place at the first one."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
from dragoman.cli import _values
from dragoman.cli.commands._options import Seconds
from dragoman.client import Client
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.identity import near_names
from dragoman.protocol.limits import LONGEST_WAIT_S
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_F = TypeVar("_F", bound=Callable[..., Any])

_PREFIX: Final = "FAILURE_KIND_"
_USUAL: Final = "auth_required,quota_exceeded,rate_limited,upstream_unavailable,network,not_installed,spawn_failed"
_SETTINGS: Final = "--fallback-config"
_NONE: Final = "{}"
_DESCRIBE_S: Final = 5.0
"""How long an adapter to fall back to may take to say what settings it knows, if it gets any of its own."""
_GLANCE_S: Final = 2.0
"""How long one may take that gets none: perhaps it is never needed."""


def chain_options() -> Callable[[_F], _F]:
    """Return ``--fallback`` and the options about it, ``--queue`` and ``--ignore-breaker``."""
    options = (
        click.option(
            "--fallback",
            metavar="ADAPTER[,ADAPTER]",
            help="Adapters to try if the run fails before the agent changed anything, in this order.",
        ),
        click.option("--fallback-on", show_default=_USUAL, metavar="KIND[,KIND]", help="On which failures."),
        click.option(
            _SETTINGS,
            multiple=True,
            metavar="ADAPTER.KEY=VALUE",
            help="A setting of an adapter of --fallback, which then gets none of --config; ADAPTER={}: none at all."
            " Default: --config without command, model, extraArgs and args. May be repeated.",
        ),
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


async def put_settings(client: Client, request: pb.ExecuteRequest, pairs: Sequence[str]) -> None:
    """Write the settings of adapters to fall back to into a request whose chain is in it.

    If any gets settings the adapters are asked what they know: text stays text by that, and a router that has heard
    it refuses what they do not know before the run, not once it is needed.

    Raises:
        click.BadParameter: a setting is none, or of no adapter in the chain.
    """
    names = list(request.fallback.adapters)
    given = settings_by_adapter(pairs, names)
    asked = names if request.config.fields else list(given)
    asking = (_schema(client, name, _DESCRIBE_S if name in given else _GLANCE_S) for name in asked)
    schemas = dict(zip(asked, await asyncio.gather(*asking), strict=True))
    for name, own in given.items():
        request.fallback.configs[name].update(_values.config(own, schemas[name], option=_SETTINGS))


def settings_by_adapter(pairs: Sequence[str], names: Collection[str]) -> Mapping[str, list[str]]:
    """Return ``KEY=VALUE`` by adapter of what was given as ``ADAPTER.KEY=VALUE``; nothing for ``ADAPTER={}``.

    Raises:
        click.BadParameter: it is neither, or there is no such adapter in ``names``.
    """
    given: dict[str, list[str]] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        # Names may have dots; of those that fit the longest is meant.
        name = max((one for one in names if key == one or key.startswith(f"{one}.")), key=len, default=None)
        if name is None:
            raise click.BadParameter(f"{key!r} begins with none of --fallback's adapters", param_hint=_SETTINGS)
        own = given.setdefault(name, [])
        if key != name:
            own.append(pair.removeprefix(f"{name}."))
        elif value.strip() != _NONE:
            told = f"say {name}.KEY=VALUE, or {name}={_NONE} for no settings"
            raise click.BadParameter(told, param_hint=_SETTINGS)
    return given


async def _schema(client: Client, name: str, timeout_s: float) -> str:
    """Return the schema of an adapter's settings; nothing if it cannot be asked, which shows when it is needed."""
    try:
        async with asyncio.timeout(timeout_s):
            return (await client.describe(name)).config_schema_json
    except (DragomanError, TimeoutError):
        return ""


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
