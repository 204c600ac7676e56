"""Options of ``dragoman run`` about fallback adapters and about admission at the first one."""

import json
from typing import TYPE_CHECKING, Annotated, Final

import click
from dragoman.cli.commands._options import Seconds, option
from dragoman.protocol.identity import near_names
from dragoman.protocol.limits import LONGEST_WAIT_S
from msgspec import Struct

if TYPE_CHECKING:
    from dragoman.v1 import adapter_pb2 as pb
    from dragoman.v1 import event_pb2

_PREFIX: Final = "FAILURE_KIND_"
_DEFAULT_KINDS: Final = (
    "auth_required,quota_exceeded,rate_limited,upstream_unavailable,network,not_installed,spawn_failed"
)
_CONFIG: Final = "--fallback-config"


class FallbackOptions(Struct, frozen=True):
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
        str | None,
        option(
            _CONFIG,
            "Settings of fallback adapters by their names, which then get none of --config. Default: --config "
            "without command, model, extraArgs and args.",
            "JSON",
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
    run_token: Annotated[
        str | None,
        option(
            "--run-token",
            "Have the router issue a token for this run, which the agent gets as DRAGOMAN_API_KEY, for the API at "
            "URL, its DRAGOMAN_API_URL.",
            "URL",
        ),
    ] = None
    run_token_audience: Annotated[
        str | None,
        option("--run-token-audience", "Claim 'aud' of that token. Default: dragoman, the router.", "AUDIENCE"),
    ] = None

    def put(self, request: "pb.ExecuteRequest") -> None:
        """Write the options into a request; what was not given is left out.

        Raises:
            click.BadParameter: an unknown failure kind, an empty list, or settings that are no objects.
            click.UsageError: failure kinds without fallback adapters, or an audience without a token.
        """
        if self.fallback is not None:
            request.fallback.adapters.extend(_items(self.fallback, "--fallback"))
            kinds = _DEFAULT_KINDS if self.fallback_on is None else self.fallback_on
            request.fallback.on.extend(_kind(name) for name in _items(kinds, "--fallback-on"))
        elif self.fallback_on is not None:
            raise click.UsageError("--fallback-on has no effect without --fallback; name the fallback adapters")
        if self.fallback_config is not None:
            from google.protobuf import json_format  # noqa: PLC0415 - an adapter may wait to be started

            try:
                json_format.ParseDict({"configs": json.loads(self.fallback_config)}, request.fallback)
            except (ValueError, RecursionError, json_format.ParseError) as error:
                expected = """expected settings by adapter, e.g. '{"codex": {"maxTurns": 5}}'"""
                raise click.BadParameter(expected, param_hint=_CONFIG) from error
        if self.queue:
            request.admission.longest_wait.FromNanoseconds(int(self.queue * 1e9))
        if self.ignore_breaker:
            request.admission.ignore_breaker = True
        if self.run_token is not None:
            request.api_url = self.run_token
            request.admission.run_token.audience = self.run_token_audience or ""
        elif self.run_token_audience is not None:
            raise click.UsageError("--run-token-audience has no effect without --run-token; say where it is used")


def _items(text: str, name: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise click.BadParameter("the list is empty; leave the option out", param_hint=name)
    return items


def _kind(name: str) -> "event_pb2.FailureKind.ValueType":
    from dragoman.v1 import event_pb2  # noqa: PLC0415 - as above

    known = {full.removeprefix(_PREFIX): full for full in event_pb2.FailureKind.keys()[1:]}
    kind = name.upper().replace("-", "_").removeprefix(_PREFIX)
    if kind not in known:
        near = near_names(kind.lower(), [other.lower() for other in known])
        every = f"; the kinds are {', '.join(other.lower() for other in known)}"
        hint = f"; did you mean {' or '.join(near)}?" if near else every
        raise click.BadParameter(f"{name!r} is not a failure kind{hint}", param_hint="--fallback-on")
    return event_pb2.FailureKind.Value(known[kind])
