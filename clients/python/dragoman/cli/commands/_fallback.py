"""Options of ``dragoman run`` about fallback adapters and about admission at the first one."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import click
from dragoman.cli import values
from dragoman.cli.commands._options import Seconds, option
from dragoman.client import Client
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.identity import near_names
from dragoman.protocol.limits import LONGEST_WAIT_S
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_PREFIX: Final = "FAILURE_KIND_"
_DEFAULT_KINDS: Final = (
    "auth_required,quota_exceeded,rate_limited,upstream_unavailable,network,not_installed,spawn_failed"
)
_CONFIG: Final = "--fallback-config"
_NO_SETTINGS: Final = "{}"
_DESCRIBE_S: Final = 5.0
"""Upper bound for reading the configuration schemas of the fallback adapters."""


@dataclass(frozen=True, slots=True)
class FallbackOptions:
    """Which adapters a failed run goes to, and how it is admitted."""

    fallback: Annotated[
        str | None,
        option(
            "--fallback",
            "Adapters to try, in this order, if the run fails before the agent changed anything.",
            "ADAPTER[,ADAPTER]",
        ),
    ]
    fallback_on: Annotated[
        str | None,
        option("--fallback-on", "Failure kinds that lead to a fallback.", "KIND[,KIND]", show_default=_DEFAULT_KINDS),
    ]
    fallback_config: Annotated[
        tuple[str, ...],
        option(
            _CONFIG,
            "Set a setting of a fallback adapter, which then gets none of --config; ADAPTER={} gives it no "
            "settings. Default: --config without command, model, extraArgs and args.",
            "ADAPTER.KEY=VALUE",
        ),
    ]
    queue: Annotated[
        float | None,
        option(
            "--queue",
            "Wait up to this long for a slot if the adapter is at its concurrency limit.",
            "SECONDS",
            type=Seconds(LONGEST_WAIT_S),
        ),
    ]
    ignore_breaker: Annotated[
        bool, option("--ignore-breaker", "Run even if the circuit breaker of this adapter and login is open.")
    ]

    def put(self, request: pb.ExecuteRequest) -> None:
        """Write the options into a request; what was not given is left out.

        Raises:
            click.BadParameter: an unknown failure kind, or an empty list.
            click.UsageError: failure kinds without fallback adapters.
        """
        if self.fallback is not None:
            request.fallback.adapters.extend(_items(self.fallback, "--fallback"))
            kinds = _DEFAULT_KINDS if self.fallback_on is None else self.fallback_on
            request.fallback.on.extend(_kind(name) for name in _items(kinds, "--fallback-on"))
        elif self.fallback_on is not None:
            raise click.UsageError("--fallback-on has no effect without --fallback; name the fallback adapters")
        if self.queue:
            request.admission.longest_wait.FromNanoseconds(int(self.queue * 1e9))
        if self.ignore_breaker:
            request.admission.ignore_breaker = True


async def put_fallback_configs(client: Client, request: pb.ExecuteRequest, pairs: Sequence[str]) -> None:
    """Write the settings of fallback adapters into a request that names these adapters.

    Each is described first: its schema says which values are text, and a router that has the schema rejects settings
    that the adapter does not know before the run starts, not when the fallback is due.

    Raises:
        click.BadParameter: a malformed setting, or one of an adapter that is not a fallback.
    """
    names = list(request.fallback.adapters)
    by_adapter = pairs_by_adapter(pairs, names)
    if not by_adapter and not request.config.fields:
        return
    schemas = await asyncio.gather(*(_schema(client, name) for name in names))
    for name, schema in zip(names, schemas, strict=True):
        if name in by_adapter:
            request.fallback.configs[name].update(values.config(by_adapter[name], schema, option=_CONFIG))


def pairs_by_adapter(pairs: Sequence[str], names: Collection[str]) -> Mapping[str, list[str]]:
    """Return the ``KEY=VALUE`` of each adapter from ``ADAPTER.KEY=VALUE``; none for ``ADAPTER={}``.

    Raises:
        click.BadParameter: a pair is neither, or its adapter is not in ``names``.
    """
    by_adapter: dict[str, list[str]] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        # Names may contain dots; the longest one that matches is meant.
        name = max((name for name in names if key == name or key.startswith(f"{name}.")), key=len, default=None)
        if name is None:
            raise click.BadParameter(f"{key!r} does not begin with an adapter of --fallback", param_hint=_CONFIG)
        own = by_adapter.setdefault(name, [])
        if key != name:
            own.append(pair.removeprefix(f"{name}."))
        elif value.strip() != _NO_SETTINGS:
            expected = f"expected {name}.KEY=VALUE, or {name}={_NO_SETTINGS} for no settings"
            raise click.BadParameter(expected, param_hint=_CONFIG)
    return by_adapter


async def _schema(client: Client, name: str) -> str:
    """Return an adapter's configuration schema; empty if it cannot be described, which the run will report."""
    try:
        async with asyncio.timeout(_DESCRIBE_S):
            return (await client.describe(name)).config_schema_json
    except (DragomanError, TimeoutError):
        return ""


def _items(text: str, name: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise click.BadParameter("the list is empty; leave the option out", param_hint=name)
    return items


def _kind(name: str) -> event_pb2.FailureKind.ValueType:
    known = {full.removeprefix(_PREFIX): full for full in event_pb2.FailureKind.keys()[1:]}
    kind = name.upper().replace("-", "_").removeprefix(_PREFIX)
    if kind not in known:
        near = near_names(kind.lower(), [other.lower() for other in known])
        every = f"; the kinds are {', '.join(other.lower() for other in known)}"
        hint = f"; did you mean {' or '.join(near)}?" if near else every
        raise click.BadParameter(f"{name!r} is not a failure kind{hint}", param_hint="--fallback-on")
    return event_pb2.FailureKind.Value(known[kind])
